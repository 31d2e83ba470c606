"""The style of figures: colours with one meaning each that colour-blind readers can tell apart, no clutter.

The colours are those of Okabe and Ito. Pages replace them by CSS variables (`PALETTE`), so that an inlined
SVG follows light and dark mode; the files on disk are meant for a white background.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Keep = Callable[[Path, bytes], object]

INK = "#1b1e23"
MUTED = "#6b7078"
GRID = "#dcdfe4"
PAGE = "#ffffff"

GROUP_COLOURS = {
    "plain": "#74797f",
    "undrafted": "#4f5359",
    "assisted": "#d55e00",
    "chain": "#0072b2",
    "tree": "#009e73",
}
GROUP_MARKERS = {"plain": "s", "undrafted": "P", "assisted": "D", "chain": "o", "tree": "^"}
GROUP_NAMES = {
    "plain": "plain decoding",
    "undrafted": "no draft (by search)",
    "assisted": "assisted generation",
    "chain": "our chains",
    "tree": "our trees",
}
STAGE_COLOURS = {
    "draft": "#e69f00",
    "verify": "#56b4e9",
    "accept": "#cc79a7",
    "commit": "#4c4f8c",
    "other": "#b4b8be",
}

PALETTE = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    **{colour: f"--{name}" for name, colour in GROUP_COLOURS.items()},
    PAGE: "--page",
}
"""CSS variables of the colours that a page may replace; the other colours suit light and dark mode."""

WIDTH = 6.0
"""Width of a figure in inches; narrow, so that text stays legible when a phone shrinks the picture."""

LETTERS = 10.5
"""Size of letters in points; heights are meant for letters of this size."""

SMALL = 9.5 / LETTERS


def drawing(width: float = WIDTH, letters: float = LETTERS) -> AbstractContextManager[None]:
    """Context in which figures are drawn in our style, of this width in inches, with letters in points.

    Draws to files only; no window is ever opened.
    """
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
        "font.size": letters,
        "text.parse_math": False,
        "axes.labelsize": letters,
        "axes.titlesize": letters,
        "figure.labelsize": letters,
        "legend.fontsize": SMALL * letters,
        "figure.figsize": (width, width),
        "lines.markersize": letters * 4 / 7,
        "pdf.fonttype": 42,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": MUTED,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "treespec",
        "figure.constrained_layout.use": True,
    }
    return rc_context(settings)


def wrapped(name: str, share: float, size: float = 1.0) -> str:
    """Wrap a name at spaces and hyphens, and within a word if necessary.

    `share` is the maximum width of a line, over that of the figure; `size` that of the letters over the
    usual one.

    Example:
        >>> print(wrapped("expansion 3-2-1-1-1", 0.16))
        expansion
        3-2-1-1-1
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size * rcParams["font.size"])
    width, _, _ = text_to_path.get_text_width_height_descent(
        " ".join(name.split()), font, ismath=False
    )
    room = 72 * share * rcParams["figure.figsize"][0]
    letters = int(len(name) * room / width) if width else len(name)
    return "\n".join(textwrap.wrap(name, max(1, letters))) or name


def clean(axes: "Axes", grid: str = "x") -> None:
    axes.grid(visible=True, axis=grid)  # pyrefly: ignore[bad-argument-type]
    axes.tick_params(length=0)


def by_powers(axes: "Axes", ticks: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)
    clean(axes, "y")


@contextmanager
def panels_beside(
    count: int, width: float, height: float, *, sharey: bool = False
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """A figure in inches with panels side by side; the layout is computed when the block ends."""
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(width, height))
        yield figure, list(figure.subplots(1, count, sharey=sharey, squeeze=False)[0])
        figure.draw_without_rendering()


def write_file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, content)


def save(figure: "Figure", folder: Path, name: str, keep: Keep = write_file) -> Path:
    """Write `name.svg` (transparent) and `name.png` (on white) with `keep`; return the path of the SVG."""
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    # keep the layout instead of computing it again
    figure.set_layout_engine("none")
    figure.savefig(png, format="png", dpi=160, facecolor=PAGE)
    keep(folder / f"{name}.png", png.getvalue())
    keep(folder / f"{name}.svg", svg.getvalue())
    return folder / f"{name}.svg"


def inline_svg(path: Path) -> str:
    """Read an SVG written by `save` for inlining: colours become CSS variables, ids get a prefix."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="|href="#|url\(#', rf"\g<0>{path.stem}-", text)
    for colour, variable in PALETTE.items():
        text = re.sub(colour, f"var({variable})", text, flags=re.IGNORECASE)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg height="[^"]*" ', r"<svg \1", text, count=1
    )
