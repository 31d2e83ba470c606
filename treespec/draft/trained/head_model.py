"""An autoregressive head as a model that runs trees, so that whatever drafts with a model drafts with it.

The row of token x_{t+1} belongs to the pair (f_t, x_{t+1}): the token, and the state of the token before
it. A text of T tokens has T - 1 pairs; the first token has none. For committed tokens f_t comes from the
target's features and is handed over (`give`); for drafted tokens it is the state that the head itself
computed at the parent. Rows of drafted tokens are never kept: once their tokens are committed, they are run
again with the target's states (`HeadDrafter.commit`). The pair (f_t, x_{t+1}) stands at position t.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.draft.trained.contract import Contract
from treespec.draft.trained.head_net import HeadNet
from treespec.errors import UnsupportedModel
from treespec.models.pass_kinds import Passes
from treespec.models.probe import Finding
from treespec.models.runner import TreeRunner
from treespec.models.transformers_model import TransformersModel
from treespec.sampling.coins import on_device
from treespec.step import Scores


class HeadModel(TransformersModel):
    """A head's network with its cache (`treespec.protocols.TreeModel`).

    Probed like every model: with states that depend on tokens alone, a tree must give what its branches
    give in sequence.

    Args:
        net: the network, in the dtype and on the device of the target.
        contract: the conventions by which it is run.

    Raises:
        UnsupportedModel: if it cannot run trees exactly.
    """

    def __init__(self, net: HeadNet, contract: Contract) -> None:
        net.requires_grad_(False)
        self.contract = contract
        super().__init__(net, vocab_size=net.logits_width)

    def _set_up(
        self,
        model: Any,
        finding: Finding,
        vocab_size: int | None,
        runner: Callable[..., TreeRunner],
    ) -> None:
        super()._set_up(model, finding, vocab_size, runner)
        self.net: HeadNet = model
        self._runner.lend(self.net.recycles)
        self._given: Tensor | None = None
        self._own = self._no_states()

    def _twin(
        self,
        model: PreTrainedModel,
        finding: Finding,
        vocab_size: int,
        runner: Callable[..., TreeRunner],
    ) -> "HeadModel":
        twin: Any = super()._twin(model, finding, vocab_size, runner)
        twin.contract = self.contract
        return twin

    def of_its_tokens(self) -> "HeadModel":
        """This head with a cache of its own and logits of the tokens that it has rows for, and no others.

        Column i is the target's token `net.kept[i]`; the head as it is if it has rows for all. Where this
        head's passes are captured, they are eager.
        """
        if self.net.kept is None:
            whole: Any = self.fresh()
            return whole
        net = copy(self.net)
        net._buffers = {**net._buffers, "kept": None}
        runner = TreeRunner if self.passes.kind == "captured" else self.make_runner
        return self._twin(net, self.finding, len(self.net.kept), runner)

    def run_by(self, runner: Callable[..., TreeRunner], passes: Passes) -> None:
        """Change how passes are run; see `TransformersModel.run_by`."""
        super().run_by(runner, passes)
        self._runner.lend(self.net.recycles)

    @property
    def state_width(self) -> int:
        """Width of the states that it reads beside tokens."""
        return self.net.state_width

    def states_of(self, committed: int) -> Float[Tensor, "C W"] | None:
        """The states that the next rows of the text read; None if the target has not given so many.

        A root without a state reads zeros.
        """
        given = 0 if self._given is None else len(self._given)
        if not given and committed == 1:
            return torch.zeros_like(self._no_states(1))
        return None if self._given is None or given < committed else self._given[:committed]

    def fused(self, features: Float[Tensor, "T F H"]) -> Float[Tensor, "T W"]:
        """The states that the head reads, made of the target's features."""
        with torch.inference_mode():
            return self.net.fuse(features.to(self.device, self._dtype))

    def give(self, states: Float[Tensor, "T W"], *, anew: bool = False) -> None:
        """Hand over the target's states for the next rows of the text, after those that wait already.

        `anew`: for a new text: states of all tokens of the prompt but the last, before `prefill`.
        """
        waiting = None if anew else self._given
        self._given = states if waiting is None else torch.cat([waiting, states])

    def prefill(self, tokens: Int[Tensor, "T"], states: Float[Tensor, "T W"] | None = None) -> None:
        """Run the pairs of a prompt without its last token; the state of that one's pair stays waiting."""
        self._own = self._no_states()
        if self._given is None:  # without a target: states of tokens alone
            super().prefill(tokens, states)
            return
        pairs = max(len(tokens) - 1, 0)
        states, self._given = self._given[:pairs], self._given[pairs:]
        super().prefill(tokens[1:], states)

    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1; see `treespec.protocols.TreeModel.run`.

        Without `states`, the first nodes read those that were given; each other node reads its parent's, so
        nodes whose parent is not known yet wait for a further pass. A root without a state reads zeros.
        """
        if not first:
            self._own = self._no_states()
        if states is not None:
            return Scores(self._pass(tokens, parents, first, states))
        given = 0 if self._given is None else len(self._given)
        logits, begin, last = [], first, first + len(tokens)
        while begin < last:
            end = begin + 1
            while end < last and (end < given or parents[end] < begin):
                end += 1
            read = self._states(parents, begin, end, given)
            logits.append(
                self._pass(tokens[begin - first : end - first], parents[:end], begin, read)
            )
            begin = end
        return Scores(logits[0] if len(logits) == 1 else torch.cat(logits))

    def _pass(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int,
        states: Float[Tensor, "T W"],
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes that read these states; notes the states that they leave."""
        scores = super().run(tokens, parents, first, states)
        assert scores.features is not None
        self._own = torch.cat([self._own, scores.features[:, 0]])
        return scores.logits

    def _states(
        self, parents: tuple[int, ...], begin: int, end: int, given: int
    ) -> Float[Tensor, "T W"]:
        if end <= given and self._given is not None:
            return self._given[begin:end]
        parts = [] if self._given is None else [self._given[begin:given]]
        above = list(parents[max(begin, given) : end])
        if above[0] < 0:  # a root without a state
            parts.append(torch.zeros_like(self._no_states(1)))
            above = above[1:]
        if above:
            parts.append(self._own[on_device(above, torch.long, self.device)])
        return torch.cat(parts)

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, whose states were given; forget all others."""
        super().keep(nodes)
        if self._given is not None:
            self._given = self._given[len(nodes) :]
        self._own = self._no_states()

    def _no_states(self, rows: int = 0) -> Float[Tensor, "R W"]:
        return torch.empty(rows, self.net.state_width, dtype=self.net.dtype, device=self.net.device)


def probed(name: str, net: HeadNet, contract: Contract) -> HeadModel:
    """A head that was read from a folder, which errors name.

    Raises:
        UnsupportedModel: if it cannot run trees exactly, or its weights are no numbers.
    """
    try:
        return HeadModel(net, contract)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"the head {name!r} cannot run: {error}") from error
