"""What a drafter proposes after each step of a text, against a fresh drafter on the whole text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from marginal_heads import states_of

from treespec import Sampling, Step, TokenTree, TorchCoins, TreeShape, verify
from treespec.batch import Text, decode_many
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget

TEXT = [5, 17, 80, 2, 41, 63, 9, 33]
BUSHY = TreeShape.expansion([3, 2, 1])
SHAPES = (BUSHY, TreeShape.chain(3), BUSHY)
"""Of the texts of a batch: trees and chains pass through the models together."""
STEPS = 40
FLOAT32 = 1e-5
"""How far probabilities in float32 may stand from those of a fresh draft."""


def require_of_text_alone(
    make: Callable[[TreeShape], Any],
    model: TransformersModel,
    lengths: Sequence[int],
    most: float = FLOAT32,
) -> None:
    """Decode texts, several in one batch; each draft is the one of a fresh drafter on the text so far.

    Args:
        make: a drafter of trees of a shape, i.i.d. at temperature 1.
        model: the target.
        lengths: of the prompts.
        most: allowed difference of probabilities.
    """
    prompts = [TEXT[:length] for length in lengths]
    drafters = [make(shape) for shape in SHAPES[: len(prompts)]]
    noted = [_noted(drafter) for drafter in drafters]
    texts = [
        Text(
            ModelTarget(model.fresh()), drafter, verify.rrs, torch.tensor(prompt), Sampling(),
            TorchCoins(3 + i), max_new_tokens=90,
        )
        for i, (drafter, prompt) in enumerate(zip(drafters, prompts, strict=True))
    ]  # fmt: skip
    grown, accepted = [[prompt] for prompt in prompts], [0] * len(prompts)
    for i, step in _steps(texts):
        grown[i].append([*grown[i][-1], *step.tokens])
        accepted[i] += step.verdict.accepted
    assert min(accepted) >= 3
    for shape, trees, after in zip(SHAPES, noted, grown, strict=False):
        assert len(trees) >= STEPS
        for i, tree in enumerate(trees[:STEPS]):
            fresh = make(shape)
            fresh.prefill(torch.tensor(after[i]), states_of(model, fresh.reads, after[i][:-1]))
            again = fresh.propose(TorchCoins(i))
            assert again.token_ids == tree.token_ids
            if tree.draft_probs is not None:
                torch.testing.assert_close(again.draft_probs, tree.draft_probs, rtol=0, atol=most)


def _noted(drafter: Any) -> list[TokenTree]:
    """The trees that the drafter will have proposed, each from coins of its own."""
    trees, propose = [], drafter.propose

    def noted(coins: TorchCoins) -> TokenTree:
        trees.append(propose(TorchCoins(len(trees))))
        return trees[-1]

    drafter.propose = noted
    return trees


def _steps(texts: Sequence[Text]) -> Iterator[tuple[int, Step]]:
    if len(texts) == 1:
        return ((0, step) for step in texts[0].steps())
    return decode_many(texts)
