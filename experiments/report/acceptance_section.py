"""The section of the report on acceptance by depth and rank."""

from collections.abc import Mapping
from html import escape

from treespec.experiments.report.acceptance import LevelAcceptance, NodeAcceptance
from treespec.experiments.report.html import section, table
from treespec.experiments.report.measurements import samplings_of
from treespec.experiments.report.run import Method, Run

__all__ = ["acceptance_section"]

FEW = 20
"""Fewer tries are shown without an interval."""

NOTE = (
    "In each cell: of the steps whose accepted path came to this depth, the share that accepted a child "
    "there, ± half of its 95 % interval over prompts; below it, of the same steps, the shares of the "
    "first, second, ... child, which add up to it; and how many steps came so far. A chain has one child "
    "a node. "
    "Trees that grow by what the draft says have no fixed ranks and are left out."
)


def acceptance_section(run: Run, counts: Mapping[tuple[str, str], NodeAcceptance]) -> str:
    """A row for each method with a fixed tree and a column for each depth, by sampling setting.

    Args:
        run: whose report it is.
        counts: as `count_all` gives them.
    """
    parts = []
    for sampling in samplings_of(run):
        counted = [
            (method, counts[sampling, method.name].levels)
            for method in run.methods
            if (sampling, method.name) in counts
        ]
        deepest = max((len(levels) for _, levels in counted), default=0)
        if not deepest:
            continue
        rows = [
            [
                f'<span class="{method.group}">{escape(method.name)}</span>',
                *(_cell(method, level) for level in levels),
                *[""] * (deepest - len(levels)),
            ]
            for method, levels in counted
        ]
        heads = ["method", *(f"depth {depth}" for depth in range(1, deepest + 1))]
        parts.append(table(heads, rows, sampling))
    if not parts:
        return ""
    note = f'<p class="muted">{escape(NOTE)}</p>'
    return section("Acceptance by depth and rank", "".join(parts) + note)


def _cell(method: Method, level: LevelAcceptance) -> str:
    if not level.tries:
        return '<span class="muted">–</span>'
    share = level.share
    spread = ""
    if level.tries >= FEW and share.bounded and not share.exact:
        spread = f" <small>± {100 * share.half_width:.0f}</small>"
    ranks = " + ".join(f"{100 * part:.0f}" for part in level.by_rank)
    below = f"{ranks} · {level.tries}" if len(level.by_rank) > 1 else f"{level.tries}"
    # half of the colour at most, so that text on it stays legible
    mixed = f"color-mix(in srgb, var(--{method.group}) {50 * share.estimate:.0f}%, transparent)"
    return (
        f'<span class="heat" style="background:{mixed}">{100 * share.estimate:.0f} %{spread}<br>'
        f"<small>{below}</small></span>"
    )
