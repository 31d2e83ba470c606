"""Compiled passes draw the tokens that eager passes draw, unless a uniform lies near an edge.

The passes round differently, which in float32 changes about 1e-6 of a distribution's mass. So a draw can
differ only if its uniform lies that close to the edge between two tokens, which is rare. The embedded pair
has 4,096 tokens.
"""

from collections.abc import Sequence

import jaxtyping
import pytest
import torch
from torch import Tensor

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.models.load import Pair
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.coins import inverse_cdf
from treespec.step import Step
from treespec.target import ModelTarget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WARM = Sampling(1.0)
BRANCHING = (3, 2, 1)
SHAPE = TreeShape.expansion(list(BRANCHING))
DRAWS = 3 + 3 * 2 + 6 * 1
CLOSE = 1e-5
"""Largest distance, as a share of all mass, of a uniform from the edge between two differing tokens."""

TEXTS, STEPS = 10, 40


@pytest.fixture(scope="module")
def pairs() -> tuple[Pair, Pair]:
    """The embedded pair in float32, with eager and with compiled passes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        compiled = load_pair("embedded", passes="compiled", draft_passes="compiled")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert [model.passes.kind for model in compiled.models] == ["compiled"] * 2
    return load_pair("embedded"), compiled


def distance(
    model: TransformersModel,
    text: Sequence[int],
    taken: Sequence[int],
    drawn: tuple[int, int],
    uniform: float,
) -> float:
    """Distance of a uniform from the edges between two tokens, as a share of all mass, by an eager pass.

    Args:
        model: the eager model.
        text: the text up to the token before the draw.
        taken: tokens that can no longer be drawn.
        drawn: the tokens drawn by the two kinds of passes.
        uniform: the uniform of this draw.
    """
    own = model.fresh()
    own.prefill(torch.tensor(text[:-1], dtype=torch.long))
    masses = own.run(torch.tensor(text[-1:]), (-1,)).logits[0].double().softmax(-1)
    masses[list(taken)] = 0
    edges = masses.cumsum(-1)
    point, (low, high) = uniform * float(edges[-1]), sorted(drawn)
    return max(abs(point - float(edges[low])), abs(point - float(edges[high - 1])))


def first_draft_difference(trees: Sequence[TokenTree], uniforms: Sequence[float]) -> tuple | None:
    """Where trees first differ: node, path of its parent, earlier siblings, both tokens and the uniform."""
    ours, theirs = (tree.token_ids for tree in trees)
    shape = trees[0].shape
    # Every level draws row by row, as many children of each: in the order of the nodes.
    for node in range(1, shape.size):
        if ours[node] != theirs[node]:
            parent = shape.parents[node]
            before = [ours[child] for child in shape.children[parent] if child < node]
            path = [ours[one] for one in shape.path(parent)]
            return path, before, (ours[node], theirs[node]), uniforms[node - 1]
    return None


@pytest.mark.parametrize("law", [Law.WITHOUT_REPLACEMENT, Law.IID], ids=str)
def test_draws_differ_only_at_edges(law, pairs):
    rule = verify.rrsw if law is Law.WITHOUT_REPLACEMENT else verify.rrs
    eager = pairs[0]
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"draft": [], "target": []}
    draws = dict.fromkeys(found, 0)
    with torch.inference_mode():
        for number in range(TEXTS):
            text = torch.randint(4096, (20,), generator=generator).tolist()
            drafters = [ModelDrafter(pair.draft, SHAPE, law, WARM) for pair in pairs]
            targets = [ModelTarget(pair.target) for pair in pairs]
            for one in (*drafters, *targets):
                one.prefill(torch.tensor(text))
            for step in range(STEPS):
                seed = 1000 * number + step
                trees = [drafter.propose(TorchCoins(seed)) for drafter in drafters]
                draws["draft"] += DRAWS
                apart = first_draft_difference(trees, TorchCoins(seed).uniforms(DRAWS))
                if apart is not None:
                    path, taken, drawn, uniform = apart
                    taken = taken if law is Law.WITHOUT_REPLACEMENT else []
                    found["draft"].append(
                        distance(eager.draft, [*text[:-1], *path], taken, drawn, uniform)
                    )
                tree = trees[0]
                scores = [target.score(tree) for target in targets]
                uniforms = torch.rand(tree.shape.size, 1, generator=generator, dtype=torch.float64)
                tokens: list[Tensor] = [inverse_cdf(WARM(one.logits), uniforms) for one in scores]
                draws["target"] += tree.shape.size
                for node in (tokens[0] != tokens[1]).any(-1).nonzero().flatten().tolist():
                    path = [tree.token_ids[one] for one in tree.shape.path(node)]
                    drawn = int(tokens[0][node]), int(tokens[1][node])
                    found["target"].append(
                        distance(
                            eager.target, [*text[:-1], *path], [], drawn, float(uniforms[node])
                        )
                    )
                verdict = rule(tree, WARM.rows(scores[0].logits), TorchCoins(seed + 1_000_000))
                kept = (*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus)
                text += kept
                for i, target in enumerate(targets):
                    target.commit(Step(tree, verdict, scores[i], kept))
                    if apart is None:
                        drafters[i].commit(Step(tree, verdict, scores[i], kept))
                    else:  # the rows of the two trees belong to different tokens
                        drafters[i].prefill(torch.tensor(text))
    for of, far in found.items():
        print(
            f"{law}, {of}: {len(far)} of {draws[of]:,} differ, up to {max(far, default=0):.1e} off"
        )
        assert max(far, default=0.0) <= CLOSE
        assert len(far) <= draws[of] / 1000
