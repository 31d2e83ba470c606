"""Record a trace (`search.Trace`): which drafted child was accepted at every position of texts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import integer
from treespec.decoding import require_prompt, require_room
from treespec.draft import ModelDrafter
from treespec.errors import RefusedTree
from treespec.experiments.config.samplings import settings_of
from treespec.experiments.measure.beam_recording import (
    DEPTH,
    record_draft_rows,
    require_room_for_rows,
    rows_of_position,
)
from treespec.experiments.run.seeds import keys_of, seed_of
from treespec.protocols import Coins, Growth, Models, TreeModel
from treespec.sampling.children import require_children, top_k
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling, require_finite
from treespec.sampling.processing.processed_model import processed
from treespec.search import InvalidTrace, Trace
from treespec.stopping import Stop
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULES, Rule, Scope
from treespec.verify.rule import ChildAcceptance

POSITIONS_BEYOND = 16
"""Positions recorded after the end of each text; they serve steps of trees up to one edge deeper."""
POSITIONS_PER_PASS = 64
"""Positions of a given text that one pass scores."""


@dataclass(frozen=True)
class Position:
    """The record of one position.

    Args:
        rank: which child was accepted; the width if none.
        token: the token that came out.
        probs: the draft's probability of each child.
        accepted: the exact probability that each child is accepted.
        target_best: the target's best token.
        draft_best: the draft's best token; -1 if it drafts nothing.
    """

    rank: int
    token: int
    probs: tuple[float, ...]
    accepted: tuple[float, ...]
    target_best: int
    draft_best: int


@dataclass
class Text:
    """The record of one text, of which decoding keeps the first `kept` positions."""

    tokens: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    kept: int = 0


class PositionRecorder(ABC):
    """Walks through texts and applies the rule to at most `width` children of each position alone.

    Raises:
        InvalidTrace: if the rule's acceptance of a child depends on the rest of the tree, so that no record
            can serve whole trees; or if the law, but not the rule, depends on the number of children.
        RefusedTree: if the rule does not cover the law.
    """

    def __init__(
        self, models: Any, *, sampling: Sampling, law: Law, rule: Rule, width: int
    ) -> None:
        self.sampling, self.law, self.rule = sampling, Law.of(law), rule
        self.read_by(models)
        self.width = integer("width", width, 1, InvalidTrace)
        self._shape = TreeShape.expansion([width])
        self._acceptance = _acceptance(rule, self._shape, self.law, sampling)

    def read_by(self, models: Any) -> None:
        """Let the next texts be read by a target and what drafts for it: a model, a text source or a head.

        Encoder-decoders have others behind each source.
        """
        self._target = processed(models.target.fresh(), self.sampling, "target")
        self._device = getattr(models.target, "device", torch.device("cpu"))

    def decode(
        self, prompt: Sequence[int], coins: Coins, stop: Stop, budget: int, beyond: int
    ) -> Text:
        """Decode plainly, with one pass of each model per position."""
        text, ids, over = Text(), list(prompt), False
        self._prefill(ids)
        while not over or len(text.tokens) < text.kept + beyond:
            (position,) = self._pass(ids[-1:], coins)
            text.positions.append(position)
            text.tokens.append(position.token)
            ids.append(position.token)
            if not over:
                text.kept = len(text.tokens)
                over = text.kept == budget or stop(ids)
        return text

    def follow(
        self, prompt: Sequence[int], given: Sequence[int], coins: Coins, stop: Stop, budget: int,
        beyond: int,
    ) -> Text:  # fmt: skip
        """Record what would be accepted along a given text, many positions per pass."""
        ids = [*prompt, *given[: budget + beyond]]
        first = len(prompt)
        ends = (n for n in range(1, len(ids) - first + 1) if n >= budget or stop(ids[: first + n]))
        kept = next(ends, len(ids) - first)
        text = Text(ids[first : first + kept + beyond], kept=kept)
        self._prefill(prompt)
        roots = [prompt[-1], *text.tokens[:-1]]
        for start in range(0, len(roots), POSITIONS_PER_PASS):
            text.positions += self._pass(roots[start : start + POSITIONS_PER_PASS], coins)
        return text

    def _prefill(self, prompt: Sequence[int]) -> None:
        self._target.prefill(self._row(prompt[:-1]))

    def _row(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self._device)

    def _run(self, model: TreeModel, name: str, roots: Sequence[int]) -> Float[Tensor, "R V"]:
        """Run a model on these tokens of the text; return the logits after each of them."""
        logits = model.run(self._row(roots), tuple(range(-1, len(roots) - 1))).logits
        require_finite(logits, name, range(len(roots)))
        model.keep(range(len(roots)))
        return logits.cpu()

    @abstractmethod
    def _pass(self, roots: Sequence[int], coins: Coins) -> Iterator[Position]:
        """Run a chain of tokens and decide after each of them."""

    def _decided(self, tree: TokenTree, row: Float[Tensor, "V"], coins: Coins) -> tuple[int, int]:
        """The rank of the accepted child of the root (`width` if none), and the token that came out."""
        unused = torch.zeros_like(row)  # a law below the root, where the result does not matter
        unused[0] = 1
        verdict = self.rule(tree, [row, *[unused] * (tree.shape.size - 1)], coins)
        if not verdict.accepted:
            return self.width, verdict.bonus
        return verdict.path[1] - 1, tree.token_ids[verdict.path[1]]


class Recorder(PositionRecorder):
    """Draws the children of each position from a draft model, with the drafter's own code."""

    def __init__(
        self, models: Models, *, sampling: Sampling, law: Law, rule: Rule, width: int
    ) -> None:
        super().__init__(models, sampling=sampling, law=law, rule=rule, width=width)
        require_children(width, models.draft.vocab_size, self.law)

    def read_by(self, models: Models) -> None:
        super().read_by(models)
        self._draft = processed(models.draft.fresh(), self.sampling)

    def _prefill(self, prompt: Sequence[int]) -> None:
        super()._prefill(prompt)
        self._draft.prefill(self._row(prompt[:-1]))

    def _pass(self, roots: Sequence[int], coins: Coins) -> Iterator[Position]:
        rows = self.sampling(self._run(self._target, "target", roots))
        draft_logits = self._run(self._draft, "draft", roots)
        deterministic = self.law is Law.DETERMINISTIC
        # The drafter scores children that it does not draw in the same way: under greedy settings all but
        # the first would have probability 0.
        unsampled = deterministic and self.sampling.greedy
        draft = (Sampling() if unsampled else self.sampling)(draft_logits)
        drawn = (
            top_k(draft_logits, self.width)
            if deterministic
            else coins.draw_many(draft, self.width, self.law)
        )
        probs = draft.gather(1, drawn).tolist()
        best = drawn[:, 0].tolist() if deterministic else draft.argmax(-1).tolist()
        for i, children in enumerate(drawn.tolist()):
            tree = TokenTree(
                self._shape,
                torch.tensor([0, *children]),
                None if deterministic else draft[i : i + 1],
                self.law,
            )
            rank, token = self._decided(tree, rows[i], coins)
            exact = (
                [float(rank == child) for child in range(self.width)]
                if self._acceptance is None
                else self._acceptance(rows[i], draft[i], children)
            )
            target_best = int(rows[i].argmax())
            yield Position(rank, token, tuple(probs[i]), tuple(exact), target_best, best[i])


