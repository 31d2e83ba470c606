"""From logits to the distributions that drafting and acceptance share.

Pure functions on rows `[V]` or stacks of rows `[..., V]`. Half precision is computed in float32; float64
stays float64. Penalties and bans, which depend on the text, are in `treespec.sampling.processing`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from treespec.checks import integer, number, plain_integer, shown
from treespec.errors import InvalidArgument, InvalidSampling, InvalidTree, NonFiniteLogits
from treespec.sampling import cut_offs
from treespec.sampling.processors import Processors

__all__ = [
    "SampledRows",
    "Sampling",
    "best_token",
    "read_numbers",
    "require_finite",
    "residual",
    "wide",
    "without",
]

TOP_P_CANDIDATES = 1024
"""Number of most probable tokens that top-p examines first."""

TRUNCATIONS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Truncations in the order in which they are applied."""

LEAST_TEMPERATURE = 1e-6
"""Smallest temperature above 0: dividing logits by less overflows float32."""


@dataclass(frozen=True)
class Sampling:
    """Logits to probabilities: temperature, then truncations, with transformers' order and meaning.

    Target and draft use the same object, so both distributions are changed alike. The truncations are
    applied in the order of their names here.

    Args:
        temperature: 0, or at least 1e-6. 0 puts all mass on the most probable token (ties: the lowest
            id); the truncations then have no effect.
        top_k: keep the k most probable tokens (ties with the k-th are kept).
        top_p: keep the smallest set of most probable tokens whose mass reaches top_p, in (0, 1].
        min_p: drop tokens less probable than min_p times the most probable one, in [0, 1].
        typical_p: keep the tokens whose information is closest to the row's entropy, until their mass
            reaches this, in (0, 1] (arXiv:2202.00666).
        epsilon_cutoff: drop tokens less probable than this, in [0, 1) (arXiv:2210.15191).
        eta_cutoff: drop tokens less probable than min(eta, sqrt(eta) exp(-entropy)), in [0, 1) (there).
        processors: what changes logits before all this, at any temperature, by the text so far. A model
            drafter and `decode` apply them; calling this object does not.

    Raises:
        InvalidSampling: if a setting is outside its range.

    Example:
        >>> Sampling(temperature=0.0)(torch.tensor([1.0, 3.0, 3.0]))
        tensor([0., 1., 0.])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    processors: Processors | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", *TRUNCATIONS):
            value = getattr(self, name)
            if value is not None or name == "temperature":
                number(name, value, InvalidSampling)
        if plain_integer(self.top_k) is not None:
            object.__setattr__(self, "top_k", plain_integer(self.top_k))
        valid = self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature < float("inf")
        allowed = f"0 (greedy), or at least {LEAST_TEMPERATURE:g} and finite"
        _require_range("temperature", self.temperature, valid, allowed)
        if self.top_k is not None:
            valid = isinstance(self.top_k, int) and self.top_k >= 1
            _require_range("top_k", self.top_k, valid, "an integer of at least 1")
        if self.top_p is not None:
            _require_range("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]")
        if self.min_p is not None:
            _require_range("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]")
        if self.typical_p is not None:
            _require_range("typical_p", self.typical_p, 0 < self.typical_p <= 1, "in (0, 1]")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            if (value := getattr(self, name)) is not None:
                _require_range(name, value, 0 <= value < 1, "in [0, 1)")
        processors = self.processors
        if processors is not None and not isinstance(processors, Processors):
            raise InvalidSampling(f"processors = {shown(processors)}, but must be Processors(...)")
        if processors is not None and not processors.changes:
            object.__setattr__(self, "processors", None)

    @property
    def greedy(self) -> bool:
        """Whether every distribution is one-hot."""
        return self.temperature == 0

    def truncates(self, vocabulary: int) -> bool:
        """Whether rows over so many tokens are anything but a softmax or a one-hot row."""
        if self.greedy:
            return False
        top_k = self.top_k is not None and self.top_k < vocabulary
        top_p = self.top_p is not None and self.top_p < 1
        typical = self.typical_p is not None and self.typical_p < 1
        return (
            top_k or top_p or typical or bool(self.min_p or self.epsilon_cutoff or self.eta_cutoff)
        )

    @property
    def without_processors(self) -> "Sampling":
        """The same settings for logits that the processors have changed already."""
        return self if self.processors is None else replace(self, processors=None)

    @property
    def untruncated(self) -> "Sampling":
        """Temperature 1 without truncations."""
        return Sampling()

    def ending(self, ends: Iterable[int], max_new_tokens: int) -> "Sampling":
        """These settings for texts that end at these tokens, or after so many new ones.

        Raises:
            InvalidSampling: if a processor contradicts them.
        """
        if self.processors is None:
            return self
        return replace(self, processors=self.processors.ending(ends, max_new_tokens))

    def __call__(self, logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
        """Probabilities of the next token.

        Args:
            logits: finite; `rows` checks this, this method does not.

        Returns:
            Rows that sum to 1, in float32, or float64 for float64 logits.

        Raises:
            InvalidArgument: if the logits are not a tensor of real numbers with at least one token.
        """
        _require_logits(logits, "[..., V]")
        logits = wide(logits)
        if self.greedy:
            best = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(logits).scatter_(-1, best, 1.0)
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            logits = _nucleus(logits, self.top_p)
        if self.min_p:
            probs = logits.softmax(-1)
            logits = logits.masked_fill(
                probs < self.min_p * probs.amax(-1, keepdim=True), -torch.inf
            )
        if self.typical_p is not None and self.typical_p < 1:
            logits = cut_offs.typical(logits, self.typical_p)
        if self.epsilon_cutoff:
            logits = cut_offs.epsilon(logits, self.epsilon_cutoff)
        if self.eta_cutoff:
            logits = cut_offs.eta(logits, self.eta_cutoff)
        return logits.softmax(-1)

    def rows(self, logits: Float[Tensor, "N V"], model: str = "target") -> "SampledRows":
        """Probabilities of each row of `logits`, computed on first use of the row.

        Raises:
            InvalidArgument: if the logits are not a tensor `[N, V]` of real numbers.
            InvalidSampling: if there are processors, which need the text of each row
                (`treespec.sampling.processing.rows.rows_of_text`).
        """
        if self.processors is not None:
            raise InvalidSampling(
                "these settings have processors, which need the text of each row: use "
                "`treespec.sampling.processing.rows.rows_of_text(sampling, prompt_length, device)`"
            )
        return SampledRows(logits, self, model)


class SampledRows:
    """Rows of probabilities, computed from logits on first use and cached.

    Args:
        logits: one row per node; kept unchanged for verifiers that read many rows at once.
        sampling: the sampling settings.
        model: name of the model in the error message if a row is not finite.

    Raises:
        NonFiniteLogits: when a requested row holds NaN or an infinity.
    """

    def __init__(
        self, logits: Float[Tensor, "N V"], sampling: Sampling, model: str = "target"
    ) -> None:
        _require_logits(logits, "[N, V]")
        self.logits, self.sampling, self.model = logits, sampling, model
        self._rows: dict[int, Tensor] = {}

    def __getitem__(self, node: int) -> Float[Tensor, "V"]:
        if type(node) is not int or node not in self._rows:
            node = integer("node", node, error=InvalidTree)
            self._rows[node] = self.sampling(self._finite(node))
        return self._rows[node]

    def greedy_token(self, node: int) -> int:
        """The token that has all the mass of a node's row at temperature 0, without computing the row.

        Raises:
            InvalidTree, NonFiniteLogits: as for the row.
        """
        return int(best_token(self._finite(node)))

    def copied(self, logits: Float[Tensor, "N V"]) -> "SampledRows":
        """The same rows from a copy of the logits on another device."""
        return SampledRows(logits, self.sampling, self.model)

    def _finite(self, node: int) -> Float[Tensor, "V"]:
        """The logits of a node, after checking that the node exists and its logits are finite."""
        logits = self._given(node)
        require_finite(logits, self.model, [node])
        return logits

    def _given(self, node: int) -> Float[Tensor, "V"]:
        size = self.logits.shape[0]
        if not 0 <= node < size:
            raise InvalidTree(f"there is no row for node {node}: the nodes are 0..{size - 1}")
        return self.logits[node]


def require_finite(logits: Float[Tensor, "*T V"], model: str, nodes: Sequence[int]) -> None:
    """Raise `NonFiniteLogits` for the first node whose row holds NaN or an infinity.

    Args:
        logits: one row for each node, or the row of one node.
        model: name of the model in the message.
        nodes: the node of each row.
    """
    low, high = read_numbers(*logits.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        first = (~torch.isfinite(logits)).any(-1).reshape(-1).nonzero()[0]
        raise NonFiniteLogits(nodes[int(first)], model)


def best_token(logits: Float[Tensor, "*rows V"]) -> Int[Tensor, "*rows"]:
    """The most probable token of each row; the first one in case of ties.

    On a CPU numpy is used: it takes a quarter of the time of torch, which compares one token after the
    other (0.6 us for 4096 tokens).
    """
    scores = wide(logits)
    if scores.is_cpu and not torch.compiler.is_compiling():
        return torch.from_numpy(np.asarray(scores.detach().numpy().argmax(-1)))
    return scores.argmax(-1)


def wide(logits: Tensor) -> Tensor:
    """The logits in float32, or float64 if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def read_numbers(*numbers: Shaped[Tensor, ""]) -> list[float]:
    """Scalars of one device and dtype as plain numbers; waits for the device once."""
    if numbers[0].is_cpu:  # stacking would cost more than it saves
        return [number.item() for number in numbers]
    return torch.stack(numbers).tolist()


