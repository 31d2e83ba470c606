"""The stepper in notebooks: a widget if anywidget is installed, pictures otherwise."""

import uuid
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import Any

from markupsafe import Markup

from treespec.errors import TreespecError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.stepper.replay import asset, replay_data
from treespec.experiments.report.stepper.steps import (
    STEPS_WITHOUT_SCRIPT,
    Shown,
    Tokenizer,
    Trail,
    trail_of,
    trails_of_run,
)
from treespec.step import Step

__all__ = ["MissingWidget", "Stepper"]


class MissingWidget(TreespecError, ImportError):
    """anywidget is not installed."""


class Stepper:
    """Navigate through drafted and accepted tokens step by step, with buttons, arrow keys or a slider.

    As the last expression of a cell it displays itself, and the first steps as pictures, which a running
    widget hides. The pictures remain in an exported notebook, or without a kernel or without anywidget.

    Args:
        source: the steps of one text (`list(decode(...))`), or a run whose steps were kept.
        tokenizer: turns the ids of steps into text; not needed for a run.

    Raises:
        ValueError: if there are no steps to show.
        RunFolderError: if the kept trees of a run are damaged.

    Example:
        >>> from treespec.experiments.report.run import load_run  # doctest: +SKIP
        >>> Stepper(load_run("runs/tree_vs_chain"))  # doctest: +SKIP
    """

    def __init__(
        self, source: RunRecords | Step | Iterable[Step], tokenizer: Tokenizer | None = None
    ) -> None:
        if isinstance(source, RunRecords):
            self.trails: list[Trail] = trails_of_run(source)
            if not self.trails:
                raise ValueError(
                    f"{source.folder} kept no steps: set `trees: 2` in its config to keep the steps of two "
                    "prompts"
                )
        else:
            self.trails = [trail_of(source, tokenizer)]
            if not self.trails[0].steps:
                raise ValueError("there are no steps to show")
        self._pictures = f"stepper-{uuid.uuid4().hex}"

    @cached_property
    def widget(self) -> Any:
        """The widget, with the traits `data` and `index`; `index` is the step shown.

        Raises:
            MissingWidget: if anywidget is not installed.
        """
        return _widget_class()(data=replay_data(self.trails), pictures=self._pictures)

    def _ipython_display_(self) -> None:
        # Two outputs: from one with both forms, an exported page takes the widget, which may not run there.
        display = import_module("IPython.display").display
        shown = Shown(self.trails[0], STEPS_WITHOUT_SCRIPT)._repr_html_()
        try:
            widget, missing = self.widget, ""
        except MissingWidget as error:
            widget, missing = None, Markup("<p><em>{}</em></p>").format(error)
        html = f'<div id="{self._pictures}">{shown}{missing}</div>'
        display({"text/plain": repr(self), "text/html": html}, raw=True)
        if widget is not None:
            display(widget)

    def __repr__(self) -> str:
        steps = sum(len(trail.steps) for trail in self.trails)
        return f"Stepper({len(self.trails)} texts, {steps} steps)"


def _widget_class() -> type[Any]:
    try:
        anywidget, traitlets = import_module("anywidget"), import_module("traitlets")
    except ImportError:
        raise MissingWidget(
            "stepping through steps needs anywidget: pip install 'anywidget>=0.9'"
        ) from None

    class StepperWidget(anywidget.AnyWidget):
        _esm = asset("stepper.js")
        _css = asset("stepper.css")
        data = traitlets.Dict().tag(sync=True)
        index = traitlets.Int(0).tag(sync=True)
        pictures = traitlets.Unicode().tag(sync=True)

    return StepperWidget
