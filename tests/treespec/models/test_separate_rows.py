"""Layers that mix the rows of a pass are found, also in experts that no row reaches; rounding is told."""

from typing import Any

import pytest
import torch
from tiny_models import build
from tiny_quantised import OneScale, RowScales, with_row_scales
from torch import Tensor, nn

from treespec.errors import UnsupportedModel
from treespec.models import probe
from treespec.models.separate_rows import Layers, examine, recomputed


@pytest.fixture
def rows() -> Tensor:
    return torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))


def examined(layer: nn.Module, rows: Tensor) -> Layers:
    model: Any = nn.Sequential(layer)
    model.dtype = torch.float32
    with torch.no_grad():
        return examine(model, lambda: model(rows))


class Experts(nn.Module):
    """All experts in one matrix, as in transformers. `shared`: one scale for all rows of an expert."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.act, self.shared = nn.SiLU(), shared
        self.weight = nn.Parameter(torch.randn(3, 16, 16))

    def forward(self, rows: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(rows)
        for expert in index.unique():
            at = (index == expert).nonzero()
            own = rows[at[:, 0]]
            scale = own.abs().amax(None if self.shared else -1, keepdim=True) / 127
            turned = self.act((own / scale).round() * scale @ self.weight[expert])
            out.index_add_(0, at[:, 0], turned * weights[at[:, 0], at[:, 1], None])
        return out


class Mixture(nn.Module):
    """Every row goes to experts of its own, and no row to the last expert."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, rows: Tensor) -> Tensor:
        if isinstance(self.experts, nn.ModuleList):
            return torch.stack([self.experts[i](rows[0, i : i + 1]) for i in range(4)])
        flat = rows[0, :2]
        return self.experts(flat, torch.tensor([[0], [1]]), torch.ones(2, 1))


@pytest.mark.parametrize("layer", [nn.LayerNorm(16), RowScales(16, 8), nn.Linear(16, 8)])
def test_rows_apart(layer: nn.Module, rows: Tensor) -> None:
    assert examined(layer, rows) == Layers(products=isinstance(layer, RowScales))


def test_one_scale_is_found(rows: Tensor) -> None:
    assert examined(OneScale(16, 8), rows).mixing == "0"


@pytest.mark.parametrize("at", [1, 4])
def test_one_scale_is_found_in_experts(rows: Tensor, at: int) -> None:
    """Of one row each, or of none."""
    layers = [OneScale(16, 8) if i == at else RowScales(16, 8) for i in range(5)]
    assert examined(Mixture(nn.ModuleList(layers)), rows).mixing == f"0.experts.{at}"


@pytest.mark.parametrize("shared", [True, False])
def test_experts_in_one_matrix_are_examined(rows: Tensor, shared: bool) -> None:
    assert examined(Mixture(Experts(shared)), rows).mixing == ("0.experts" if shared else None)


def test_what_cannot_be_examined_is_told(rows: Tensor) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16, 16, dtype=torch.int8), requires_grad=False)

        def forward(self, *, states: Tensor) -> Tensor:
            return states

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = Odd()

        def forward(self, rows: Tensor) -> Tensor:
            return self.odd(states=rows)

    assert examined(Around(), rows) == Layers(unexamined="0.odd")
    model: Any = build("llama")
    model.model.layers[0].mlp.odd = Odd()
    with pytest.raises(
        UnsupportedModel, match=r"layer model.layers.0.mlp.odd has quantised weights"
    ):
        probe.probe(model)


@pytest.mark.parametrize(
    ("layer", "least", "most"), [(RowScales(16, 8), 1e-3, 0.1), (nn.Linear(16, 8), 0, 0)]
)
def test_rounding_is_measured(layer: nn.Module, least: float, most: float, rows: Tensor) -> None:
    with torch.no_grad():
        once = layer(rows)
        with recomputed(layer):
            again = layer(rows)
    assert least <= float((again - once).norm() / once.norm()) <= most


def test_a_coarse_model_is_allowed_its_own_rounding() -> None:
    """5 bits in every layer, with a scale for each row: more than any bound by the dtype allows."""
    model = build("llama")
    finding = probe.probe(with_row_scales(model, 15))
    assert 0.15 < finding.tolerance < finding.effect
    assert finding.error <= finding.tolerance


def test_a_product_that_returns_more_is_left_alone(rows: Tensor) -> None:
    class Router(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input).topk(2)

    router = Router(16, 4)
    assert examined(router, rows).mixing is None
    with recomputed(router):
        assert torch.equal(router(rows)[1], router.forward(rows)[1])
