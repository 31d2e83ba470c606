"""The decoding loop: draft, verify, accept, commit. Nothing flows back except through `commit`."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.checks import able, instance, plain_integer, shown, token_ids
from treespec.errors import (
    ContextOverflow,
    EmptyPrompt,
    InvalidBudget,
    InvalidPrompt,
    InvalidTree,
    NonFiniteLogits,
)
from treespec.features import lend, prefill, reads_of
from treespec.protocols import (
    Coins,
    CommitsAhead,
    DecidesAhead,
    Drafter,
    Observer,
    ReadsTarget,
    Rows,
    Target,
    Verifier,
)
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.rows import rows_of_text
from treespec.step import Step, Verdict
from treespec.stopping import Stop
from treespec.tree import TokenTree
from treespec.tree.unread_tree import UnreadTree


class NullObserver:
    """An observer that records nothing."""

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return an empty context."""
        return nullcontext()


def decode(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Int[Tensor, "T"],
    *,
    sampling: Sampling,
    coins: Coins,
    max_new_tokens: int,
    stop: Stop = lambda ids: False,
    observer: Observer | None = None,
) -> Iterator[Step]:
    """Decode speculatively, yielding every step as soon as it is committed.

    Plain decoding is the same loop with a drafter that proposes the root alone (`NoDrafter`).

    Args:
        target: the model whose distribution the text follows.
        drafter: proposes a tree at every step. What it reads of the target (`treespec.features`), the
            target lends from the prefill on.
        verifier: the acceptance rule.
        prompt: `[T]` token ids, at least one, on the models' device.
        sampling: settings applied to the target's logits; give the drafter the same settings.
        coins: the source of all randomness, in drafting and in acceptance.
        max_new_tokens: at least 1. The last step may draft more; tokens beyond the limit are not kept.
        stop: called after every kept token with all ids so far; decoding ends when it returns True.
        observer: notified of the stages prefill, draft, verify, accept and commit.

    Yields:
        One `Step` per pass of the target. The text is the concatenation of `step.tokens` over all steps.
        Each step holds its `[N, V]` logits: drop references to steps that are no longer needed.

    Raises:
        InvalidArgument: if an argument has the wrong type. This error and the next four are raised by the
            call itself, all others by the step in which they occur; or, before the first pass, if the
            drafter reads a layer that the target does not have.
        UnsupportedModel: before the first pass, if the target cannot lend what the drafter reads.
        EmptyPrompt: if the prompt has no token.
        InvalidPrompt: if the prompt is not a row of ids of the target's vocabulary.
        InvalidBudget: if max_new_tokens is not a positive integer.
        ContextOverflow: if the prompt, the new tokens and a tree beyond them exceed the context of the
            target or the drafter.
        NonFiniteLogits: if a model returns NaN or infinite logits; the error names step and node.
        RefusedTree: if the verifier does not cover the drafted tree.
        InvalidSampling: if a processor is refused, or forbids every token.
        InvalidTree: if the root of a drafted tree is not the last committed token, or a drafted token is
            not in the target's vocabulary.

    Example:
        >>> from treespec import Law, TorchCoins, TreeShape, verify
        >>> from treespec.draft import ModelDrafter
        >>> from treespec.target import ModelTarget
        >>> from treespec.testing import TabularModel, random_table
        >>> target, draft = (TabularModel(random_table(3, seed), 3) for seed in (0, 1))
        >>> sampling = Sampling(temperature=1.0)
        >>> shape = TreeShape.expansion([2, 1])
        >>> steps = decode(
        ...     ModelTarget(target),
        ...     ModelDrafter(draft, shape, Law.WITHOUT_REPLACEMENT, sampling),
        ...     verify.rrsw,
        ...     torch.tensor([0, 1]),
        ...     sampling=sampling,
        ...     coins=TorchCoins(0),
        ...     max_new_tokens=10,
        ... )
        >>> sum(len(step.tokens) for step in steps)
        10
    """
    members = "vocab_size max_length prefill score commit"
    able("target", target, members, "a target, such as ModelTarget(model)")
    members = "max_depth max_length prefill propose commit"
    able("drafter", drafter, members, "a drafter, such as NoDrafter()")
    able("verifier", verifier, "__call__", "an acceptance rule, such as verify.rrs")
    able("sampling", sampling, "rows", "a Sampling")
    able("coins", coins, "accept draw draw_many", "coins, such as TorchCoins(0)")
    able("stop", stop, "__call__", "a function of the ids so far")
    if observer is not None:
        able("observer", observer, "stage", "an observer, or None")
    require_prompt(prompt, target.vocab_size)
    context = min(target.max_length, drafter.max_length)
    require_room(len(prompt), max_new_tokens, drafter.max_depth, context)
    reads_of(drafter)
    watch = observer or NullObserver()
    return _steps(target, drafter, verifier, prompt, sampling, coins, max_new_tokens, stop, watch)


