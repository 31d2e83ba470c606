"""The data that the stepper's JavaScript replays, and the section of the report that contains it."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.html import render
from treespec.experiments.report.stepper.steps import (
    STEPS_WITHOUT_SCRIPT,
    Shown,
    Trail,
    trails_of_run,
    visible,
)
from treespec.tree.pictures import draw_step

MOST_BYTES = 1_500_000
"""Maximum size of the data of a page in bytes; the rest is left out, and the page says so."""

MOST_STEPS = 64
"""Maximum number of steps per text, so that one long text does not use up the budget."""


def replay_data(
    trails: Sequence[Trail], budget: int = MOST_BYTES, most: int = MOST_STEPS
) -> dict[str, Any]:
    """The data for `stepper.js`, as far as a budget of bytes allows, with at most `most` steps per text.

    A step is its drawing, texts of the nodes, path, bonus, kept tokens and summary. Steps share drawings: a
    drawing depends on the tree and on the end of the accepted path, not on tokens, so a static tree needs
    only a few. Steps also share the texts of tokens. `first` is the index of the text shown initially.
    """
    texts: dict[tuple[str, str], int] = {}
    trees: dict[str, int] = {}
    prompts: dict[str, str] = {}
    shown: list[dict[str, Any]] = []
    for trail in trails:
        letters, steps = trail.letters, []
        for step in trail.steps[:most]:
            shape, path = step.shape, step.path
            svg = draw_step(shape.children, [""] * shape.size, path, "", letters=letters)
            pieces = [(piece, visible(piece)) for piece in (*step.pieces, step.bonus)]
            cost = 8 * (shape.size + len(path) + 3) + _bytes(step.said)
            cost += sum(_bytes(text) + 1 for text in {text for text in pieces if text not in texts})
            cost += 0 if svg in trees else _bytes(svg)
            if cost > budget:
                break
            budget -= cost
            *nodes, bonus = [texts.setdefault(text, len(texts)) for text in pieces]
            tree = trees.setdefault(svg, len(trees))
            steps.append([tree, nodes, list(path), bonus, step.kept, step.said])
        if not steps:
            continue
        if trail.before and trail.prompt not in prompts:
            prompts[trail.prompt] = trail.before
            budget -= _bytes(trail.before)
        named = ("prompt", "sampling", "method", "group", "separator")
        about = {name: getattr(trail, name) for name in named}
        shown.append(about | {"total": len(trail.steps), "steps": steps})
    return {
        "texts": [list(text) for text in texts],
        "trees": list(trees),
        "prompts": prompts,
        "trails": shown,
        "first": 0,
    }


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
    data = replay_data(trails, most=most)
    if not data["trails"]:
        return ""
    groups = [trail["group"] for trail in data["trails"]]
    data["first"] = groups.index("tree") if "tree" in groups else 0
    shown = data["trails"][data["first"]]
    method, sampling, prompt = shown["method"], shown["sampling"], shown["prompt"]
    first = next(
        t for t in trails if (t.method, t.sampling, t.prompt) == (method, sampling, prompt)
    )
    note = NOTE
    held = sum(len(trail["steps"]) for trail in data["trails"])
    total = sum(len(trail.steps) for trail in trails)
    if held < total:
        note += (
            f" The page holds {held} of the {total} steps that were kept: at most {most} per "
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
