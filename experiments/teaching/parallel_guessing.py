"""Exact effect on the joint law of guessing several tokens at once, each from its own marginal.

Heads that predict the next tokens in parallel (Medusa's, arXiv:2401.10774, and those of masked and
multi-token models) see the committed text, but not each other's guesses. Sampled directly, their tokens are
independent, while those of a text are not. As drafts they do no harm: the acceptance rule knows the
distribution that each was drawn from, and the output follows the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft import StaticGrowth
from treespec.errors import InvalidTree
from treespec.protocols import Coins, Growth, TreeModel, Verifier
from treespec.sampling.distributions import Sampling
from treespec.step import Step
from treespec.testing import StepOracle, TabularModel, target_law
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import chain

NEVER = -1e4
"""A finite logit whose probability is exactly 0 in float64."""

CHUNK = 256
"""Number of first tokens whose successors are computed in one pass."""


def total_variation(left: Float[Tensor, "..."], right: Float[Tensor, "..."]) -> float:
    """Half the sum of absolute differences: the largest error in the probability of any event.

    Example:
        >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        0.5
    """
    return float((left - right).abs().sum()) / 2


def sticky_model(marginal: Sequence[float], dependence: float) -> TabularModel:
    """A model whose tokens repeat the previous one with probability `dependence` and are else drawn anew.

    After a prompt of one token, every single token has the law `marginal`. The joint law of two neighbours,
    guessed independently, is wrong by dependence x (1 - sum of squared marginals) in total variation.

    Args:
        marginal: law of every single token; positive.
        dependence: from 0 (independent tokens) to 1 (one token repeated forever).
    """
    probs = torch.tensor(marginal, dtype=torch.float64)
    probs = probs / probs.sum()

    def row(context: tuple[int, ...]) -> Tensor:
        if len(context) < 2:
            return probs.log()
        mixed = (1 - dependence) * probs
        mixed[context[-1]] += dependence
        return mixed.log().clamp_min(NEVER)

    return TabularModel(row, len(marginal))


def head_rows(
    model: TabularModel, context: tuple[int, ...], depth: int, sampling: Sampling
) -> Float[Tensor, "depth V"]:
    """Predictions of perfect parallel heads: the marginal law of each of the next tokens.

    No head that sees only the committed text can do better.
    """
    law, axes = target_law(model, context, depth, sampling), range(depth)
    if depth == 1:
        return law[None]
    return torch.stack([law.sum([other for other in axes if other != axis]) for axis in axes])


def independent_law(rows: Float[Tensor, "depth V"]) -> Float[Tensor, "..."]:
    """The joint law of independent tokens, each drawn from its own row; `[V] * depth`."""
    return reduce(lambda law, row: law[..., None] * row, rows[1:], rows[0])


class ParallelDrafter:
    """Drafts with perfect parallel heads: each depth from its own distribution, blind to other guesses."""

    max_length = 1_000_000

    def __init__(
        self, model: TabularModel, growth: Growth | TreeShape, law: Law, sampling: Sampling
    ) -> None:
        if isinstance(growth, StaticGrowth):
            growth = growth.shape
        if not isinstance(growth, TreeShape):
            raise InvalidTree("parallel heads draft static shapes only: pass a TreeShape")
        self._shape, self._law, self.max_depth = growth, law, growth.depth
        self._context: tuple[int, ...] = ()
        # The distributions of the heads are computed once per context.
        self._heads = cache(partial(head_rows, model, depth=growth.depth, sampling=sampling))

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Set the committed tokens; the last one is the root."""
        self._context = tuple(tokens.tolist())

    def propose(self, coins: Coins) -> TokenTree:
        """Draft the shape; the tokens of each depth come from the distribution of its head."""
        shape = self._shape
        tokens = [self._context[-1], *([0] * (shape.size - 1))]
        if shape.size == 1:
            return TokenTree(shape, torch.tensor(tokens), None, Law.DETERMINISTIC)
        heads = self._heads(self._context)
        for node in shape.internal:
            children = shape.children[node]
            row = heads[shape.depths[node]][None]
            drawn = coins.draw_many(row, len(children), self._law)[0].tolist()
            for child, token in zip(children, drawn, strict=True):
                tokens[child] = token
        rows = torch.stack([heads[shape.depths[node]] for node in shape.internal])
        return TokenTree(shape, torch.tensor(tokens), rows, self._law)

    def commit(self, step: Step) -> None:
        """Append the kept tokens, which the heads see from now on."""
        self._context += step.tokens


