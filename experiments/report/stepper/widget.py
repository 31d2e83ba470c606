"""The stepper in notebooks: a widget where anywidget is installed, pictures where it is not."""

import uuid
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from treespec.errors import TreespecError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.stepper.replay import asset, replay
from treespec.experiments.report.stepper.steps import (
    Shown,
    Tokenizer,
    Trail,
    trail_of,
    trails_of_run,
)

if TYPE_CHECKING:
    from treespec.step import Step

__all__ = ["MissingWidget", "Stepper"]


STEPS_WITHOUT_WIDGET = 4
"""Steps shown as pictures where nothing can be clicked."""


class MissingWidget(TreespecError, ImportError):
    """anywidget is not installed."""


class Stepper:
    """Steps through what was drafted and accepted: buttons, arrow keys, a slider.

    As the last expression of a cell it shows itself, above the first steps as pictures, which the widget
    hides where it runs. A notebook that is exported, or opened where there is no kernel or no anywidget,
    shows the pictures.

    Args:
        source: the steps of one text (`list(decode(...))`), or a run whose steps were kept.
        tokenizer: turns the ids of steps into text; not needed for a run.

    Raises:
        ValueError: if there is no step to show.
        RunFolderError: if the kept trees of a run are damaged.

    Example:
        >>> from treespec.experiments.report.run import load_run  # doctest: +SKIP
        >>> Stepper(load_run("runs/tree_vs_chain"))  # doctest: +SKIP
    """

    def __init__(
        self, source: "RunRecords | Step | Iterable[Step]", tokenizer: Tokenizer | None = None
    ) -> None:
        if isinstance(source, RunRecords):
            self.trails: list[Trail] = trails_of_run(source)
            if not self.trails:
                raise ValueError(
                    f"{source.folder} kept no steps; `trees: 2` in its config keeps those of two prompts"
                )
        else:
            self.trails = [trail_of(source, tokenizer)]
            if not self.trails[0].steps:
                raise ValueError("there is no step to show")

    @cached_property
    def widget(self) -> Any:
        """The widget itself, with the traits `data` and `index`; `index` is the step that is shown.

        Raises:
            MissingWidget: if anywidget is not installed.
        """
        return _widget_class()(data=replay(self.trails).data(), pictures=self._pictures)

    @cached_property
    def _pictures(self) -> str:
        """The id of the element that holds the pictures."""
        return f"stepper-{uuid.uuid4().hex}"

    def _ipython_display_(self) -> None:
        # Two outputs: of one with both forms, an exported page takes the widget, which may never run there.
        display = import_module("IPython.display").display
        shown = Shown(self.trails[0], STEPS_WITHOUT_WIDGET)._repr_html_()
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
        """The same script and style as the report's."""

        _esm = asset("stepper.js")
        _css = asset("stepper.css")
        data = traitlets.Dict().tag(sync=True)
        index = traitlets.Int(0).tag(sync=True)
        pictures = traitlets.Unicode().tag(sync=True)

    return StepperWidget