def _acceptance(
    rule: Rule, shape: TreeShape, law: Law, sampling: Sampling
) -> ChildAcceptance | None:
    """The rule's acceptance formula for the children of a position, or None if it has none.

    Raises:
        InvalidTrace: if no record can serve whole trees.
        RefusedTree: if the rule does not cover the law.
    """
    exact = rule.child_acceptance
    if not rule.lossless or (exact is None and rule.scope is not Scope.SIBLINGS):
        tree_rule = rule.on_trees.get(law)
        hint = f" (with one child it equals '{tree_rule}': use that)" if tree_rule else ""
        traced = [name for name, rule in RULES.items() if rule.child_acceptance]
        siblings = [
            name for name, rule in RULES.items() if rule.lossless and rule.scope is Scope.SIBLINGS
        ]
        raise InvalidTrace(
            f"rule = {str(rule)!r} cannot be traced{hint}: a trace serves many trees, so it needs a rule "
            "whose acceptance of a child does not depend on the rest of the tree. Rules for any tree: "
            f"{', '.join(traced)}; rules for trees whose nodes all have as many children as are recorded: "
            f"{', '.join(siblings)}"
        )
    if law.together and exact is not None:
        raise InvalidTrace(
            f"law = '{law}' cannot be traced: how a child is drawn depends on how many there are; "
            f"use one of {', '.join(str(law) for law in Law if not law.together)}"
        )
    if rule.one_hot and not sampling.greedy:
        raise InvalidTrace(
            f"rule = {str(rule)!r} needs temperature 0, but it is {sampling.temperature:g}"
        )
    reason = rule.covers(shape, law)
    if reason:
        raise RefusedTree(reason)
    return exact


