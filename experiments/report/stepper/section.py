"""The section of the report that replays real steps."""

from html import escape

from treespec.experiments.report.html import section
from treespec.experiments.report.run import Run
from treespec.experiments.report.stepper.html import (
    BUDGET,
    MOST_STEPS,
    asset,
    replay,
    script_json,
    static_html,
)
from treespec.experiments.report.stepper.steps import trails_of_run

__all__ = ["stepper_section"]

NOTE = (
    "Real steps of this run. The tree holds what was drafted, as text; · is a blank and ⏎ a new line. The "
    "accepted path is green, the token that the target added at its end is yellow, dashed; what is grey "
    "was rejected. Below it is the text so far."
)

START = """
for (const host of document.querySelectorAll("[data-steps]")) {
  mount(host, JSON.parse(document.getElementById(host.dataset.steps).textContent));
}
"""


def stepper_section(run: Run, budget: int = BUDGET, most: int = MOST_STEPS) -> str:
    """The stepper, its data and its script; without JavaScript, the first steps of one text as pictures.

    Args:
        run: whose steps; empty if it kept none.
        budget: bytes of the data.
        most: steps of each text.

    Raises:
        RunFolderError: if the kept trees are damaged.
    """
    trails = trails_of_run(run)
    found = replay(trails, budget, most)
    if not found.steps:
        return ""
    data = found.data()
    groups = [trail["group"] for trail in data["trails"]]
    data["first"] = groups.index("tree") if "tree" in groups else 0
    shown = data["trails"][data["first"]]
    names = ("prompt", "sampling", "method")
    first = next(t for t in trails if all(getattr(t, name) == shown[name] for name in names))
    left_out = ""
    if found.steps < found.total:
        left_out = (
            f" The page holds {found.steps} of the {found.total} steps that were kept: at most {most} of "
            "each text, and no more than keeps the page light."
        )
    title = f"{shown['method']}, {shown['sampling']}, prompt {shown['prompt']}"
    return section(
        "Step by step",
        f'<p class="muted">{escape(NOTE + left_out)}</p>'
        f'<div data-steps="steps-data"><p><strong>{escape(title)}</strong></p>{static_html(first)}</div>'
        f'<script type="application/json" id="steps-data">{script_json(data)}</script>'
        f'<script type="module">{asset("stepper.js")}{START}</script>',
    )
