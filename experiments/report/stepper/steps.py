"""Steps as text: drafted tokens, accepted tokens, and the text that results."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from markupsafe import Markup

from treespec.errors import TreespecError
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.html import render
from treespec.step import Step
from treespec.tree import TreeShape
from treespec.tree.pictures import columns, draw_step

MOST_LETTERS = 10

STEPS_WITHOUT_SCRIPT = 4
"""Number of steps shown as pictures to readers without JavaScript, and where the widget does not run."""


class Tokenizer(Protocol):
    """Anything that turns ids into text, such as a tokenizer of transformers."""

    def decode(self, token_ids: Any, /) -> Any: ...


UNIT = ("prompt", "sampling", "method", "repeat")


@dataclass(frozen=True)
class Snapshot:
    """One step with its tokens as text; the root's piece is the last token of the text so far.

    `kept` counts the accepted tokens that were kept, bonus included: fewer than all if the budget cut the
    last step.
    """

    shape: TreeShape
    pieces: tuple[str, ...]
    path: tuple[int, ...]
    bonus: str
    kept: int

    @property
    def emitted(self) -> tuple[str, ...]:
        return (*(self.pieces[node] for node in self.path[1:]), self.bonus)

    @property
    def said(self) -> str:
        drafted, accepted = self.shape.size - 1, len(self.path) - 1
        cut = "" if self.kept == accepted + 1 else f", {self.kept} kept: the text ends here"
        tokens = "1 token" if accepted == 0 else f"{accepted + 1} tokens"
        return f"{drafted} drafted, {accepted} accepted, 1 bonus: {tokens}{cut}"

    def svg(self, letters: int = 0) -> str:
        labels = [visible(piece) for piece in self.pieces]
        return draw_step(
            self.shape.children, labels, self.path, visible(self.bonus), letters=letters
        )


@dataclass(frozen=True)
class Trail:
    """The steps of one text, in order.

    `separator` stands between two pieces: a space if pieces are ids, else nothing. `before` is the text of
    the prompt, if known.
    """

    prompt: str
    sampling: str
    method: str
    group: str
    steps: tuple[Snapshot, ...]
    separator: str = ""
    before: str = ""

    @property
    def letters(self) -> int:
        pieces = (piece for step in self.steps for piece in (*step.pieces, step.bonus))
        return max((columns(visible(piece)) for piece in pieces), default=1)


@dataclass(frozen=True)
class Shown:
    """The first steps of a text as pictures, each with what it added to the text."""

    trail: Trail
    most: int = 12

    def _repr_html_(self) -> str:
        trail, letters = self.trail, self.trail.letters
        steps = [
            (Markup(step.svg(letters)), step.said, trail.separator.join(step.emitted[: step.kept]))
            for step in trail.steps[: self.most]
        ]
        return render("steps.html", steps=steps, more=len(trail.steps) - len(steps))


def visible(piece: str) -> str:
    """The text of a token as a node label, with visible white space; long texts are truncated.

    Example:
        >>> visible(" for"), visible(chr(10)), visible("internationalise")
        ('·for', '⏎', 'internati…')
    """
    shown = piece.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")
    shown = "".join(letter if letter.isprintable() else "�" for letter in shown)
    if columns(shown) <= MOST_LETTERS:
        return shown or "∅"
    while columns(shown) > MOST_LETTERS - 1:
        shown = shown[:-1]
    return shown + "…"


def show(steps: Step | Iterable[Step], tokenizer: Tokenizer | None = None) -> Shown:
    """Show steps of `treespec.decode` as pictures in a notebook, with tokens as text.

    Args:
        steps: one step, or the steps of one text in order.
        tokenizer: tokenizer of the models; without it, nodes show ids.
    """
    return Shown(trail_of(steps, tokenizer))


def trail_of(
    steps: Step | Iterable[Step], tokenizer: Tokenizer | None = None, method: str = ""
) -> Trail:
    """Convert steps of `treespec.decode` to text; without a tokenizer, pieces are ids."""

    @cache
    def piece(token: int) -> str:
        return str(token if tokenizer is None else tokenizer.decode([token]))

    snapshots = tuple(
        Snapshot(
            step.tree.shape,
            tuple(map(piece, step.tree.token_ids)),
            tuple(step.verdict.path),
            piece(step.verdict.bonus),
            len(step.tokens),
        )
        for step in ([steps] if isinstance(steps, Step) else steps)
    )
    group = "chain" if all(step.shape.is_chain for step in snapshots) else "tree"
    return Trail("", "", method, group, snapshots, " " if tokenizer is None else "")


def trails_of_run(run: RunRecords) -> list[Trail]:
    """The texts of a run whose steps were kept, ordered by prompt, repeat, sampling setting and method."""
    if not len(run.trees):
        return []
    names = run.prompts.select("prompt", "prompt_id").unique()
    kept = run.steps.select(*UNIT, "step", "kept")
    rows = run.trees.join(kept, on=[*UNIT, "step"], how="left").join(names, on="prompt", how="left")
    samplings = [s["name"] for s in run.manifest["samplings"]]
    methods = {m.name: m for m in run.methods}
    texts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.sort(*UNIT, "step").iter_rows(named=True):
        texts.setdefault(tuple(row[key] for key in UNIT), []).append(row)
    order = list(methods)
    ranks = {key: (key[0], key[3:], samplings.index(key[1]), order.index(key[2])) for key in texts}
    return [
        Trail(
            _prompt(texts[key][0]),
            key[1],
            key[2],
            methods[key[2]].group,
            tuple(_snapshots(run, texts[key])),
            before=run.prompt_text(key[0]),
        )
        for key in sorted(texts, key=ranks.__getitem__)
    ]


def _prompt(row: dict[str, Any]) -> str:
    """The name of a prompt, preceded by its number because names may repeat."""
    repeat = f", repeat {row['repeat'] + 1}" if row["repeat"] else ""
    return f"{row['prompt'] + 1}: {row['prompt_id']}{repeat}"


def _snapshots(run: RunRecords, rows: Sequence[dict[str, Any]]) -> Iterator[Snapshot]:
    for row in rows:
        path, pieces = tuple(row["path"]), tuple(row["pieces"])
        try:
            shape = TreeShape(tuple(row["parents"]))
            if shape.path(path[-1]) != path or len(pieces) != shape.size:
                raise IndexError(path)
        except (TreespecError, IndexError):
            where = f"{run.folder}, trees: {row['method']}, {row['sampling']}, step {row['step']}"
            raise RunFolderError(
                f"{where}: no tree with a path and a text for each node: start over with --fresh"
            ) from None
        kept = len(path) if row["kept"] is None else row["kept"]
        yield Snapshot(shape, pieces, path, row["bonus_piece"], kept)
