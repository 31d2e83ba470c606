"""The timeline as a figure: a lane for each method, and above each step its tokens."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from treespec.experiments.report.figure_style import INK, MUTED, PAGE, STAGE_COLOURS, panels_beside
from treespec.experiments.report.stepper.steps import visible
from treespec.experiments.teaching.timeline import DRAFT_PASS, Brought, Lane

WIDTH, LINE = 10.0, 0.17
"""Width of the figure and height of a line of text, in inches."""

LETTER = 0.068
"""Width of a character, in inches."""

FONT = {"family": "monospace", "fontsize": 7.5}

GUESSED, OWN = "#cfeadd", "#e3e6ea"
"""Colours of tokens guessed by the draft and of the target's own tokens; both suit dark text."""

ROWS = {"verify": 0, "accept": 0, "commit": 0, "draft": 1, DRAFT_PASS: 1}
"""Row of each stage: the target's, with the stages after its pass, and the draft's below it."""

NAMES = {
    "verify": "target's pass",
    DRAFT_PASS: "draft's pass",
    "draft": "rest of drafting",
    "accept": "acceptance",
    "commit": "commit",
}

BAR, GAP = 1.15, 1.3
"""Height of a row of bars, and gap between two lanes, in lines of text."""


def timeline_figure(lanes: Sequence[Lane]) -> Figure:
    longest = max(lane.seconds for lane in lanes)
    heights = [_lines(lane) + _bars(lane) * BAR + 1.1 for lane in lanes]
    total = sum(heights) + GAP * (len(lanes) - 1)
    with panels_beside(1, WIDTH, LINE * (total + 6)) as (figure, (axes,)):
        letters_per_second = (WIDTH - 1.1) / LETTER / longest
        top = 0.0
        for lane, height in zip(lanes, heights, strict=True):
            _draw_lane(axes, lane, top, letters_per_second)
            top += height + GAP
        axes.set(xlim=(0, 1e3 * longest * 1.005), ylim=(total, -0.3))
        axes.set_xlabel("milliseconds since the prompt was read")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        stages = {span.stage for lane in lanes for span in lane.spans}
        handles = [
            Patch(facecolor=_colour(stage), label=name)
            for stage, name in NAMES.items()
            if stage in stages
        ]
        handles += [
            Patch(facecolor=GUESSED, label="token guessed by the draft"),
            Patch(facecolor=OWN, label="the target's own token"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.2)
    return figure


def shown_text(text: str, letters: int) -> str:
    """The text of a token in at most `letters` characters, with visible white space.

    Example:
        >>> shown_text(" return", 8), shown_text(" return", 4)
        ('·return', '·re…')
    """
    shown = visible(text)
    return shown if len(shown) <= letters else shown[: max(letters - 1, 0)] + "…"


def _draw_lane(axes: Axes, lane: Lane, top: float, letters_per_second: float) -> None:
    """Draw one lane from the line `top` downwards."""
    bars = top + 1.1 + _lines(lane)
    rate = f"{lane.tokens} tokens in {1e3 * lane.seconds:.0f} ms, {len(lane.steps)} passes of the target"
    axes.text(0, top + 0.5, lane.name, weight="bold", va="center", fontsize=10, color=INK)
    axes.text(1, top + 0.5, rate, va="center", ha="right", fontsize=9, color=MUTED,
              transform=axes.get_yaxis_transform())  # fmt: skip
    for span in lane.spans:
        if ROWS[span.stage] >= _bars(lane):
            continue
        row = bars + ROWS[span.stage] * BAR
        edge = 0.5 if span.stage == DRAFT_PASS else 0.0  # makes passes countable
        axes.barh(row, 1e3 * span.seconds, left=1e3 * span.start, height=BAR * 0.86, align="edge",
                  color=_colour(span.stage), edgecolor=PAGE, linewidth=edge)  # fmt: skip
    for step in lane.steps:
        _draw_tokens(axes, step, bars, letters_per_second)


def _draw_tokens(axes: Axes, step: Brought, bars: float, letters_per_second: float) -> None:
    """Draw the tokens of a step as a stack above its bars, the first one on top."""
    gap = 0.06 * (step.end - step.start)
    left, width = 1e3 * (step.start + gap), 1e3 * (step.end - step.start - 2 * gap)
    letters = int(letters_per_second * (step.end - step.start - 2 * gap))
    for index, text in enumerate(step.texts):
        line = bars - len(step.texts) + index
        axes.barh(line + 0.06, width, left=left, height=0.86, align="edge", linewidth=0,
                  color=GUESSED if index < step.guessed else OWN)  # fmt: skip
        axes.text(left + width / 2, line + 0.5, shown_text(text, letters), ha="center",
                  va="center_baseline", color=INK, **FONT)  # fmt: skip
    axes.plot([1e3 * step.end] * 2, [bars - len(step.texts), bars + BAR * 0.86], color=MUTED,
              linewidth=0.7)  # fmt: skip


def _lines(lane: Lane) -> int:
    """Height of the token stacks: the largest number of tokens in a step."""
    return max(len(step.texts) for step in lane.steps)


def _bars(lane: Lane) -> int:
    return 2 if lane.total(DRAFT_PASS) or lane.total("draft") > 0.02 * lane.seconds else 1


def _colour(stage: str) -> str:
    """The colour of a stage; drafting outside the passes is paler than the passes."""
    if stage != "draft":
        return STAGE_COLOURS["draft" if stage == DRAFT_PASS else stage]
    page, draft = to_rgb(PAGE), to_rgb(STAGE_COLOURS["draft"])
    red, green, blue = (0.6 * p + 0.4 * d for p, d in zip(page, draft, strict=True))
    return to_hex((red, green, blue))
