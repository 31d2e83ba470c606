"""What a drafted level does between its pass and the next one reads nothing on the host.

For every law and sampling of static drafts; that their passes read nothing is tested at load
(`static_trial`) and in `test_static_draft`.
"""

import pytest
import torch
from far_away import FarAway

from treespec import Law, Sampling, TreeShape
from treespec.draft.choosing import TensorHead
from treespec.draft.levels import levels_of
from treespec.models.passes.static_trial import NoHostReads
from treespec.sampling.coins import GivenUniforms

SAMPLINGS = {
    "plain": Sampling(),
    "greedy": Sampling(temperature=0.0),
    "temperature": Sampling(temperature=0.7),
    "top_k": Sampling(temperature=0.7, top_k=5),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.1),
    "typical_p": Sampling(typical_p=0.8),
    "epsilon": Sampling(epsilon_cutoff=0.01),
    "eta": Sampling(eta_cutoff=0.01),
    "all": Sampling(0.9, top_k=50, top_p=0.9, min_p=0.01),
}
BUSHY, PAIRS = TreeShape((-1, 0, 0, 0, 1, 1, 2, 4, 4, 6)), TreeShape((-1, 0, 0, 1, 1, 2, 3, 3))


def drafted(shape, law, sampling, logits, uniforms):
    """Tokens, rows and extremes of all levels."""
    head, begin, children = TensorHead(law, sampling, GivenUniforms(uniforms)), 0, []
    for level in levels_of(shape, logits.device).levels:
        children.append(head.children(level, logits[begin : begin + len(level.nodes)]))
        begin += len(level.nodes)
    rows = head.probs()
    found = [torch.cat(children), head.extremes()]
    return found if rows is None else [*found, rows]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("law", Law, ids=str)
def test_children(law, sampling):
    shape = PAIRS if law is Law.HUB else BUSHY
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(len(shape.internal), 300, generator=generator)
    uniforms = torch.rand(20, generator=generator, dtype=torch.float64)
    right = drafted(shape, law, sampling, logits, uniforms)
    with FarAway() as watch:
        found = drafted(shape, law, sampling, logits, uniforms)
    assert watch.reads == []
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    with NoHostReads(), FarAway():
        drafted(shape, law, sampling, logits, uniforms)