@torch.inference_mode()
def _steps(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Int[Tensor, "T"],
    sampling: Sampling,
    coins: Coins,
    max_new_tokens: int,
    stop: Stop,
    watch: Observer,
) -> Iterator[Step]:
    ids: list[int] = prompt.tolist()
    end = len(ids) + int(max_new_tokens)
    reads = reads_of(drafter)
    lend(target, reads)
    with watch.stage("prefill"):
        if isinstance(drafter, ReadsTarget):
            drafter.bind_target(target)
        prefill(drafter, prompt, target.prefill(prompt), reads)
    finished, index, vocabulary = False, 0, target.vocab_size
    rows_of = rows_of_text(sampling, len(prompt), prompt.device)
    decide = moving_ahead(verifier, (target, drafter))
    while not finished:
        try:
            with watch.stage("draft"):
                tree = drafter.propose(coins)
                require_ids(tree, vocabulary)
            with watch.stage("verify"):
                scores = target.score(tree)
            with watch.stage("accept"):
                rows = rows_of(tree, scores.logits, ids)
                verdict = decide(tree, rows, coins)
            instance("the verifier's result", verdict, Verdict, "a Verdict")
            require_root(tree, ids[-1])
        except NonFiniteLogits as error:
            raise NonFiniteLogits(error.node, error.model, index) from None
        kept = []
        for token in (*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus):
            kept.append(token)
            ids.append(token)
            finished = len(ids) >= end or stop(ids)
            if finished:
                break
        step = Step(tree, verdict, scores, tuple(kept), rows=rows)
        with watch.stage("commit"):
            target.commit(step)
            drafter.commit(step)
        yield step
        index += 1


def moving_ahead(verifier: Verifier, parts: Sequence[object]) -> Verifier:
    """The verifier; if it decides on a device, one by which rows move before the host knows the path.

    The host waits for the device once, and by then everything that the step needs of it is under way. What
    the parts can do is asked once a text: asking takes some 7 us.

    `parts`: target and drafter. Those that can move rows by a decision on the device do so.
    """
    usual = verifier
    if not isinstance(verifier, DecidesAhead):
        return usual
    movers = [part for part in parts if isinstance(part, CommitsAhead)]
    decide_ahead = verifier.decide_ahead

    def decided(tree: TokenTree, rows: Rows, coins: Coins, /) -> Verdict:
        decision = decide_ahead(tree, rows, coins)
        if decision is None:
            return usual(tree, rows, coins)
        for part in movers:
            part.commit_ahead(tree, decision)
        return decision.verdict()

    return decided


def require_ids(tree: Any, vocabulary: int) -> None:
    """Refuse a drafted tree with token ids outside the target's vocabulary, before the target scores it."""
    instance("the drafter's proposal", tree, TokenTree, "a TokenTree")
    if isinstance(tree, UnreadTree) and tree.is_unread and tree.ids_below <= vocabulary:
        return  # they are, by the way in which they were chosen; reading them would wait
    ids = tree.token_ids
    if min(ids) < 0 or max(ids) >= vocabulary:
        node = next(node for node, token in enumerate(ids) if not 0 <= token < vocabulary)
        raise InvalidTree(
            f"node {node} of the drafted tree has the token {ids[node]}, but the target's ids are "
            f"0..{vocabulary - 1}: draft with the target's tokenizer, or leave out such tokens"
        )


def require_root(tree: TokenTree, last: int) -> None:
    """Refuse a tree whose root is not the last committed token: its rows would continue another text."""
    if tree.token_ids[0] != last:
        raise InvalidTree(
            f"the root of the drafted tree is token {tree.token_ids[0]}, but must be the last committed "
            f"token, {last}: a drafter learns it from prefill(prompt), then from commit(step) as "
            "step.tokens[-1]"
        )


def require_prompt(prompt: Any, vocabulary: int) -> None:
    """Refuse a prompt that is not a row of token ids below `vocabulary`."""
    if not isinstance(prompt, Tensor) or prompt.shape != (0,):  # an empty one is refused later
        token_ids("the prompt", prompt, InvalidPrompt)
    if len(prompt) and not (int(prompt.min()) >= 0 and int(prompt.max()) < vocabulary):
        invalid = next(token for token in prompt.tolist() if not 0 <= token < vocabulary)
        raise InvalidPrompt(
            f"the prompt holds token id {invalid}, but the target's ids are 0..{vocabulary - 1}"
        )


def require_room(prompt: int, max_new_tokens: int, tree_depth: int, context: int) -> None:
    """Refuse a prompt and budget that do not fit in the context, before any model runs.

    `tree_depth`: largest depth of a tree; the last tree may reach this far beyond the budget. `context`:
    positions of the model, or the smaller number if there are two models.
    """
    if prompt < 1:
        raise EmptyPrompt(
            "the prompt has no tokens; give at least one, such as a beginning-of-text token"
        )
    budget = plain_integer(max_new_tokens)
    if budget is None or budget < 1:
        raise InvalidBudget(
            f"max_new_tokens = {shown(max_new_tokens)}, but must be an integer of at least 1"
        )
    if prompt > context:
        raise ContextOverflow(
            f"the prompt has {prompt} tokens, but the models' context is {context}: shorten it"
        )
    needed = prompt + budget + tree_depth
    if needed > context:
        raise ContextOverflow(
            f"{prompt} prompt tokens + {budget} new tokens + {tree_depth} levels of a tree = "
            f"{needed} positions, but the models' context is {context}; reduce one of the three"
        )
