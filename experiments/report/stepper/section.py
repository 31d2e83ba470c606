"""The section of the report that replays real steps."""

from markupsafe import Markup

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.html import render
from treespec.experiments.report.stepper.replay import (
    MOST_BYTES,
    MOST_STEPS,
    asset,
    replay,
    script_json,
)
from treespec.experiments.report.stepper.steps import Shown, trails_of_run

__all__ = ["stepper_section"]

STEPS_WITHOUT_SCRIPT = 4
"""Steps shown as pictures to readers without JavaScript."""

NOTE = (
    "Real steps of this run. The tree holds what was drafted, as text; · is a space and ⏎ a new line. The "
    "accepted path is green, and the token that the target added at its end is yellow with a dashed line; "
    "what was rejected is grey. Below it is the text so far, the prompt in pale letters."
)


def stepper_section(run: RunRecords, budget: int = MOST_BYTES, most: int = MOST_STEPS) -> str:
    """The stepper, its data and its script; without JavaScript, the first steps of one text as pictures.

    Args:
        run: whose steps; empty if it kept none.
        budget: bytes of the data.
        most: steps of each text.

    Raises:
        RunFolderError: if the kept trees are damaged.
    """
    trails = trails_of_run(run)
    kept = replay(trails, budget, most)
    if not kept.steps:
        return ""
    data = kept.data()
    groups = [trail["group"] for trail in data["trails"]]
    data["first"] = groups.index("tree") if "tree" in groups else 0
    shown = data["trails"][data["first"]]
    names = ("prompt", "sampling", "method")
    first = next(t for t in trails if all(getattr(t, name) == shown[name] for name in names))
    left_out = ""
    if kept.steps < kept.total:
        left_out = (
            f" The page holds {kept.steps} of the {kept.total} steps that were kept: at most {most} of "
            "each text, and only as many as keep the page light."
        )
    return render(
        "stepper.html",
        note=NOTE + left_out,
        title=", ".join((shown["method"], shown["sampling"], f"prompt {shown['prompt']}")),
        first=Shown(first, STEPS_WITHOUT_SCRIPT),
        data=Markup(script_json(data)),
        script=Markup(asset("stepper.js")),
    )
