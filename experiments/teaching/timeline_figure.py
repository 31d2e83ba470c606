"""The timeline as a picture: a lane for each method, and above each step the tokens that it brought."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treespec.experiments.report.figure_style import INK, MUTED, PAGE, STAGE_COLOURS, panels_beside
from treespec.experiments.report.stepper.steps import visible
from treespec.experiments.teaching.timeline import DRAFT_PASS, Brought, Lane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["shown_text", "timeline_figure"]

WIDTH, LINE = 10.0, 0.17
"""Inches: of the figure, and of a line of text."""

LETTER = 0.068
"""Inches of a letter."""

FONT = {"family": "monospace", "fontsize": 7.5}

GUESSED, OWN = "#cfeadd", "#e3e6ea"
"""Tokens that the draft had guessed, and those of the target's own; legible under dark ink."""

ROWS = {"verify": 0, "accept": 0, "commit": 0, "draft": 1, DRAFT_PASS: 1}
"""The target's row, and the draft's below it. The stages after the pass belong to the target's."""

NAMES = {
    "verify": "target's pass",
    DRAFT_PASS: "draft's pass",
    "draft": "rest of drafting",
    "accept": "acceptance",
    "commit": "commit",
}

BAR, GAP = 1.15, 1.3
"""Height of a row of bars, and room between two lanes, in lines."""


def timeline_figure(lanes: Sequence[Lane]) -> "Figure":
    """All lanes on one axis of time.

    Args:
        lanes: as `watch` or `recorded` give them.
    """
    from matplotlib.patches import Patch

    longest = max(lane.seconds for lane in lanes)
    heights = [_lines(lane) + _bars(lane) * BAR + 1.1 for lane in lanes]
    total = sum(heights) + GAP * (len(lanes) - 1)
    with panels_beside(1, WIDTH, LINE * (total + 6)) as (figure, (axes,)):
        letters = (WIDTH - 1.1) / LETTER / longest
        top = 0.0
        for lane, height in zip(lanes, heights, strict=True):
            _draw_lane(axes, lane, top, letters)
            top += height + GAP
        axes.set(xlim=(0, 1e3 * longest * 1.005), ylim=(total, -0.3))
        axes.set_xlabel("milliseconds since the prompt was read")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        used = {span.stage for lane in lanes for span in lane.spans}
        handles = [
            Patch(facecolor=_colour(stage), label=name)
            for stage, name in NAMES.items()
            if stage in used
        ]
        handles += [
            Patch(facecolor=GUESSED, label="token that the draft guessed"),
            Patch(facecolor=OWN, label="token of the target's own"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.2)
    return figure


def shown_text(text: str, letters: int) -> str:
    """A token in so many letters: white space can be seen, and what is longer is cut.

    Example:
        >>> shown_text(" return", 8), shown_text(" return", 4)
        ('·return', '·re…')
    """
    shown = visible(text)
    return shown if len(shown) <= letters else shown[: max(letters - 1, 0)] + "…"


def _draw_lane(axes: "Axes", lane: Lane, top: float, letters: float) -> None:
    """One lane, from this line down; `letters` fit in a second."""
    bars = top + 1.1 + _lines(lane)
    rate = f"{lane.tokens} tokens in {1e3 * lane.seconds:.0f} ms, {len(lane.steps)} passes of the target"
    axes.text(0, top + 0.5, lane.name, weight="bold", va="center", fontsize=10, color=INK)
    axes.text(1, top + 0.5, rate, va="center", ha="right", fontsize=9, color=MUTED,
              transform=axes.get_yaxis_transform())  # fmt: skip
    for span in lane.spans:
        if ROWS[span.stage] >= _bars(lane):
            continue
        row = bars + ROWS[span.stage] * BAR
        edge = 0.5 if span.stage == DRAFT_PASS else 0.0  # so that passes can be counted
        axes.barh(row, 1e3 * span.seconds, left=1e3 * span.start, height=BAR * 0.86, align="edge",
                  color=_colour(span.stage), edgecolor=PAGE, linewidth=edge)  # fmt: skip
    for step in lane.steps:
        _draw_tokens(axes, step, bars, letters)


def _draw_tokens(axes: "Axes", step: Brought, bars: float, letters: float) -> None:
    """A step's tokens as a stack that stands on its bars, the first one on top."""
    gap = 0.06 * (step.end - step.start)
    left, width = 1e3 * (step.start + gap), 1e3 * (step.end - step.start - 2 * gap)
    fit = int(letters * (step.end - step.start - 2 * gap))
    for place, text in enumerate(step.texts):
        line = bars - len(step.texts) + place
        axes.barh(line + 0.06, width, left=left, height=0.86, align="edge", linewidth=0,
                  color=GUESSED if place < step.guessed else OWN)  # fmt: skip
        axes.text(left + width / 2, line + 0.5, shown_text(text, fit), ha="center",
                  va="center_baseline", color=INK, **FONT)  # fmt: skip
    axes.plot([1e3 * step.end] * 2, [bars - len(step.texts), bars + BAR * 0.86], color=MUTED,
              linewidth=0.7)  # fmt: skip


def _lines(lane: Lane) -> int:
    """Tokens of the step that brought most."""
    return max(len(step.texts) for step in lane.steps)


def _bars(lane: Lane) -> int:
    """Rows of bars: no row for a draft that is not there."""
    return 2 if lane.total(DRAFT_PASS) or lane.total("draft") > 0.02 * lane.seconds else 1


def _colour(stage: str) -> str:
    """Of a stage; drafting beside the passes is paler than these."""
    from matplotlib.colors import to_hex, to_rgb

    if stage != "draft":
        return STAGE_COLOURS["draft" if stage == DRAFT_PASS else stage]
    page, drafting = to_rgb(PAGE), to_rgb(STAGE_COLOURS["draft"])
    red, green, blue = (0.6 * p + 0.4 * o for p, o in zip(page, drafting, strict=True))
    return to_hex((red, green, blue))
