"""How far a draft's probabilities are from its target's at held-out positions, and how much they share.

Both are computed at temperature 1 at every position of the target's own answers, and both mean the same for
every family and whatever a draft was trained with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from treespec.experiments.measure.forest_recording import Drafts
from treespec.experiments.report.table import interval_columns
from treespec.sampling.distributions import Sampling
from treespec.search.intervals import Interval, ratio

LOSS_DEPTH = 4
"""Depths over which the loss is averaged: those of the chain that every family can draft."""

SAMPLING = Sampling(temperature=1.0)


@dataclass(frozen=True)
class Closeness:
    """How near a draft is to its target.

    Args:
        loss: KL(target || draft) in nats, the mean over the positions and `LOSS_DEPTH` depths, the draft's
            row at each depth being that given the answer down to there. Both distributions are renormalised
            over the tokens that all drafts which are compared can draft.
        by_depth: the same, at each depth.
        covered: share of the target's probability on these tokens: 1 if they are all.
        overlap: mean of sum_v min(target_probs, draft_probs) at depth 1: the acceptance of one drawn child.
            Here nothing is renormalised: what a draft cannot draft is not accepted.
    """

    loss: Interval
    by_depth: tuple[float, ...]
    covered: float
    overlap: Interval

    def row(self) -> dict[str, float | int | None]:
        """All figures as columns of a curve."""
        line: dict[str, float | int | None] = {}
        line |= interval_columns("held_out_loss", self.loss)
        line |= {f"held_out_loss_{depth}": loss for depth, loss in enumerate(self.by_depth, 1)}
        line["covered"] = self.covered
        return line | interval_columns("overlap", self.overlap)


@dataclass(frozen=True)
class TextCloseness:
    """How near a draft is to its target along an answer.

    Args:
        losses: KL(target || draft) at each position and depth.
        covered: the target's probability of the compared tokens.
        overlap: sum_v min(target_probs, draft_probs) at the roots.
    """

    losses: Float[np.ndarray, "n levels"]
    covered: Float[np.ndarray, " n"]
    overlap: Float[np.ndarray, " n"]

    @classmethod
    def of(
        cls, target: Float[Tensor, "m V"], part: Drafts, start: int, kept: Int[Tensor, " v"] | None
    ) -> "TextCloseness":
        """Of consecutive positions.

        Args:
            target: its logits at the positions of the answer.
            part: the drafts of the positions from `start` on.
            start: the first position.
            kept: the tokens that are compared, None for all; a head with rows for its own tokens is
                compared among these.
        """
        count, losses = len(part.root_logits), []
        among = kept if part.ids is None else part.ids
        for depth, draft in enumerate([part.root_logits, *part.path_logits[: LOSS_DEPTH - 1]]):
            at = target[start + depth : start + depth + count]
            losses.append(
                _kl(_some_of(at, among), draft if part.ids is not None else _some_of(draft, among))
            )
        probs, drafted = SAMPLING(target[start : start + count]), SAMPLING(part.root_logits)
        shared = torch.minimum(_some_of(probs, part.ids), drafted).sum(-1)
        return cls(
            torch.stack(losses, dim=1).double().cpu().numpy(),
            _some_of(probs, among).sum(-1).double().cpu().numpy(),
            shared.double().cpu().numpy(),
        )

    @classmethod
    def joined(
        cls, parts: "Sequence[TextCloseness]", count: int, *, rows_of_text: bool
    ) -> "TextCloseness":
        """Of the first positions of an answer; `rows_of_text` as in `along`."""
        losses = np.concatenate([part.losses for part in parts])
        return cls(
            along(losses, LOSS_DEPTH, count, rows_of_text=rows_of_text),
            np.concatenate([part.covered for part in parts])[:count],
            np.concatenate([part.overlap for part in parts])[:count],
        )


def closeness(texts: Sequence[TextCloseness]) -> Closeness:
    """Over all positions of all answers."""
    counts = np.array([len(text.overlap) for text in texts])
    losses = np.concatenate([text.losses for text in texts])
    return Closeness(
        loss=ratio(np.array([text.losses.mean(axis=1).sum() for text in texts]), counts),
        by_depth=tuple(losses.mean(axis=0).tolist()),
        covered=float(np.concatenate([text.covered for text in texts]).mean()),
        overlap=ratio(np.array([text.overlap.sum() for text in texts]), counts),
    )


def along(
    values: Float[np.ndarray, "n levels"] | Int[np.ndarray, "n levels"],
    levels: int,
    count: int,
    *,
    rows_of_text: bool,
) -> Float[np.ndarray, "count levels"] | Int[np.ndarray, "count levels"]:
    """What is found below each of the first positions, depth by depth along the text.

    `rows_of_text`: whether a draft's row depends on the text alone, so that what is found at some depth is
    what is found at the root of a later position.
    """
    if not rows_of_text:
        return values[:count, :levels]
    return sliding_window_view(values[:, 0], levels)[:count]


def _some_of(rows: Float[Tensor, "n V"], among: Int[Tensor, " v"] | None) -> Float[Tensor, "n v"]:
    return rows if among is None else rows[:, among]


def _kl(target: Float[Tensor, "n v"], draft: Float[Tensor, "n v"]) -> Float[Tensor, " n"]:
    logs, drafted = target.float().log_softmax(-1), draft.float().log_softmax(-1)
    return (logs.exp() * (logs - drafted)).sum(-1)
