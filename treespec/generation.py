"""Generate a text: a thin consumer of `decode`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from treespec.checks import able, integer, sequence
from treespec.decoding import decode
from treespec.draft.growth import laws_along
from treespec.draft.model import make_drafter
from treespec.errors import InvalidArgument, InvalidPrompt
from treespec.protocols import Coins, Drafter, Growth, Observer, Verifier
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling, wide
from treespec.step import Step
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens
from treespec.target.make import make_target
from treespec.tree import Law, TreeShape
from treespec.verify import usual_law, usual_rule, verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair


@dataclass(frozen=True)
class Generation:
    """A generated text and a summary of its decoding.

    Args:
        tokens: the new token ids, including a stop token.
        text: the decoded tokens without special tokens.
        steps: number of target passes.
        emitted: tokens that the steps emitted, before a stop or the budget cut the last step.
        drafted: number of draft tokens verified.
        accepted_per_step: accepted draft tokens of each step.
        logprobs: log-probability of each token, if asked for.
    """

    tokens: tuple[int, ...]
    text: str
    steps: int
    emitted: int
    drafted: int
    accepted_per_step: tuple[int, ...] = field(repr=False)
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per pass of the target (block efficiency, tau)."""
        return self.emitted / self.steps


def generate(
    pair: "Pair",
    prompt: str | Sequence[int],
    *,
    growth: Growth | TreeShape | None = None,
    law: Law | None = None,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    coins: Coins | None = None,
    max_new_tokens: int = 128,
    stop_strings: Sequence[str] | str = (),
    logprobs: Literal["raw", "processed"] | None = None,
    observer: Observer | None = None,
) -> Generation:
    """Continue a prompt by tree-based speculative decoding.

    Args:
        pair: target, draft and tokenizer, as returned by `load_pair`.
        prompt: text or token ids. No chat template is applied.
        growth: the tree to draft; `TreeShape.expansion([3, 2, 1, 1])` by default.
        law: how children are chosen. The default is the only law that the growth allows, if there is just
            one; else DETERMINISTIC at temperature 0, and WITHOUT_REPLACEMENT above.
        drafter: your own draft source, instead of `growth` and `law`.
        verifier: the acceptance rule. By default `greedy` at temperature 0, else the rule of the law
            (`verify.RULE_OF_LAW`), decided on the host.
        sampling: temperature 0 by default; what the model's generation_config.json asks for is not used.
            Its processors learn here which tokens end the text, and `max_new_tokens`; so does the default
            drafter, but not a drafter of your own.
        coins: the source of all randomness; `TorchCoins(0)` by default.
        max_new_tokens: at least 1.
        stop_strings: decoding ends after the token that completes one of these strings. The tokenizer's
            and the model's end-of-sequence tokens always end the text.
        logprobs: "raw" for the log-softmax of the model's logits, "processed" for that of the row which the
            token was drawn or chosen from (0 at temperature 0); each is the target's, given the text
            before the token.
        observer: notified of the stages of decoding.

    Returns:
        The text and a summary.

    Raises:
        InvalidArgument: if an argument has the wrong type; if a drafter is given together with `growth` or
            `law`, or without a verifier at temperature > 0.
        InvalidStop: if a stop string is empty.
        EmptyPrompt, InvalidPrompt, InvalidBudget, ContextOverflow, NonFiniteLogits, RefusedTree: see
            `decode`.

    Example:
        >>> from treespec import TreeShape, generate, load_pair
        >>> pair = load_pair("embedded")
        >>> result = generate(pair, "def main(", growth=TreeShape.expansion([3, 2]), max_new_tokens=8)
        >>> len(result.tokens), result.steps <= 8
        (8, True)
    """
    able("pair", pair, "target draft tokenizer end_tokens", "a pair of models: load_pair(...)")
    if sampling is not None:
        able("sampling", sampling, "rows greedy", "a Sampling, or None")
    sampling = sampling or Sampling(temperature=0.0)
    if getattr(sampling, "processors", None) is not None:
        sampling = sampling.ending(pair.end_tokens, max_new_tokens)
    if logprobs not in (None, "raw", "processed"):
        raise InvalidArgument(f"logprobs = {logprobs!r}, but must be 'raw', 'processed' or None")
    if drafter is not None and (growth is not None or law is not None):
        raise InvalidArgument(
            "growth and law configure the model drafter: give either them or a drafter of your own"
        )
    if drafter is not None and verifier is None and not sampling.greedy:
        raise InvalidArgument(
            "which rule is lossless depends on how the drafter draws: give a verifier too"
        )
    law = Law.of(law) if law else _usual_law(growth, sampling)
    verifier = verifier or verifier_for(usual_rule(law, sampling), pair.target)
    if drafter is None:
        shape = TreeShape.expansion([3, 2, 1, 1]) if growth is None else growth
        drafter = make_drafter(pair.draft, shape, law, sampling)
    if isinstance(prompt, str):
        ids = pair.tokenizer.encode(prompt)
    else:
        given = sequence("prompt", prompt, "token ids", InvalidPrompt)
        ids = [integer(f"prompt[{i}]", token, 0, InvalidPrompt) for i, token in enumerate(given)]
    stop = stop_at_tokens(pair.end_tokens)
    if stop_strings:
        stop = any_of(stop, stop_at_strings(stop_strings, pair.tokenizer))
    tokens: list[int] = []
    accepted: list[int] = []
    chances: list[float] = []
    drafted = 0
    for step in decode(
        make_target(pair.target),
        drafter,
        verifier,
        torch.tensor(ids, dtype=torch.long, device=pair.target.device),
        sampling=sampling,
        coins=coins or TorchCoins(0),
        max_new_tokens=max_new_tokens,
        stop=stop,
        observer=observer,
    ):
        tokens += step.tokens
        accepted.append(step.verdict.accepted)
        drafted += step.tree.shape.size - 1
        if logprobs is not None:
            chances += log_probabilities(step, raw=logprobs == "raw")
    return Generation(
        tokens=tuple(tokens),
        text=str(pair.tokenizer.decode(tokens, skip_special_tokens=True)),
        steps=len(accepted),
        emitted=sum(accepted) + len(accepted),
        drafted=drafted,
        accepted_per_step=tuple(accepted),
        logprobs=None if logprobs is None else tuple(chances),
    )


def log_probabilities(step: Step, *, raw: bool) -> list[float]:
    """The target's log-probability of each kept token of a decoded step, given the text before it.

    Args:
        step: as `decode` yields it, read before the next step: a captured pass lends its logits.
        raw: by the log-softmax of the model's logits, rather than of the row that decided.
    """
    found = []
    for node, token in zip(step.verdict.path, step.tokens, strict=False):
        if raw:
            row = wide(step.scores.logits[node]).log_softmax(-1)
        else:
            assert step.rows is not None
            row = step.rows[node].log()
        found.append(float(row[token]))
    return found


def _usual_law(growth: Growth | TreeShape | None, sampling: Sampling) -> Law:
    """The only law that the growth allows, or the usual law at this temperature if it allows several."""
    laws = laws_along(growth)
    return next(iter(laws)) if len(laws) == 1 else usual_law(sampling)
