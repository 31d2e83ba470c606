"""The data that the stepper's JavaScript replays, and the section of the report that contains it."""

import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import takewhile
from typing import Any

from markupsafe import Markup

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.html import render
from treespec.experiments.report.stepper.steps import (
    STEPS_WITHOUT_SCRIPT,
    Shown,
    Snapshot,
    Trail,
    trails_of_run,
    visible,
)
from treespec.tree.pictures import draw_step

MOST_BYTES = 1_500_000
"""Maximum size of the data of a page in bytes; the rest is left out, and the page says so."""

MOST_STEPS = 64
"""Maximum number of steps per text, so that one long text does not use up the budget."""


class Replay:
    """The data of a stepper, as far as it fits into a budget of bytes, with at most `most` steps per text.

    Steps share drawings: a drawing depends on the tree and on the end of the accepted path, not on tokens,
    so a static tree needs only a few. Steps also share the texts of tokens.
    """

    def __init__(
        self, trails: Sequence[Trail], budget: int = MOST_BYTES, most: int = MOST_STEPS
    ) -> None:
        self._left, self._most = budget, most
        self._texts: dict[tuple[str, str], int] = {}
        self._trees: dict[str, int] = {}
        self._trails: list[dict[str, Any]] = []
        self._prompts: dict[str, str] = {}
        self.steps, self.total = 0, 0
        """Number of steps in the data, and number of steps given."""
        for trail in trails:
            self._add(trail)

    def _add(self, trail: Trail) -> None:
        self.total += len(trail.steps)
        letters = trail.letters
        fitting = (self._step(snapshot, letters) for snapshot in trail.steps[: self._most])
        steps = list(takewhile(lambda step: step is not None, fitting))
        if steps:
            self.steps += len(steps)
            if trail.before and trail.prompt not in self._prompts:
                self._prompts[trail.prompt] = trail.before
                self._left -= _bytes(trail.before)
            self._trails.append(
                {
                    "prompt": trail.prompt,
                    "sampling": trail.sampling,
                    "method": trail.method,
                    "group": trail.group,
                    "separator": trail.separator,
                    "total": len(trail.steps),
                    "steps": steps,
                }
            )

    def data(self) -> dict[str, Any]:
        """The data for `stepper.js`; `first`, the index of the text shown initially, is 0."""
        return {
            "texts": [list(text) for text in self._texts],
            "trees": list(self._trees),
            "prompts": self._prompts,
            "trails": self._trails,
            "first": 0,
        }

    def _step(self, snapshot: Snapshot, letters: int) -> list[Any] | None:
        """A step for `stepper.js`: drawing, texts of the nodes, path, bonus, kept tokens and summary.

        None if it does not fit into the budget.
        """
        shape, path = snapshot.shape, snapshot.path
        blank = [""] * shape.size
        svg = draw_step(shape.children, blank, path, "", letters=letters)
        texts = [(piece, visible(piece)) for piece in (*snapshot.pieces, snapshot.bonus)]
        new_texts = {text for text in texts if text not in self._texts}
        cost = 8 * (shape.size + len(path) + 3) + _bytes(snapshot.said)
        cost += sum(_bytes(text) + 1 for text in new_texts)
        cost += 0 if svg in self._trees else _bytes(svg)
        if cost > self._left:
            return None
        self._left -= cost
        *nodes, bonus = [self._texts.setdefault(text, len(self._texts)) for text in texts]
        tree = self._trees.setdefault(svg, len(self._trees))
        return [tree, nodes, list(path), bonus, snapshot.kept, snapshot.said]


def script_json(data: Any) -> str:
    """JSON that is safe in a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def _bytes(data: Any) -> int:
    return len(script_json(data).encode())


def asset(name: str) -> str:
    return files("treespec.experiments.report.stepper").joinpath(name).read_text(encoding="utf-8")


NOTE = (
    "Real steps of this run. The tree shows the drafted tokens as text; · is a space and ⏎ a new line. The "
    "accepted path is green, the token that the target added at its end is yellow with a dashed line, and "
    "rejected tokens are grey. Below the tree is the text so far, with the prompt in pale letters."
)


def stepper_section(run: RunRecords, most: int = MOST_STEPS) -> str:
    """The stepper with its data and script; without JavaScript, the first steps of one text as pictures.

    Empty if the run kept no steps.
    """
    trails = trails_of_run(run)
    kept = Replay(trails, most=most)
    if not kept.steps:
        return ""
    data = kept.data()
    groups = [trail["group"] for trail in data["trails"]]
    data["first"] = groups.index("tree") if "tree" in groups else 0
    shown = data["trails"][data["first"]]
    method, sampling, prompt = shown["method"], shown["sampling"], shown["prompt"]
    first = next(
        t for t in trails if (t.method, t.sampling, t.prompt) == (method, sampling, prompt)
    )
    note = NOTE
    if kept.steps < kept.total:
        note += (
            f" The page holds {kept.steps} of the {kept.total} steps that were kept: at most {most} per "
            "text, and only as many as keep the page small."
        )
    return render(
        "stepper.html",
        note=note,
        title=f"{method}, {sampling}, prompt {prompt}",
        first=Shown(first, STEPS_WITHOUT_SCRIPT),
        data=Markup(script_json(data)),
        script=Markup(asset("stepper.js")),
    )