def _nucleus(logits: Float[Tensor, "*rows V"], top_p: float) -> Float[Tensor, "*rows V"]:
    """The logits, with -inf outside the smallest set of most probable tokens whose mass reaches top_p.

    Of equally probable tokens at its edge, those with the lowest ids are in the set. Such tokens are common
    in bfloat16, and devices sort them differently.

    On a CPU, sorting the whole row takes ten times as long as finding its best thousand tokens, which
    usually hold that mass. A GPU sorts fast, and checking whether they do would make the host wait for it.
    """
    probs = logits.softmax(-1)
    candidates = logits.shape[-1] if logits.is_cuda else TOP_P_CANDIDATES
    while True:
        candidates = min(candidates, logits.shape[-1])
        best = probs.topk(candidates, dim=-1).values
        mass = best.cumsum(-1)
        if candidates == logits.shape[-1] or bool((mass[..., -1] >= top_p).all()):
            break
        candidates *= 8
    count = (mass - best < top_p).sum(-1, keepdim=True).clamp_min(1)
    edge = best.gather(-1, count - 1)
    in_nucleus = probs >= edge
    if logits.is_cuda or bool((in_nucleus.sum(-1, keepdim=True) > count).any()):
        above, tied = probs > edge, probs == edge
        room = count - above.sum(-1, keepdim=True)
        in_nucleus = above | (tied & (tied.cumsum(-1) <= room))
    return logits.masked_fill(~in_nucleus, -torch.inf)