@dataclass(frozen=True, eq=False)
class Guessing:
    """Parallel guesses, unverified and verified, by number of guesses and dependence between tokens.

    Args:
        tokens: numbers of tokens guessed at once, `[T]`.
        dependence: dependence of a token on the previous one, `[D]`.
        unverified: total variation between the joint law of the guesses and that of the target.
        verified: total variation between the output law and that of the target if the guesses are drafts.
        accepted: expected number of guesses that verification keeps.
    """

    tokens: tuple[int, ...]
    dependence: tuple[float, ...]
    unverified: Float[np.ndarray, "T D"]
    verified: Float[np.ndarray, "T D"]
    accepted: Float[np.ndarray, "T D"]


def guessing(
    tokens: Sequence[int],
    dependence: Sequence[float],
    *,
    marginal: Sequence[float] = (0.5, 0.3, 0.2),
    rule: Verifier = chain,
) -> Guessing:
    """Sweep `sticky_model` by enumerating every guess and every coin of the rule."""
    plain, prompt = Sampling(), (0,)
    unverified, verified, accepted = (np.zeros((len(tokens), len(dependence))) for _ in range(3))
    for row, count in enumerate(tokens):
        for column, value in enumerate(dependence):
            target = sticky_model(marginal, value)
            heads = head_rows(target, prompt, count, plain)
            law = target_law(target, prompt, count, plain)
            unverified[row, column] = total_variation(independent_law(heads), law)
            oracle = StepOracle(
                TreeShape.chain(count), Law.IID, target, target, prompt, plain, ParallelDrafter
            )
            verified[row, column] = total_variation(oracle.law(rule).probs, oracle.target_law)
            kept = (weight * verdict.accepted for weight, _, verdict in oracle.verdicts(rule))
            accepted[row, column] = float(sum(kept))
    return Guessing(tuple(tokens), tuple(dependence), unverified, verified, accepted)


@dataclass(frozen=True, eq=False)
class PairLaw:
    """The law of a model's next two tokens."""

    joint: Float[Tensor, "V V"]

    @property
    def independent(self) -> Float[Tensor, "V V"]:
        """The law of the two tokens if each is guessed from its own marginal."""
        return self.joint.sum(1)[:, None] * self.joint.sum(0)

    @property
    def distance(self) -> float:
        """Total variation between the independent and the joint law."""
        return total_variation(self.independent, self.joint)

    def inventions(self, count: int) -> list[tuple[int, int, float, float]]:
        """The pairs that independent guesses produce too often, worst first.

        For each pair: both tokens, their probability if guessed, and their probability under the model.
        """
        guessed = self.independent
        worst = (guessed - self.joint).flatten().topk(count).indices.tolist()
        pairs = [divmod(index, len(self.joint)) for index in worst]
        return [(*pair, float(guessed[pair]), float(self.joint[pair])) for pair in pairs]


def next_two_tokens(
    model: TreeModel, prompt: Int[Tensor, "T"], sampling: Sampling | None = None
) -> PairLaw:
    """The exact law of the next two tokens, from one distribution after every token of the vocabulary."""
    sampling, model = sampling or Sampling(), model.fresh()
    model.prefill(prompt[:-1])
    probs = [
        sampling(model.run(torch.cat([prompt[-1:], chunk]), (-1, *([0] * len(chunk)))).logits)
        for chunk in torch.arange(model.vocab_size, device=prompt.device).split(CHUNK)
    ]
    first_probs, second_probs = probs[-1][0], torch.cat([rows[1:] for rows in probs])
    return PairLaw(first_probs.double()[:, None] * second_probs.double())