def record(
    pair: Models,
    prompts_ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    law: Law,
    rule: Rule,
    width: int,
    max_new_tokens: int,
    stop: Stop = lambda ids: False,
    seed: int = 0,
    follow: Sequence[Sequence[int]] | None = None,
    beyond: int = POSITIONS_BEYOND,
    beam: int = 0,
    beam_depth: int = DEPTH,
    files: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    of_text: Callable[[int], Models] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Record which of `width` drafted children is accepted at every position of texts.

    Decoding records one position per pass. Given texts (`follow`) are recorded with up to 64 positions per
    pass; at temperature 0, given texts that equal the target's own give the same trace as decoding.

    Args:
        pair: the models.
        prompts_ids: token ids of the prompts.
        sampling: sampling settings of target and draft.
        law: how children are drawn: deterministic, iid or without replacement; for rules that look at all
            siblings, a law that they cover.
        rule: greedy, naive, onehot, rrs or rrsw; or a rule that looks at all siblings, such as kseq.
        width: children at each position. Trees with up to `width` children per node can be replayed; for
            rules that look at all siblings, only trees whose nodes have exactly `width` children.
        max_new_tokens: maximum number of tokens of each text.
        stop: decides whether a text ends earlier.
        seed: seed of the coins; each text has its own, which depend on its prompt, not on its place.
        follow: token ids after each prompt, at least one, to follow instead of decoding.
        beyond: positions recorded after the end of each text, as far as a given text continues; steps of
            trees up to `beyond + 1` deep then end as in a live run.
        beam: nodes per level whose children are recorded at each position, and children of each, so that
            growths can be replayed (`DraftRows`); 0 for none. Only for deterministic children.
        beam_depth: levels of these nodes; growths of up to this depth can be replayed.
        files: for each prompt, the number of the file it is an excerpt of; None if prompts are independent.
        keys: for each text the number that seeds its coins; by default those of its prompt (`keys_of`).
        of_text: gives the models that read a text, by its number; by default `pair` reads all. Behind an
            encoder-decoder's source they are the pair's, on that source.
        progress: called with a message as each text begins.

    Raises:
        InvalidTrace: if there is no prompt, a text to follow is missing or empty, one record cannot serve
            all trees (see `Recorder`), or a beam is requested that growths cannot use or no file can hold.
        EmptyPrompt, InvalidPrompt, InvalidBudget, ContextOverflow, NonFiniteLogits: see `treespec.decode`.
    """
    target, draft = pair.target, pair.draft
    recorder = Recorder(pair, sampling=sampling, law=law, rule=rule, width=width)
    context = min(target.max_length, draft.max_length)
    if beam:
        if Law.of(law) is not Law.DETERMINISTIC:
            raise InvalidTrace(
                f"beam = {beam} is for growths, which choose among deterministic children, but the law is "
                f"'{Law.of(law)}': leave out the beam, or record with --law deterministic"
            )
        rows = rows_of_position(beam, beam_depth)
        require_room_for_rows(len(prompts_ids) * (max_new_tokens + beyond), rows, beam)
    trace = trace_of(
        recorder, prompts_ids, vocab_size=target.vocab_size, context=context,
        reach=beyond + beam_depth * bool(beam), max_new_tokens=max_new_tokens, stop=stop, seed=seed,
        follow=follow, beyond=beyond, files=files, keys=keys, of_text=of_text, progress=progress,
    )  # fmt: skip
    if not beam:
        return trace
    texts = np.split(trace.tokens, trace.offsets[1:-1])

    def make(text: int, growth: Growth) -> ModelDrafter:
        own = draft if of_text is None else of_text(text).draft
        return ModelDrafter(own, growth, Law.DETERMINISTIC, sampling)

    rows = record_draft_rows(
        make, prompts_ids, [text.tolist() for text in texts], beam=beam, depth=beam_depth,
        device=getattr(draft, "device", None), progress=progress,
    )  # fmt: skip
    return replace(trace, draft_rows=rows)


def trace_of(
    recorder: PositionRecorder,
    prompts_ids: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    context: int,
    reach: int,
    max_new_tokens: int,
    stop: Stop = lambda ids: False,
    seed: int = 0,
    follow: Sequence[Sequence[int]] | None = None,
    beyond: int = POSITIONS_BEYOND,
    files: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    of_text: Callable[[int], Any] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Run a recorder over all texts and assemble the trace; see `record`.

    `reach` is the number of positions after the end of each text that must fit into the context.
    """
    _require_texts(prompts_ids, follow)
    for prompt in prompts_ids:
        require_prompt(torch.tensor(prompt), vocab_size)
        require_room(len(prompt), max_new_tokens, reach, context)
    texts = []
    with torch.inference_mode():
        seeds = keys_of(prompts_ids) if keys is None else keys
        for i, (prompt, key) in enumerate(zip(prompts_ids, seeds, strict=True)):
            progress(f"text {i + 1}/{len(prompts_ids)}")
            if of_text is not None:
                recorder.read_by(of_text(i))
            coins = TorchCoins(seed_of(seed, "trace", key))
            if follow is None:
                texts.append(recorder.decode(prompt, coins, stop, max_new_tokens, beyond))
            else:
                require_prompt(torch.tensor(follow[i]), vocab_size)
                texts.append(
                    recorder.follow(prompt, follow[i], coins, stop, max_new_tokens, beyond)
                )
    positions = [position for text in texts for position in text.positions]
    tokens = [token for text in texts for token in text.tokens]
    # The texts are the target's own if they continue with the token that came out at every position.
    targets_own = recorder.sampling.greedy and [p.token for p in positions] == tokens
    best = None
    if not recorder.sampling.greedy:
        best = np.array([(position.target_best, position.draft_best) for position in positions])
    return Trace(
        offsets=np.cumsum([0, *(len(text.tokens) for text in texts)]),
        tokens=np.array(tokens),
        ranks=np.array([position.rank for position in positions]),
        probs=np.array([position.probs for position in positions]).clip(0, 1),
        accepted=np.array([position.accepted for position in positions]).clip(0, 1),
        law=str(recorder.law),
        rule=str(recorder.rule),
        sampling=settings_of(recorder.sampling),
        width=recorder.width,
        forced=follow is not None and not targets_own,
        about={
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "beyond": beyond,
            "followed": follow is not None,
            "prompt_tokens": [len(prompt) for prompt in prompts_ids],
        },
        kept=np.array([text.kept for text in texts]),
        files=None if files is None else np.array(files),
        target_best=None if best is None else best[:, 0],
        draft_best=None if best is None else best[:, 1],
    )


def _require_texts(prompts: Sequence[Any], follow: Sequence[Any] | None) -> None:
    if not len(prompts):
        raise InvalidTrace("there are no prompts: a trace needs at least one")
    if follow is not None and len(follow) != len(prompts):
        raise InvalidTrace(
            f"{len(prompts)} prompts, but {len(follow)} texts to follow: give one text per prompt"
        )
    for i, text in enumerate(follow or ()):
        if not len(text):
            raise InvalidTrace(f"follow[{i}] is empty: no text follows prompt {i}")
