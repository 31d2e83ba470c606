"""What all trained drafters share: a head, the conventions that it is run by, and the features it reads."""

from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.draft.model import ModelDrafter
from treespec.draft.trained.contract import Contract
from treespec.errors import InvalidArgument
from treespec.features import Features
from treespec.protocols import Growth, Observer, TreeModel
from treespec.sampling.distributions import Sampling
from treespec.step import Step
from treespec.tree import Law, TreeShape


class TrainedDrafter(ModelDrafter):
    """A `ModelDrafter` whose rows come from a head on the target's hidden states.

    Args:
        head: the head; what reads a file of its kind gives it.
        growth: where the tree grows; see `ModelDrafter`.
        law: how children are chosen; see `ModelDrafter`.
        sampling: the target's sampling settings.
        observer: see `ModelDrafter`.

    Raises:
        InvalidArgument: if this is no head that such a drafter runs.
        InvalidTree: see `ModelDrafter`.
    """

    HEAD_HAS: ClassVar[str]
    """A member that tells the heads of such drafters from other heads and from models."""
    given: Any
    """The head."""

    def __init__(
        self,
        head: Any,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
        observer: Observer | None = None,
    ) -> None:
        contract = getattr(head, "contract", None)
        if not isinstance(contract, Contract) or not hasattr(head, self.HEAD_HAS):
            of = f" of family '{contract.family}'" if isinstance(contract, Contract) else ""
            raise InvalidArgument(
                f"{type(self).__name__} drafts with a trained head of its own kind, but was given a "
                f"{type(head).__name__}{of}: read a head with the function that loads its files"
            )
        super().__init__(self.model_of(head), growth, law, sampling, observer)
        self.model: Any  # what the head is run by, or under processors a `ProcessedModel` over it
        self.given = head
        self.contract: Contract = contract

    def model_of(self, head: Any) -> TreeModel:
        """The model whose rows are drafted from: the head itself, if it runs trees."""
        return head

    @property
    def reads(self) -> Features:
        """The target's features that the head was trained on."""
        return self.contract.reads

    def features_of(
        self, tokens: Int[Tensor, "T"], features: Float[Tensor, "P F H"] | None
    ) -> Float[Tensor, "P F H"]:
        """The features of a prompt, checked to be those of all its tokens but the last.

        Raises:
            InvalidPrompt, EmptyPrompt: if the prompt is not a row of token ids, or is empty.
            InvalidArgument: if there are none, or of another number of tokens or states.
        """
        require_tokens(tokens)
        own = self.reads.part(features, self.reads)
        rows, states = len(tokens) - 1, self.reads.states
        if not isinstance(own, Tensor) or own.ndim != 3 or own.shape[:2] != (rows, len(states)):
            found = list(own.shape) if isinstance(own, Tensor) else type(own).__name__
            raise InvalidArgument(
                f"the features of a prompt of {len(tokens)} tokens must have shape [{rows}, {len(states)}, "
                f"H], the states {states} of all tokens but the last, but are {found}: let the target lend "
                "the drafter's `reads` before the prefill"
            )
        return own

    def read(self, step: Step) -> Float[Tensor, "E F H"]:
        """The features of a step's tokens but the bonus."""
        assert step.features is not None, "`decode` hands over what the drafter reads"
        return step.features
