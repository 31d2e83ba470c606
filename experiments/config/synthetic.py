"""Synthetic acceptance in configs: a draft whose tokens are kept at given rates, for timing."""

from typing import Annotated, Literal

from pydantic import model_validator

from treespec.draft.undrafted import Undrafted
from treespec.errors import InvalidArgument
from treespec.experiments.config.combined import RatesOfSource
from treespec.experiments.config.model_draft import (
    Combined,
    ModelDraft,
    OneOf,
    built_in,
    by_pair,
    draft_models,
    label_of_draft,
    laws_of,
    source_of,
)
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.tree import Law, TreeShape
from treespec.verify.synthetic_acceptance import SyntheticAcceptance, require_rates

Real = Annotated[Settings, OneOf("source", "source", without=frozenset({"synthetic"}))]


@built_in(laws=Law)
class SyntheticDraft(Combined):
    """Synthetic acceptance: a source drafts at its true cost, and its tokens are accepted at given rates.

    For timing shapes nobody has trained a draft for. No tokens are compared, so that texts are meaningless:
    they are not compared with those of `generate`, do not end at stop tokens or strings but at
    `max_new_tokens`, and such a method cannot be checked for losslessness. It has no `rule`: the rates
    decide. All else is that of its `draft`: which trees it takes, and what they cost.
    """

    source: Literal["synthetic"] = "synthetic"
    """Another source drafts; rates decide what is accepted. Texts are meaningless."""
    rates: RatesOfSource
    """By depth, then rank: the probability that a child is accepted if its parent is. Of the children of
    one node at most one is accepted: the rates of a depth sum to at most 1. The last depth stands for all
    deeper ones; ranks without a rate are never accepted."""
    draft: Real | None = ModelDraft()
    """The source that drafts. Null for tokens without a meaning, at no cost, in trees of a fixed shape; no
    draft model is needed."""

    @model_validator(mode="after")
    def _exclusive(self) -> "SyntheticDraft":
        try:
            require_rates("rates", self.rates)
        except InvalidArgument as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def rule(self) -> SyntheticAcceptance:
        """The rule that accepts by the rates."""
        return SyntheticAcceptance(self.rates)

    @property
    def inner(self) -> tuple[Settings, ...]:
        return () if self.draft is None else (self.draft,)

    @property
    def own_models(self) -> tuple[str | None, ...]:
        return () if self.draft is None else draft_models(self.draft)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.DETERMINISTIC}) if self.draft is None else laws_of(self.draft)

    @property
    def label(self) -> str:
        rates = ";".join(",".join(f"{entry:g}" for entry in row) for row in self.rates)
        if self.draft is None:
            return f"synthetic {rates}, undrafted,"
        over = "" if by_pair(self.draft) else f" over {label_of_draft(self.draft)}"
        return f"synthetic {rates}{over}"

    def refuses(self, tree: Budget) -> str | None:
        inner = self.draft.refuses(tree) if isinstance(self.draft, Combined) else None
        return inner and f"draft.{inner}"

    def make(self, wanted: Wanted) -> Drafter:
        if self.draft is None:
            assert isinstance(wanted.tree, TreeShape)
            return Undrafted(wanted.tree, wanted.pair.target.vocab_size)
        return source_of(self.draft).make(wanted, self.draft)
