"""Traces: the accepted child at every position of texts, so that any static tree can be replayed.

A trace's file is an .npz archive of plain arrays, one of which holds the metadata as JSON:

    offsets, tokens, ranks, probs, accepted, kept    as in `Trace`; probabilities in float32
    files                                            as in `Trace`; only if texts share files
    target_best, draft_best                          as in `Trace`; only above temperature 0
    path_ranks                                       as in `Trace`; only of trained heads
    draft_row_*, text_draft_*                        as in `DraftRows` and `TextDrafts`; only if the trace
                                                     has them
    meta                                             uint8, UTF-8 JSON: version, law, rule, sampling, width,
                                                     forced, about

Traces with `text_drafts` are version 2; all others are version 1.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import AfterValidator, ConfigDict

from treespec.checks import integer
from treespec.errors import InvalidTree, Unreadable
from treespec.files import read_arrays, write_whole
from treespec.reading_models import Strict, read_model, with_new_names
from treespec.search.errors import InvalidTrace
from treespec.search.traces.draft_rows import DraftRows, numbers_of, whole_numbers
from treespec.search.traces.sampling_names import is_greedy
from treespec.search.traces.text_drafts import TextDrafts
from treespec.tree import Law

TOLERANCE = 1e-4
"""How far above 1 the probabilities of a position may sum: they may come from float32 or half precision."""

VERSION = 2
"""Latest version of the file."""

_ARRAYS = {
    "offsets": "<i8", "tokens": "<i4", "ranks": "<i4", "probs": "<f4", "accepted": "<f4",
    "kept": "<i8", "meta": "|u1",
}  # fmt: skip
_ROW_ARRAYS = {
    "draft_row_offsets": "<i8", "draft_row_parents": "<i4", "draft_row_ranks": "<i4",
    "draft_row_probs": "<f4", "draft_row_text_ranks": "<i4",
}  # fmt: skip
"""Arrays of a trace with draft rows; files without draft rows, such as older ones, have none of them."""

_TEXT_ARRAYS = {
    "text_draft_drafts": "<i8", "text_draft_nodes": "<i8", "text_draft_seen": "<i8",
    "text_draft_most": "<i8", "text_draft_parents": "<i4", "text_draft_tokens": "<i4",
    "text_draft_counts": "<i4", "text_draft_limits": "<i8",
}  # fmt: skip
"""Arrays of a trace of a text source."""

_FILES = {"files": "<i8"}
"""Array of a trace of excerpts; older files, and those whose texts are not excerpts, lack it."""

_BEST = {"target_best": "<i4", "draft_best": "<i4"}
"""Arrays of a trace above temperature 0; older files lack them."""

_PATHS = {"path_ranks": "<i4"}
"""Array of a trace of a trained head."""

_PARTS: dict[str, tuple[dict[str, str], str, Callable[..., Any]]] = {
    "draft_rows": (_ROW_ARRAYS, "draft_row_", DraftRows),
    "text_drafts": (_TEXT_ARRAYS, "text_draft_", TextDrafts),
}
"""Optional parts of a trace, by field: their arrays, the prefix of the arrays' names, and their class."""


