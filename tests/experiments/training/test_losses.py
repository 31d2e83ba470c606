"""What drafts are trained to make small: values, gradients and minima."""

import math

import pytest
import torch

from treespec.experiments.training.losses import ETA, LOSSES, Labels

TARGET, DRAFT = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)
"""Of tokens a, b, c; the text goes on with b."""
ALPHA = 0.7
KL, REVERSE_KL = 0.2367, 0.2197
LAMBDA = math.exp(-ETA * ALPHA)
VALUES = {
    "cross_entropy": -math.log(0.3),
    "forward_kl": KL,
    "reverse_kl": REVERSE_KL,
    "total_variation": 1 - ALPHA,
    "lk_alpha": -math.log(ALPHA),
    "lk_lambda": LAMBDA * KL + (1 - LAMBDA) * (1 - ALPHA),
}
DIVERGENCES = sorted(VALUES.keys() - {"cross_entropy"})


def labels_of(*rows: tuple[float, ...]) -> Labels:
    logs = torch.tensor(rows, dtype=torch.float64).log()
    return Labels(logs, torch.ones(len(rows), dtype=torch.long))


def random_labels(mass: float, rows: int = 5, width: int = 7) -> Labels:
    """Labels whose probabilities sum to `mass`; the text's token of the first row cannot be drafted."""
    torch.manual_seed(0)
    logs = torch.randn(rows, width, dtype=torch.float64).mul(2).log_softmax(-1) + math.log(mass)
    return Labels(logs, torch.arange(-1, rows - 1))


def test_the_toy_of_three_tokens() -> None:
    assert VALUES.keys() == LOSSES.keys()
    logits = torch.tensor([DRAFT]).log() + 5  # logits need not be log-probabilities
    for name, value in VALUES.items():
        assert LOSSES[name](labels_of(TARGET), logits).item() == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_gradients_are_those_of_finite_differences(name: str, mass: float) -> None:
    labels = random_labels(mass)
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        if name != "lk_lambda":
            return LOSSES[name](labels, logits)
        # its weight is a number: as it is at the point where the gradient is taken
        rejected = LOSSES["total_variation"]
        weight = torch.exp(-ETA * (1 - rejected(labels, fixed)).mean())
        kl = LOSSES["forward_kl"](labels, logits)
        return weight * kl + (1 - weight) * rejected(labels, logits)

    fixed = logits.detach().clone()
    torch.testing.assert_close(LOSSES[name](labels, logits), loss(logits))
    (taken,) = torch.autograd.grad(LOSSES[name](labels, logits).sum(), logits)
    (checked,) = torch.autograd.grad(loss(logits).sum(), logits)
    torch.testing.assert_close(taken, checked)
    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_the_target_itself_is_the_minimum(name: str, mass: float) -> None:
    """Of the target given what the draft can draft: the gradient is 0, and no step away lowers a loss."""
    labels, loss = random_labels(mass), LOSSES[name]
    logits = labels.logs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(labels, logits).sum(), logits)
    assert gradient.abs().max() < 1e-9
    if (name, mass) == ("lk_lambda", 0.6):
        return  # a step away also changes the weight, which is no part of what is made small
    least = {
        "forward_kl": 0.0, "reverse_kl": -math.log(mass), "total_variation": 1 - mass,
        "lk_alpha": -math.log(mass),
    }  # fmt: skip
    at_target = loss(labels, labels.logs)
    if name in least:
        torch.testing.assert_close(
            at_target, torch.full((5,), least[name], dtype=torch.float64), atol=1e-9, rtol=0
        )
    for seed in range(20):
        torch.manual_seed(seed)
        away = loss(labels, labels.logs + 0.5 * torch.randn(5, 7, dtype=torch.float64))
        assert (away >= at_target - 1e-9).all()


@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_give_finite_losses_and_gradients(name: str) -> None:
    """Target and draft each put everything on one token, the same one or another."""
    sure = torch.tensor([80.0, -80.0, -80.0])
    labels = Labels(sure.expand(3, 3).log_softmax(-1), torch.tensor([0, 0, -1]))
    logits = torch.stack([sure, sure.flip(0), torch.zeros(3)]).requires_grad_()
    values = LOSSES[name](labels, logits)
    values.sum().backward()
    gradient = logits.grad
    assert gradient is not None
    assert values.isfinite().all()
    assert gradient.isfinite().all()
    if name in ("lk_alpha", "forward_kl"):  # they pull hard where nothing overlaps
        assert values[1] > 150
        assert gradient[1, 0] < -0.3


def test_a_token_that_cannot_be_drafted_costs_nothing() -> None:
    values = LOSSES["cross_entropy"](random_labels(0.6), torch.zeros(5, 7, dtype=torch.float64))
    assert values.tolist() == pytest.approx([0.0] + [math.log(7)] * 4)


def test_losses_of_no_rows_are_no_numbers() -> None:
    for loss in LOSSES.values():
        none = Labels(torch.empty(0, 4), torch.empty(0, dtype=torch.long))
        assert loss(none, torch.empty(0, 4)).sum() == 0
