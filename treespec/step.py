"""One step of speculative decoding, and the glossary that the whole project keeps to.

    root       the last committed token, node 0 of every tree
    size       nodes of a tree, the root included; draft tokens = size - 1
    depth      edges from the root; levels = depth + 1
    accepted   draft tokens that a step keeps
    bonus      the additional token that the target supplies
    emitted    accepted + 1
    tokens per step (block efficiency, tau)
               emitted, pooled over steps; plain decoding has 1.0

`emitted` counts the tokens that a step yields by its verdict. The last step of a text may keep fewer, when
a stop token or the budget falls inside it; `Step.tokens` are the kept ones. Tables that compare methods
pool kept tokens, since other engines do not report what they decoded past the end.
"""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from treespec.checks import integer
from treespec.tree import TokenTree

__all__ = ["Rows", "Scores", "Step", "Verdict"]


@runtime_checkable
class Rows(Protocol):
    """Probabilities by node, `rows[i] -> [V]`, computed on first use. A plain tensor qualifies."""

    def __getitem__(self, node: int, /) -> Float[Tensor, "V"]:
        """The target's distribution after node `node`, with sampling settings applied."""


@dataclass(frozen=True)
class Verdict:
    """What an acceptance rule decided about a tree.

    Args:
        path: accepted node indices, from the root (always first) downwards.
        bonus: the token that the target adds after the last node of the path.

    Raises:
        InvalidArgument: if the bonus is not an integer.
    """

    path: tuple[int, ...]
    bonus: int

    def __post_init__(self) -> None:
        if type(self.bonus) is not int:
            object.__setattr__(self, "bonus", integer("bonus", self.bonus))

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return len(self.path) - 1

    @property
    def emitted(self) -> int:
        """Tokens that the step yields: accepted + 1."""
        return self.accepted + 1


@dataclass(frozen=True, eq=False)
class Scores:
    """What a pass computed for the nodes of a tree.

    Args:
        logits: one row per node, in node order, before any sampling setting.
        features: F hidden states per node, in the order in which a drafter asked for them
            (`treespec.features`); None if it asked for none.
    """

    logits: Float[Tensor, "N V"]
    # The factory leaves no attribute in the class, which could be read in place of deleted features.
    features: Float[Tensor, "N F H"] | None = field(default_factory=lambda: None)


@dataclass(frozen=True, eq=False)
class Step:
    """One round of drafting and verification, as handed to `commit` and yielded by `decode`.

    Args:
        tree: what was drafted.
        verdict: what was accepted.
        scores: what the target computed; some draft sources learn from it.
        tokens: the emitted token ids that decoding keeps: all, except in a last step that is cut short.
        further: emitted tokens between the path and the bonus that are not in this tree. A merge of sources
            sets them in the step it passes to a source whose own tree holds only the first accepted tokens:
            `path` then lists the nodes of these tokens, and the bonus is the next root, as always.
        rows: the target's rows as the rule read them, computed where they are read; None in a step that
            was not decoded.
        features: the features that the drafter asked for, of the root, the path and the further tokens:
            row i belongs to the i-th of these tokens; the bonus has none before it is run. A copy, which
            may be kept. By default those of the scores; None if they have none.
    """

    tree: TokenTree
    verdict: Verdict
    scores: Scores
    tokens: tuple[int, ...]
    further: tuple[int, ...] = ()
    rows: Rows | None = None
    features: Float[Tensor, "E F H"] | None = None

    def __post_init__(self) -> None:
        if self.features is None and self.scores.features is not None:
            object.__setattr__(self, "features", self.scores.features[list(self.verdict.path)])

    @property
    def emitted_ids(self) -> list[int]:
        """The tokens after the root: those of the path, the further ones, and the bonus."""
        ids, verdict = self.tree.token_ids, self.verdict
        return [*(ids[node] for node in verdict.path[1:]), *self.further, verdict.bonus]

    def _repr_svg_(self) -> str:
        from treespec.tree.pictures import draw_step

        tree, verdict = self.tree, self.verdict
        return draw_step(tree.shape.children, tree.token_ids, verdict.path, verdict.bonus)

    def _repr_html_(self) -> str:
        from treespec.tree.pictures import captioned

        drafted, accepted = self.tree.shape.size - 1, self.verdict.accepted
        cut = "" if len(self.tokens) == self.verdict.emitted else f", {len(self.tokens)} kept"
        return captioned(
            self._repr_svg_(),
            f"{drafted} drafted, {accepted} accepted, bonus {self.verdict.bonus} (dashed): "
            f"{self.verdict.emitted} emitted{cut}. Numbers are token ids.",
        )
