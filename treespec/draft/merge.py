"""Several sources in one tree, within one number of nodes or a number for each."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.distributions import Sampling
from treespec.door import able, instance, require_tokens, shown
from treespec.draft.cascade import parts_of
from treespec.draft.merge_layout import Apart, Shared, law_of
from treespec.draft.merge_plan import Node, numbered
from treespec.errors import InvalidArgument, InvalidTree
from treespec.protocols import Coins, Drafter, ReadsTarget, Target
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["Merge"]

MIXED = (Law.IID, Law.WITHOUT_REPLACEMENT)
"""Laws of drawn children that rules decide on in groups."""


class Merge:
    """Drafts of several sources in one tree: each node from the source that is accepted most often there.

    With `rates` the sources share the tree. It is filled best first, by rates that were measured before,
    on other texts: for each source, by depth and rank, how often a child is accepted if its parent is.
    The value of a node is the product of the rates along its path. Deterministic drafts are united by
    prefix: equal children are one node, and count with the best of their values. A `ModelDrafter` draws
    where the plan wants it to, below deterministic nodes too, from its distribution without the
    deterministic children of the node, which are decided after the drawn ones: so it accepts most. Of its
    growth only the depth counts. Of other sources that draw, the proposed tree is taken, or as much of it
    as there is room for, by depth and rank alone; draws keep tests of their own beside equal ones.

    With `budgets` each source has nodes of its own: it drafts the tree that it drafts alone, and the
    first nodes of each tree, as many as its source has, stand below one root. Equal deterministic
    children are united here too, so the whole has at most the sum of the budgets and the root. A model is
    not told what the others draft: the tree of the first source that draws is decided as if it were
    alone, and what the others add is tried where it fails.

    If a source draws, the trees are mixed (`TokenTree.is_mixed`): rules decide on the children of each
    node group after group, each child against the row that it was drawn from. Without one they are
    DETERMINISTIC.

    Each source is told of what was emitted in its own terms: as far as its own tree has it, the further
    tokens, the next root. Sources that read the rows of all their nodes (`Jacobi`, `Lookahead`) have their
    trees kept whole; of other sources' nodes that were not verified the rows are NaN.

    Args:
        sources: by name, two at least; of drawn children those of the first are decided first.
        size: nodes of a tree, the root included, that the sources share; with `budgets` the most that
            these and the root may be together, None for no limit.
        rates: of each source, by name: for each depth a row of numbers in [0, 1], by rank. The last row
            stands for all greater depths, ranks beyond a row are not drafted. A drawn child's rank counts
            all elder children of its node, whoever drafted them. None with `budgets`.
        budgets: of each source, by name, nodes of its own, the root left out, at least 1; None to share.
        depth: most edges of a shared tree; None for as many as the sources have.
        branching: most children of a node of a shared tree; None for no limit.
        vocab_size: of the target, to refuse ids beyond it; None to look at nothing.

    Raises:
        InvalidArgument: if there are not two sources, one is none, one or a part of one appears twice,
            there is no size to share, a tree that is kept whole does not fit in the size, the depth or the
            branching, or in the budget of its source, or the rates or budgets are not those of the
            sources, or both or none of them are given.
        InvalidTree: if a source draws its children together (`Law.together`).
    """

    def __init__(
        self,
        sources: Mapping[str, Drafter],
        size: int | None = None,
        *,
        rates: Mapping[str, Sequence[Sequence[float]]] | None = None,
        budgets: Mapping[str, int] | None = None,
        depth: int | None = None,
        branching: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.sources = _sources(sources)
        if (rates is None) == (budgets is None):
            raise InvalidArgument(
                "a merge needs either rates, by which its sources share a size, or budgets, nodes for each"
            )
        if budgets is not None and (depth is not None or branching is not None):
            raise InvalidArgument(
                "depth and branching limit a tree that sources share; with budgets give these limits "
                "to the sources themselves"
            )
        self.layout = (
            Apart(self.sources, budgets, size)
            if rates is None
            else Shared(self.sources, rates, size, depth, branching)
        )
        self.max_depth, self._drawing = self.layout.max_depth, self.layout.drawing
        self._vocab_size = vocab_size
        # What is sure is decided after what is drawn.
        self._groups_in_order = sorted(
            self.sources, key=lambda n: law_of(self.sources[n]) is Law.DETERMINISTIC
        )
        self._proposed: TokenTree | None = None
        self.origins: tuple[tuple[str, ...], ...] = ()
        """Of each node of the tree that was proposed last, the sources that drafted it."""

    @property
    def law(self) -> Law:
        """DETERMINISTIC if no source draws, else that of the first that does."""
        laws = map(law_of, self.sources.values())
        return next((law for law in laws if law is not Law.DETERMINISTIC), Law.DETERMINISTIC)

    @property
    def max_length(self) -> int:
        """Positions up to which all sources can draft."""
        return min(source.max_length for source in self.sources.values())

    def bind_target(self, target: Target) -> None:
        """Let the sources that can read it know the target."""
        for source in self.sources.values():
            if isinstance(source, ReadsTarget):
                source.bind_target(target)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Begin anew with every source.

        Raises:
            InvalidPrompt, EmptyPrompt: if there is no row of token ids.
        """
        require_tokens(tokens)
        self._root, self._device, self._proposed = int(tokens[-1]), tokens.device, None
        for source in self.sources.values():
            source.prefill(tokens)

    def propose(self, coins: Coins) -> TokenTree:
        """The best nodes of all sources, or those that each has.

        Raises:
            InvalidTree: naming a source whose tree has another root, ids beyond the vocabulary, or children
                that cannot be decided in groups.
            TreespecError: see the sources.
        """
        self._trees = {
            name: self._checked(name, source.propose(coins))
            for name, source in self.sources.items()
            if name not in self._drawing
        }
        trie, self._entries, nodes = self.layout.plan(self._trees)
        self._order = numbered(nodes, self._groups_in_order)
        self._nodes = nodes
        self.origins = tuple(
            tuple(trie.sources[node.entry]) if node.drawn_by is None else (node.drawn_by,)
            for node in (nodes[at] for at in self._order)
        )
        self._proposed = self._tree(nodes, self._order, coins)
        return self._proposed

    def commit(self, step: Step) -> None:
        """Tell every source what was emitted.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        if step.tree is not self._proposed:
            raise InvalidTree(
                "a step of a tree that the merge did not propose last: commit the step of the tree that "
                "propose() gave"
            )
        self._root = step.verdict.bonus
        for name, source in self.sources.items():
            told = name in self._drawing or getattr(source, "reads_any_tree", None)
            source.commit(step if told else self._own_step(name, step))
        self._proposed = None

    def _checked(self, name: str, tree: Any) -> TokenTree:
        """A proposal that can be merged."""
        instance(f"what source {name!r} proposed", tree, TokenTree, "a TokenTree", InvalidTree)
        ids = tree.token_ids
        if ids[0] != self._root:
            raise InvalidTree(
                f"the tree of source {name!r} has the root {ids[0]}, but the last committed token is "
                f"{self._root}"
            )
        if self._vocab_size is not None and max(ids) >= self._vocab_size:
            raise InvalidTree(
                f"source {name!r} drafts the token {max(ids)}, but the target's ids are "
                f"0..{self._vocab_size - 1}"
            )
        drawn = tree.laws - {Law.DETERMINISTIC}
        if tree.is_mixed or not drawn <= {*MIXED} or (drawn and tree.laws != drawn):
            laws = ", ".join(sorted(map(str, tree.laws)))
            raise InvalidTree(
                f"the tree of source {name!r} has children chosen {laws}: a merge takes trees whose "
                "children are all deterministic, or all drawn iid or without_replacement"
            )
        return tree

    def _tree(self, nodes: list[Node], order: list[int], coins: Coins) -> TokenTree:
        """The planned tree, drawn where nothing was drafted yet."""
        place = {at: i for i, at in enumerate(order)}
        parents = [place.get(nodes[at].parent, -1) for at in order]
        tokens = [-1 if (token := nodes[at].token) is None else token for at in order]
        tokens[0] = self._root
        groups = [
            self._groups(nodes, [place[c] for c in nodes[at].children], order) for at in order
        ]
        rows: dict[tuple[int, str], Tensor] = {}
        for name, source in self._drawing.items():
            wanted = {node: of[name] for node, of in enumerate(groups) if name in of}
            avoided = {node: self._sure(groups[node], tokens) for node in wanted}
            if wanted:
                of_nodes = source.draw_into(parents, tokens, wanted, avoided, coins)
                rows |= {(node, name): row for node, row in of_nodes.items()}
        for node, at in enumerate(order):
            for name in groups[node]:
                if name in self._trees:
                    rows[node, name] = self._trees[name].draft_probs_of(
                        max(nodes[at].tree_place, 0)
                    )
        shape = TreeShape(tuple(parents))
        laws = [[(self._law_of(name), len(c)) for name, c in of.items()] for of in groups]
        drawn = [
            rows[node, name]
            for node, of in enumerate(groups)
            for name in of
            if not self._is_sure(name)
        ]
        if self.law is Law.DETERMINISTIC and not drawn:
            return TokenTree.of(shape, tokens, None, Law.DETERMINISTIC, self._device)
        stacked = torch.stack(drawn) if drawn else None
        tree = TokenTree.of(shape, tokens, stacked, laws, self._device)
        made_here = all(type(source.sampling) is Sampling for source in self._drawing.values())
        fine = made_here and all(proposed.is_vouched for proposed in self._trees.values())
        return tree.vouched() if fine else tree

    def _groups(
        self, nodes: list[Node], children: list[int], order: list[int]
    ) -> dict[str, list[int]]:
        """Children of a node by the source that draws them, "" for deterministic ones, in order."""
        groups: dict[str, list[int]] = {}
        for child in sorted(children):
            groups.setdefault(nodes[order[child]].drawn_by or "", []).append(child)
        return groups

    def _sure(self, groups: Mapping[str, Sequence[int]], tokens: Sequence[int]) -> list[int]:
        """The tokens of a node's deterministic children, as far as they are known."""
        sure = (c for name, of in groups.items() if self._is_sure(name) for c in of)
        return [tokens[child] for child in sure if tokens[child] >= 0]

    def _is_sure(self, name: str) -> bool:
        return self._law_of(name) is Law.DETERMINISTIC

    def _law_of(self, name: str) -> Law:
        if not name:
            return Law.DETERMINISTIC
        if name in self._drawing:
            return self._drawing[name].law
        (law,) = self._trees[name].laws
        return law

    def _own_step(self, name: str, step: Step) -> Step:
        """What a source must know of a step, in the terms of the tree that it proposed."""
        tree, emitted = self._trees[name], step.emitted_ids
        path = [0]
        for token in emitted[:-1]:
            below = [c for c in tree.shape.children[path[-1]] if tree.token_ids[c] == token]
            if not below:
                break
            path.append(below[0])
        logits = step.scores.logits
        rows = logits.new_full((tree.shape.size, logits.shape[1]), torch.nan)
        verified = {self._key(name, self._nodes[at]): i for i, at in enumerate(self._order)}
        entries = self._entries.get(name, range(tree.shape.size))
        for node, entry in enumerate(entries):
            if entry in verified:
                rows[node] = logits[verified[entry]]
        further = tuple(emitted[len(path) - 1 : -1])
        verdict = Verdict(tuple(path), emitted[-1])
        return Step(tree, verdict, Scores(rows), step.tokens, further)

    def _key(self, name: str, node: Node) -> int:
        """Where a node of the plan stands in what a source proposed; -1 if it does not."""
        if node.parent < 0:
            return 0
        if name in self._entries:
            return node.entry
        return node.tree_place if node.drawn_by == name else -1


def _sources(given: Any) -> dict[str, Drafter]:
    instance("sources", given, Mapping, "a mapping of names to draft sources")
    if len(given) < 2:
        raise InvalidArgument(
            f"sources has {len(given)}, but a merge is of two draft sources at least"
        )
    members = "max_depth max_length prefill propose commit"
    seen: dict[int, str] = {}  # of all that the sources are made of
    for name, source in given.items():
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"sources: {shown(name)} is no name of a source")
        able(f"sources[{name!r}]", source, members, "a draft source, such as PromptLookup(4)")
        parts = parts_of(source)
        twice = next((part for part in parts if id(part) in seen), None)
        if twice is not None:
            are = (
                "are one drafter"
                if twice is source is given[seen[id(twice)]]
                else "share a drafter"
            )
            raise InvalidArgument(
                f"sources: {seen[id(twice)]!r} and {name!r} {are}, which can follow a text only once: make "
                "two"
            )
        seen |= dict.fromkeys(map(id, parts), name)
        law = law_of(source)
        if law not in (*MIXED, Law.DETERMINISTIC):
            raise InvalidTree(
                f"source {name!r} chooses children {law}, all of a node together: in a merge they are "
                "drawn iid or without_replacement, or are deterministic"
            )
    return dict(given)