@dataclass(frozen=True, eq=False)
class Trace:
    """The child that was accepted at every position of texts, for trees of up to `width` children a node.

    Traces are recorded during plain decoding (ours; the idea of positional acceptance is Sequoia's,
    arXiv:2402.12374): at each position, `width` children are drawn from the draft's distribution, and the
    rule decides over them alone. The emitted token is appended to the text, and its rank among the children
    to `ranks`. This serves every static tree, for rules that try the children in order and whose acceptance
    of one does not depend on how many follow it: with k < width children, a rank below k is accepted as
    before, and otherwise the emitted token has exactly the law of the target's residual after k rejections,
    from which the bonus is drawn. So the text is valid for every tree. Under a rule that depends on all
    siblings (`Scope.SIBLINGS`, such as kseq) it is valid for trees whose nodes have `width` children or
    none.

    Args:
        offsets: `[texts + 1]`; positions of text i are `offsets[i]` up to, not including, `offsets[i + 1]`.
        tokens: `[T]`, the text's token at each position.
        ranks: `[T]`, rank of the child that is this token, from 0; `width` if no child is.
        probs: `[T, width]`, the draft's probability of each child given the text before it. For children
            chosen deterministically at temperature 0, their probability at temperature 1.
        accepted: `[T, width]`, the exact probability, given the children, that this one is accepted; if the
            rule has no formula for it, 1 for the accepted child and 0 for the others.
        law: how children were drawn.
        rule: how they were accepted.
        sampling: the settings by name, such as `{"temperature": 0.8, "top_p": 0.9}`.
        width: children at each position.
        forced: whether the texts were given instead of decoded by the target: it is known what would have
            been accepted at each position, but the text may continue differently. No step can be replayed.
        about: models, prompts, seeds, versions, hardware; plain data.
        kept: `[texts]`, the number of positions of each text that decoding keeps (up to the budget and the
            stop token); all by default. Later positions only serve steps that begin before the end and
            reach beyond it.
        files: `[texts]`, a number for the file that each text is an excerpt of. Excerpts of one file are
            alike, and count as one text where texts are resampled or left out. By default texts are not
            excerpts.
        draft_rows: the draft's probabilities off the texts' path, for growths
            (`treespec.search.choice.growth_replay`); None if they were not recorded.
        target_best: `[T]`, the target's best token at each position, under the sampling setting; None at
            temperature 0, where it is the text's, and in older traces.
        draft_best: `[T]`, the draft's best token, -1 where it drafts nothing; given with `target_best`.
        path_ranks: `[T, levels]`, for a draft whose rows depend on where its tree is rooted (a trained
            head's): in the tree that is rooted at each position, the rank of the text's next tokens, each
            below the one before; `width` from where the tree does not go on along the text, or the text
            ends. None where rows depend on the text alone: then the ranks are those of later positions.
        text_drafts: the complete drafts of a text source at every position; None for a draft model. With
            them, ranks, probs and accepted are those of the root's children within the recorded limits, and
            budgets can be replayed (`treespec.search.traces.replay`), but no given tree.

    Raises:
        InvalidTrace: if the parts are inconsistent, or hold invalid probabilities or ranks.
    """

    offsets: Int[np.ndarray, "texts_1"]
    tokens: Int[np.ndarray, "T"]
    ranks: Int[np.ndarray, "T"]
    probs: Float[np.ndarray, "T width"]
    accepted: Float[np.ndarray, "T width"]
    law: str
    rule: str
    sampling: Mapping[str, Any]
    width: int
    forced: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    kept: Int[np.ndarray, "texts"] | None = None
    files: Int[np.ndarray, "texts"] | None = None
    draft_rows: DraftRows | None = None
    text_drafts: TextDrafts | None = None
    target_best: Int[np.ndarray, "T"] | None = None
    draft_best: Int[np.ndarray, "T"] | None = None
    path_ranks: Int[np.ndarray, "T levels"] | None = None

    def __post_init__(self) -> None:
        """Copy and check all arrays."""
        for name in ("probs", "accepted"):
            object.__setattr__(self, name, numbers_of(name, getattr(self, name)))
        for name in ("offsets", "tokens", "ranks", "kept", "files", *_BEST):
            values = getattr(self, name)
            if name == "kept" and values is None:
                values = np.diff(self.offsets)
            if values is not None:
                object.__setattr__(self, name, whole_numbers(name, values))
        if self.path_ranks is not None:
            below = whole_numbers("path_ranks", self.path_ranks, axes=2)
            object.__setattr__(self, "path_ranks", below)
        offsets, count = self.offsets, len(self.tokens)
        if len(offsets) < 2:
            raise InvalidTrace("a trace holds at least one text: offsets = [0, positions]")
        if offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 1).any():
            raise InvalidTrace(
                f"offsets must rise from 0 to the number of positions, {count}, and no text may be empty: "
                f"{offsets[:4].tolist()} ... {int(offsets[-1])}"
            )
        self._check()

    def _check(self) -> None:
        object.__setattr__(self, "width", integer("width", self.width, 1, InvalidTrace))
        try:
            Law.of(self.law)
        except InvalidTree as error:
            raise InvalidTrace(str(error)) from None
        count = len(self.tokens)
        for name, shape in (
            ("ranks", (count,)), ("probs", (count, self.width)), ("accepted", (count, self.width)),
            ("kept", (self.texts,)), ("files", (self.texts,)),
            ("target_best", (count,)), ("draft_best", (count,)),
        ):  # fmt: skip
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InvalidTrace(
                    f"{name} has shape {list(array.shape)}, but {self.texts} texts with "
                    f"{count} positions and {self.width} children each need {list(shape)}"
                )
        if count and not (self.ranks.min() >= 0 and self.ranks.max() <= self.width):
            raise InvalidTrace(
                f"ranks must be in 0..{self.width} ({self.width}: none of the children)"
            )
        below = self.path_ranks
        if below is not None and (
            not below.shape[1]
            or not np.array_equal(below[:, 0], self.ranks)
            or not ((below >= 0) & (below <= self.width)).all()
        ):
            raise InvalidTrace(
                f"path_ranks must hold a row of ranks in 0..{self.width} for each of {count} positions, "
                "each beginning with the position's rank in ranks"
            )
        if (self.target_best is None) != (self.draft_best is None):
            raise InvalidTrace("target_best and draft_best are given together, or neither")
        if count and self.tokens.min() < 0:
            raise InvalidTrace(f"tokens hold {self.tokens.min()}, but ids start at 0")
        for name in ("probs", "accepted"):
            array = getattr(self, name)
            if not ((array >= 0) & (array <= 1 + TOLERANCE)).all():  # refuses NaN, too
                raise InvalidTrace(f"{name} must hold probabilities in [0, 1]")
        if (self.accepted.sum(axis=1) > 1 + TOLERANCE).any():
            raise InvalidTrace(
                "accepted sums to more than 1 at a position, but at most one child is accepted"
            )
        for name in ("draft_rows", "text_drafts"):
            part = getattr(self, name)
            if part is not None and part.positions != count:
                raise InvalidTrace(
                    f"{name} has {part.positions} positions, but the texts have {count}"
                )
        if not ((self.text_kept >= 1) & (self.text_kept <= np.diff(self.offsets))).all():
            raise InvalidTrace("kept must be at least 1 and at most the positions of each text")

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.offsets) - 1

    @property
    def text_kept(self) -> Int[np.ndarray, "texts"]:
        """`kept`, which is never None after construction."""
        assert self.kept is not None
        return self.kept

    @property
    def levels(self) -> int | None:
        """Levels of trees that can be replayed; None if the lengths of texts alone limit them."""
        return None if self.path_ranks is None else self.path_ranks.shape[1]

    def ranks_below(self, starts: Int[np.ndarray, "S"], level: int) -> Int[np.ndarray, "S"]:
        """The rank of the text's token at a level of trees that are rooted at these positions."""
        return (
            self.ranks[starts + level]
            if self.path_ranks is None
            else self.path_ranks[starts, level]
        )

    def accepted_below(
        self, starts: Int[np.ndarray, "S"], level: int
    ) -> Float[np.ndarray, "S width"]:
        """The probability that each child of the text's node at a level of such trees is accepted."""
        if self.path_ranks is None:
            return self.accepted[starts + level]
        return (self.path_ranks[starts, level, None] == np.arange(self.width)).astype(np.float64)

    def require_levels(self, depth: int) -> None:
        """Refuse trees that are deeper than was recorded.

        Raises:
            InvalidTrace: if the depth exceeds `levels`.
        """
        if self.levels is not None and depth > self.levels:
            raise InvalidTrace(
                f"a tree of depth {depth} was asked for, but the trace holds the trained head's rows at "
                f"{self.levels} levels below each position: record it again with --beam-depth {depth}, if "
                "the head drafts as deep"
            )

    @property
    def greedy(self) -> bool:
        """Whether the texts were decoded at temperature 0."""
        return is_greedy(self.sampling)

    @cached_property
    def file_of(self) -> Int[np.ndarray, "texts"]:
        """The index of each text's file, from 0; that of the text itself if texts are not excerpts."""
        if self.files is None:
            return np.arange(self.texts)
        return np.unique(self.files, return_inverse=True)[1]

    @cached_property
    def samples(self) -> int:
        """Number of texts that count as independent: of files, if several texts are excerpts of one."""
        return int(self.file_of.max()) + 1

    @cached_property
    def inside(self) -> Bool[np.ndarray, "T"]:
        """Whether each position is kept, that is, not beyond the end of its text."""
        starts = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        ends = starts + np.repeat(self.text_kept, np.diff(self.offsets))
        return np.arange(len(self.tokens)) < ends

    @cached_property
    def ends(self) -> Int[np.ndarray, "T"]:
        """The end of the text that each position belongs to."""
        return np.repeat(self.offsets[1:], np.diff(self.offsets))

    @cached_property
    def text_of(self) -> Int[np.ndarray, "T"]:
        """The text that each position belongs to."""
        return np.repeat(np.arange(self.texts), np.diff(self.offsets))

    def save(self, path: Path | str) -> Path:
        """Write an .npz file of arrays and JSON.

        An existing file is replaced once the new one is complete. Probabilities are rounded to float32.

        Raises:
            InvalidTrace: if `about` or `sampling` is not plain data, or the path cannot be written.
        """
        content = self.to_bytes()
        try:
            return write_whole(Path(path), content)
        except OSError as error:
            raise InvalidTrace(f"{path} cannot be written: {error.strerror}") from None

    def to_bytes(self) -> bytes:
        """The content of the file that `save` writes."""
        return _packed({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        """Read a file that `save` wrote. Nothing in the file is ever executed.

        Raises:
            InvalidTrace: if the file is not a valid trace.
        """
        arguments = _unpacked(Path(path))
        try:
            return cls(**arguments)
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None


def _readable(version: int) -> int:
    if version > VERSION:
        raise ValueError(
            f"this treespec reads versions up to {VERSION}: read it with the newer treespec that wrote it"
        )
    return version


class _Meta(Strict):
    """Metadata in a trace's file."""

    model_config = ConfigDict(strict=True)

    version: Annotated[int, AfterValidator(_readable)]
    law: str
    rule: str
    sampling: dict[str, Any]
    width: int
    forced: bool
    about: dict[str, Any]


def _packed(fields: Mapping[str, Any]) -> bytes:
    """The content of a trace's file."""
    meta = {
        "version": 1 if fields["text_drafts"] is None else VERSION,
        "law": fields["law"], "rule": fields["rule"],
        "sampling": dict(fields["sampling"]), "width": fields["width"], "forced": fields["forced"],
        "about": dict(fields["about"]),
    }  # fmt: skip
    try:
        text = json.dumps(meta, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidTrace(f"sampling and about must be plain data: {error}") from None
    given: dict[str, Any] = {"meta": np.frombuffer(text, np.uint8), **fields}
    kinds = {"meta": _ARRAYS["meta"]} | _ARRAYS
    if fields["files"] is not None:
        kinds |= _FILES
    if fields["target_best"] is not None:
        kinds |= _BEST
    if fields["path_ranks"] is not None:
        kinds |= _PATHS
    for part, (arrays_of, prefix, _) in _PARTS.items():
        if fields[part] is not None:
            kinds |= arrays_of
            given |= {name: getattr(fields[part], name.removeprefix(prefix)) for name in arrays_of}
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(given[name], dtype=kind) for name, kind in kinds.items()
    }
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _unpacked(path: Path) -> dict[str, Any]:
    """The fields of the trace in a file, by name. `Trace` checks their values."""
    options = product(({}, _FILES), ({}, _BEST), ({}, _PATHS), ({}, _ROW_ARRAYS, _TEXT_ARRAYS))
    known = [_ARRAYS | files | best | path | part for files, best, path, part in options]
    try:
        arrays: dict[str, Any] = dict(read_arrays(path))
    except Unreadable as error:
        raise InvalidTrace(str(error)) from None
    kinds = next((kinds for kinds in known if kinds.keys() == arrays.keys()), None)
    if kinds is None:
        raise InvalidTrace(
            f"{path} is not a trace: it holds {', '.join(arrays)[:200] or 'nothing'} instead of "
            f"{', '.join(_ARRAYS)}"
        )
    for name, kind in kinds.items():
        if arrays[name].dtype != np.dtype(kind):
            raise InvalidTrace(f"{path}: {name} holds {arrays[name].dtype} instead of {kind}")
    meta = _meta(arrays.pop("meta").tobytes(), path)
    for part, (arrays_of, prefix, part_class) in _PARTS.items():
        part_arrays = {
            name.removeprefix(prefix): arrays.pop(name) for name in arrays_of if name in arrays
        }
        try:
            if part_arrays:
                meta[part] = part_class(**part_arrays)
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None
    return arrays | meta


def _meta(text: bytes, path: Path) -> dict[str, Any]:
    try:
        meta = read_model(_Meta, text)
    except Unreadable as error:
        raise InvalidTrace(f"{path}: its metadata: {error}") from None
    return meta.model_dump(exclude={"version"}) | {"about": with_new_names(meta.about)}
