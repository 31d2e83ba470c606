"""Draft sources without a model: their settings in configs, and how each is built."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from treespec.draft import (
    Datastore,
    Documents,
    Jacobi,
    Lookahead,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
    TokenRecycling,
)
from treespec.draft.recycling import template
from treespec.draft.state import tokenizer_digest
from treespec.draft.text.best_first import Limits
from treespec.draft.text.datastore import SORTED_TOKENS
from treespec.errors import InvalidArgument, LoadError
from treespec.experiments.config.files import stamp
from treespec.experiments.config.model_draft import built_in
from treespec.files import read_text
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.search.growth.keys import Count, Name

Ngram = Annotated[int, Field(strict=True, ge=1, le=16)]
Window = Annotated[int, Field(strict=True, ge=2, le=4096)]
Share = Annotated[float, Field(ge=0, le=1)]


@built_in(trees="budget")
class LookupDraft(Settings):
    """Prompt lookup: drafts what followed the last tokens earlier in the text; no model runs.

    What an encoder-decoder reads (`prompts.source`) is looked up too.
    """

    source: Literal["lookup"] = "lookup"
    """The text itself drafts: chains and trees within a `budget`."""
    ngram: Ngram = 3
    """Maximum tokens to match."""
    places: Count = 256
    """Maximum matches to use, the latest first."""

    def make(self, wanted: Wanted) -> Drafter:
        return PromptLookup(
            **_limits(wanted),
            ngram=self.ngram,
            places=self.places,
            source=getattr(wanted.pair, "source", None) or (),
        )


@built_in(trees="budget")
class DocumentsDraft(Settings):
    """Documents: drafts what followed the last tokens in given files, or in the prompt alone."""

    source: Literal["documents"] = "documents"
    """Files or the prompt draft: chains and trees within a `budget`."""
    files: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None
    """Text files, encoded by the target's tokenizer; null for the prompt of each text (without the tokens
    decoded after it, which `lookup` searches too)."""
    ngram: Ngram = 3
    """Maximum tokens to match."""
    places: Count = 256
    """Maximum matches to use, the latest first."""

    def make(self, wanted: Wanted) -> Drafter:
        texts = None
        if self.files is not None:
            tokenizer = _tokenizer(wanted)
            texts = [_encoded(file, stamp(file), tokenizer) for file in self.files]
        return Documents(
            texts,
            **_limits(wanted),
            ngram=self.ngram,
            places=self.places,
            vocab_size=wanted.pair.target.vocab_size,
        )


@built_in(trees="budget")
class SuffixTreeDraft(Settings):
    """Suffix decoding: drafts what most often followed suffixes of the text, in it and in past texts."""

    source: Literal["suffix_tree"] = "suffix_tree"
    """A suffix tree with counts drafts: chains and trees within a `budget`."""
    window: Window = 64
    """Maximum tokens of a match and its continuation together."""
    factor: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Draft tokens per token of the match."""
    offset: Annotated[float, Field(ge=-1000, le=1000)] = 0.0
    """Draft tokens added to those of `factor`."""
    least: Share = 0.1
    """Minimum probability of a drafted token."""
    warm: Name | None = None
    """A file of past texts (`SuffixCounts.save`), the same for every prompt; null for none."""
    most_tokens: Count | None = None
    """Maximum tokens of past texts to keep: the oldest texts of `warm` are dropped first, the latest is
    always kept; null for all."""

    @model_validator(mode="after")
    def _of_past_texts(self) -> "SuffixTreeDraft":
        if self.most_tokens is not None and self.warm is None:
            raise ValueError(
                f"most_tokens = {self.most_tokens} limits past texts, but there are none: name their file "
                "as warm, or leave most_tokens out"
            )
        return self

    def make(self, wanted: Wanted) -> Drafter:
        vocab_size = wanted.pair.target.vocab_size
        past = self.warm and _past(
            self.warm, stamp(self.warm), vocab_size, _digest(wanted), self.most_tokens
        )
        return SuffixTree(
            **_limits(wanted),
            window=self.window,
            factor=self.factor,
            offset=self.offset,
            least=self.least,
            past=past or None,
            vocab_size=vocab_size,
        )


@built_in(trees="chain")
class SuffixAutomatonDraft(Settings):
    """Suffix automaton: drafts what followed the longest repeated suffix at its first occurrence."""

    source: Literal["suffix_automaton"] = "suffix_automaton"
    """A suffix automaton drafts: chains within a `budget`."""
    shortest: Ngram = 1
    """Tokens of the shortest suffix that begins a draft."""

    def make(self, wanted: Wanted) -> Drafter:
        return SuffixAutomaton(budget_of(wanted).depth, shortest=self.shortest)