def residual(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"]
) -> Float[Tensor, "V"]:
    """norm([p - q]+), the target's mass that the draft does not cover (arXiv:2211.17192, Section 2.3).

    If rounding leaves no mass (p = q), p itself is returned: there was nothing to reject.
    """
    if target_probs.shape != draft_probs.shape:  # which would broadcast
        raise InvalidArgument(
            f"target_probs is {shown(target_probs)} and draft_probs {shown(draft_probs)}, but must be rows "
            "over one vocabulary"
        )
    difference = (target_probs - draft_probs).clamp_min_(0)  # in place: rows are long
    mass = difference.sum()
    return difference.div_(mass) if mass.item() > 0 else target_probs


def without(
    draft_probs: Float[Tensor, "*rows V"], removed: Int[Tensor, "*rows j"]
) -> Float[Tensor, "*rows V"]:
    """The draft distribution given that the next token is not among `removed`.

    If these tokens were its whole support, it becomes uniform over all other tokens, so that drawing can
    continue (Sequoia, arXiv:2402.12374, Algorithm 2). Drawing without replacement and its acceptance rule
    both call this function.

    Args:
        draft_probs: the initial distribution of each row.
        removed: distinct token ids, fewer than V.
    """
    remaining = draft_probs.scatter(-1, removed, 0.0)
    mass = remaining.sum(-1, keepdim=True)
    # On a CPU this check costs less than it saves; another device would have to be waited for.
    if mass.is_cpu and all(row_mass > 0 for row_mass in mass.flatten().tolist()):
        return remaining.div_(mass)
    uniform = torch.ones_like(remaining).scatter_(-1, removed, 0.0)
    uniform = uniform / uniform.sum(-1, keepdim=True)
    has_mass = mass > 0
    return torch.where(has_mass, remaining / torch.where(has_mass, mass, 1.0), uniform)


def _require_range(name: str, value: Any, valid: bool, allowed: str) -> None:
    if not valid:
        raise InvalidSampling(f"{name} = {value!r}, but must be {allowed}")


def _require_logits(logits: Any, shape: str) -> None:
    """Refuse anything but a tensor of real numbers of this shape."""
    is_real = isinstance(logits, Tensor) and not (
        logits.dtype.is_complex or logits.dtype == torch.bool
    )
    has_shape = shape == "[..., V]" or (is_real and logits.ndim == 2)
    if not (is_real and has_shape and logits.ndim and logits.shape[-1]):
        raise InvalidArgument(
            f"logits = {shown(logits)}, but must be a tensor {shape} of real numbers, V at least 1"
        )
