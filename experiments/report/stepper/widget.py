"""The stepper in notebooks: a widget where anywidget is installed, pictures where it is not."""

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

    As the last expression of a cell it shows itself. A notebook that is saved, or opened where there is no
    kernel or no anywidget, shows the first steps as pictures instead.

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
        return _widget_class()(data=replay(self.trails).data())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        still = {
            "text/plain": repr(self),
            "text/html": Shown(self.trails[0], STEPS_WITHOUT_WIDGET)._repr_html_(),
        }
        try:
            bundle = self.widget._repr_mimebundle_()
        except MissingWidget as missing:
            still["text/html"] += Markup("<p><em>{}</em></p>").format(missing)
            return still, {}
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        return {**data, **still}, metadata

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

    return StepperWidget