@built_in(trees="budget")
class RetrievalDraft(Settings):
    """Retrieval: drafts what followed the longest matching suffix in a datastore of other texts."""

    source: Literal["retrieval"] = "retrieval"
    """A datastore drafts: chains and trees within a `budget`."""
    datastore: Name
    """A file written by `treespec datastore build`."""
    most_tokens: Count | None = None
    """If there is no such file in `runs/`, it is built before the run, from at most so many tokens of the
    `.py` files of the installed packages. Copies of the embedded pair's held-out files are left out, copies
    of your own prompts are not. Null for an error."""
    longest: Annotated[int, Field(strict=True, ge=1, lt=SORTED_TOKENS)] = 16
    """Maximum tokens to match."""
    shortest: Annotated[int, Field(strict=True, ge=1, lt=SORTED_TOKENS)] = 2
    """Minimum tokens to match."""
    hits: Count = 5000
    """Maximum matches to use."""

    @model_validator(mode="after")
    def _ordered(self) -> "RetrievalDraft":
        if self.shortest > self.longest:
            raise ValueError(f"shortest = {self.shortest} is more than longest = {self.longest}")
        return self

    def make(self, wanted: Wanted) -> Drafter:
        store = Datastore(
            self.datastore, vocab_size=wanted.pair.target.vocab_size, tokenizer=_digest(wanted)
        )
        return Retrieval(
            store,
            **_limits(wanted),
            longest=self.longest,
            shortest=self.shortest,
            hits=self.hits,
        )


@built_in(trees="budget")
class TokenRecyclingDraft(Settings):
    """Token recycling: each token's best successors in the target's latest logits fill a template."""

    source: Literal["token_recycling"] = "token_recycling"
    """Earlier logits draft: the part of the template of 80 draft nodes that fits in a `budget`."""
    warm: Name | None = None
    """A file of successors (`TokenRecycling.save`) from this target, the same for every prompt; null for
    none."""

    def make(self, wanted: Wanted) -> Drafter:
        table = self.warm and TokenRecycling.load(self.warm, **_of_target(wanted))
        shape = template(Limits(**_limits(wanted)))
        return TokenRecycling(shape, table=table or None, vocab_size=wanted.pair.target.vocab_size)


@built_in(trees="budget")
class LookaheadDraft(Settings):
    """Lookahead: n-grams found by a window of Jacobi iterations, and the window itself."""

    source: Literal["lookahead"] = "lookahead"
    """The target's own guesses draft. The `budget` must hold its trees, usually of size (N - 1)(W + G)."""
    window: Annotated[int, Field(strict=True, ge=1, le=256)] = 7
    """W: columns of the window."""
    ngram: Annotated[int, Field(strict=True, ge=2, le=64)] = 5
    """N: tokens of an n-gram."""
    guesses: Annotated[int, Field(strict=True, ge=1, le=256)] = 7
    """G: n-grams kept and drafted for each first token."""
    warm: Name | None = None
    """A file of n-grams (`Lookahead.save`) from this target, the same for every prompt; null for none. Its
    `ngram` must be at least this one; its window and guesses may differ."""

    def make(self, wanted: Wanted) -> Drafter:
        pool = self.warm and Lookahead.load(self.warm, **_of_target(wanted))
        drafter = Lookahead(
            self.window,
            self.ngram,
            self.guesses,
            pool=pool or None,
            vocab_size=wanted.pair.target.vocab_size,
        )
        # The size of lookahead's trees does not depend on the text.
        needed = {
            "size": drafter.size,
            "depth": drafter.max_depth,
            "branching": drafter.branching,
        }
        if any(getattr(budget_of(wanted), name) < least for name, least in needed.items()):
            limits = ", ".join(f"{name}: {least}" for name, least in needed.items())
            raise InvalidArgument(
                f"lookahead with window {self.window}, ngram {self.ngram} and guesses {self.guesses} needs "
                f"a budget of at least {{kind: budget, {limits}}}: give it, or lower these settings"
            )
        return drafter


@built_in(trees="chain")
class JacobiDraft(Settings):
    """Jacobi: the target's most probable tokens after each node of the last chain."""

    source: Literal["jacobi"] = "jacobi"
    """The last step's rows draft: chains within a `budget`."""

    def make(self, wanted: Wanted) -> Drafter:
        return Jacobi(budget_of(wanted).depth)


def _of_target(wanted: Wanted) -> dict[str, Any]:
    """What a file learned from the target's passes must match; an outline has no weights to match."""
    target = wanted.pair.target
    return {
        "vocab_size": target.vocab_size,
        "tokenizer": _digest(wanted),
        "target": getattr(target, "fingerprint", ""),
    }


def _digest(wanted: Wanted) -> str:
    return _digest_of(_tokenizer(wanted))


_digest_of = lru_cache(maxsize=4)(tokenizer_digest)


@lru_cache(maxsize=4)
def _past(
    file: str, stamp: object, vocab_size: int, digest: str, most_tokens: int | None
) -> SuffixCounts:
    """Past texts, loaded once; drafters only read them."""
    return SuffixCounts.load(file, vocab_size=vocab_size, tokenizer=digest, most_tokens=most_tokens)


@lru_cache(maxsize=64)
def _encoded(file: str, stamp: object, tokenizer: Any) -> Sequence[int]:
    return tokenizer.encode(read_text(file), add_special_tokens=False, verbose=False)


def budget_of(wanted: Wanted) -> Budget:
    """The limits that a source with its own continuations is given."""
    assert isinstance(wanted.tree, Budget)
    return wanted.tree


def _limits(wanted: Wanted) -> dict[str, int]:
    return asdict(budget_of(wanted))


def _tokenizer(wanted: Wanted) -> Any:
    tokenizer = getattr(wanted.pair, "tokenizer", None)
    if tokenizer is None:
        raise LoadError("this draft source needs the pair's tokenizer, but the models have none")
    return tokenizer
