"""Merge several draft sources into one tree, with a shared number of nodes or a number for each source."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import require_tokens
from treespec.draft.cascade import parts_of
from treespec.draft.merge_layout import Apart, Shared
from treespec.draft.merge_plan import Node, numbered
from treespec.errors import InvalidArgument, InvalidTree
from treespec.features import Features, prefill, reads_of, united
from treespec.protocols import Coins, Drafter, ReadsTarget, Target
from treespec.sampling.distributions import Sampling
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

MIXED = (Law.IID, Law.WITHOUT_REPLACEMENT)
"""Laws of drawn children that rules can decide in groups."""


class Merge:
    """Merges the drafts of several sources into one tree.

    With `rates` the sources share the tree: each node comes from the source that is accepted most often
    there. The tree is filled best first, by rates that were measured beforehand on other texts: for each
    source, by depth and rank, how often a child is accepted if its parent is. The value of a node is the
    product of such probabilities along its path. Deterministic drafts are united by prefix: equal
    children are one node, whose value rises where sure sources agree. Where they propose different
    children of a node, each lowers the values of the others, because at most one child is accepted; see
    `draft.merge_plan.Trie`. Drawn children neither lower the values of others nor are lowered by them. A
    `ModelDrafter` with deterministic children drafts the tree of its growth like any source; one that
    draws does so where the plan asks for it, below deterministic nodes too, from its distribution without
    the deterministic children of the node, which are decided after the drawn ones; this order accepts
    most. Then only the depth of its growth is used. For other sources that draw, the proposed tree is
    taken, or the part of it that there is room for, chosen by depth and rank alone; each draw is tested
    separately, even beside an equal one.

    With `budgets` each source has its own nodes: it drafts the same tree as alone, and the first nodes of
    each tree, as many as the source's budget, are placed below one root. Equal deterministic children are
    united here too, so the tree has at most the sum of the budgets plus the root. A model does not know
    what the others draft: the tree of the first source that draws is decided as if it were alone, and the
    nodes of the others are tried where it fails.

    If any source draws, the trees are mixed (`TokenTree.is_mixed`): rules decide the children of each node
    group by group, each child against the row that it was drawn from. Otherwise all children are
    DETERMINISTIC.

    After each step, every source receives a step in terms of its own tree: the part of the path in this
    tree, the further emitted tokens, and the next root. Trees of sources that read the rows of all their
    nodes (`Jacobi`, `Lookahead`) are kept whole; for other sources, rows of unverified nodes are NaN.

    Args:
        sources: at least two sources, by name. Among drawn children, those of earlier sources are decided
            first.
        size: number of nodes, the root included, that the sources share; with `budgets`, the maximum of
            all budgets plus the root, or None for no limit.
        rates: for each source by name, one row of numbers in [0, 1] by rank for each depth. The last row
            also stands for all greater depths; ranks beyond a row are not drafted. The rank of a child
            drawn by a `ModelDrafter` counts all elder children of its node, whichever source drafted them.
            None with `budgets`.
        budgets: for each source by name, its number of nodes without the root, at least 1; None to share.
        depth: maximum depth of a shared tree; None for the largest depth of the sources.
        branching: maximum number of children of a node of a shared tree; None for no limit.
        vocab_size: the target's vocabulary size, to refuse larger ids; None to skip the check.

    Raises:
        InvalidArgument: if there are fewer than two sources, a source is itself a merge, a source or a part
            of it appears twice, there is no size to share, a tree that must be kept whole does not fit in
            the size, depth or branching, or in the budget of its source, the names of rates or budgets are
            not those of the sources, or both or neither of these are given.
        InvalidTree: if a source draws the children of a node together (`Law.together`).
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
                "a merge needs either rates, by which its sources share a size, or budgets, a number of "
                "nodes for each source"
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
        self.size = self.layout.size
        """Most nodes of a tree, root included."""
        self.max_depth, self._drawing = self.layout.max_depth, self.layout.drawing
        self._vocab_size = vocab_size
        self._proposed: TokenTree | None = None
        self.origins: tuple[tuple[str, ...], ...] = ()
        """For each node of the last proposed tree, the sources that drafted it."""

    @property
    def law(self) -> Law:
        """DETERMINISTIC if no source draws, otherwise the law of the first source that does."""
        laws = map(_stated_law, self.sources.values())
        return next((law for law in laws if law is not Law.DETERMINISTIC), Law.DETERMINISTIC)

    @property
    def max_length(self) -> int:
        """Number of positions up to which all sources can draft, also those deeper than the merge."""
        excess = {name: source.max_depth - self.max_depth for name, source in self.sources.items()}
        excess |= dict.fromkeys(self._drawing, 0)  # they draw no deeper than the merge asks for
        return min(
            source.max_length - max(0, excess[name]) for name, source in self.sources.items()
        )

    @property
    def reads(self) -> Features:
        """What the sources read of the target together."""
        return united([*self.sources.values()])

    def bind_target(self, target: Target) -> None:
        """Pass the target to the sources that can read it."""
        for source in self.sources.values():
            if isinstance(source, ReadsTarget):
                source.bind_target(target)

    def prefill(
        self, tokens: Int[Tensor, "T"], features: Float[Tensor, "P F H"] | None = None
    ) -> None:
        """Start over on a prompt with every source, each with the features that it reads."""
        require_tokens(tokens)
        self._root, self._device, self._proposed = int(tokens[-1]), tokens.device, None
        reads = self.reads
        for source in self.sources.values():
            prefill(source, tokens, features, reads)

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree of the best nodes of all sources, or of each source's budget.

        Raises:
            InvalidTree: if the tree of a source has another root, ids beyond the vocabulary, or children
                that cannot be decided in groups; the error names the source.
            TreespecError: see the sources.
        """
        self._trees = {
            name: self._checked(name, source.propose(coins))
            for name, source in self.sources.items()
            if name not in self._drawing
        }
        trie, self._entries, nodes = self.layout.plan(self._trees)
        self._order = numbered(nodes, list(self.sources))
        self._nodes = nodes
        self.origins = tuple(
            tuple(trie.sources[node.entry]) if node.drawn_by is None else (node.drawn_by,)
            for node in (nodes[index] for index in self._order)
        )
        self._proposed = self._tree(nodes, self._order, coins)
        return self._proposed

    def commit(self, step: Step) -> None:
        """Commit the step to every source, in terms of the source's own tree.

        Raises:
            InvalidTree: if the tree is not the one that was proposed last.
        """
        if step.tree is not self._proposed:
            raise InvalidTree(
                "this step is of a tree that the merge did not propose last: commit the step of the tree "
                "that propose() returned"
            )
        self._root = step.verdict.bonus
        for name, source in self.sources.items():
            takes_any_step = name in self._drawing or getattr(source, "reads_any_tree", None)
            own = self._with_own_features(name, step)
            source.commit(own if takes_any_step else self._own_step(name, own))
        self._proposed = None

    def _checked(self, name: str, tree: TokenTree) -> TokenTree:
        """A source's proposal, checked to be one that can be merged."""
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
                f"the tree of source {name!r} has children of law {laws}: a merge takes trees whose "
                "children are all deterministic, or all of law iid or without_replacement"
            )
        return tree

    def _tree(self, nodes: list[Node], order: list[int], coins: Coins) -> TokenTree:
        """The planned tree, with the children that model drafters draw now."""
        # `order` lists indices into `nodes`; the tree numbers its nodes by their positions in `order`.
        position = {index: i for i, index in enumerate(order)}
        parents = [position.get(nodes[index].parent, -1) for index in order]
        tokens = [-1 if (token := nodes[index].token) is None else token for index in order]
        tokens[0] = self._root
        groups = [
            self._groups(nodes, [position[child] for child in nodes[index].children], order)
            for index in order
        ]
        rows: dict[tuple[int, str], Tensor] = {}
        for name, source in self._drawing.items():
            wanted = {
                node: by_source[name] for node, by_source in enumerate(groups) if name in by_source
            }
            avoided = {
                node: [tokens[child] for child in groups[node].get("", ())] for node in wanted
            }
            if wanted:
                drawn_from = source.draw_into(parents, tokens, wanted, avoided, coins)
                rows |= {(node, name): row for node, row in drawn_from.items()}
        for node, index in enumerate(order):
            for name in groups[node]:
                if name in self._trees:
                    own_node = max(nodes[index].tree_place, 0)
                    rows[node, name] = self._trees[name].draft_probs_of(own_node)
        shape = TreeShape(tuple(parents))
        laws = [
            [(self._law_of(name), len(children)) for name, children in by_source.items()]
            for by_source in groups
        ]
        drawn_rows = [
            rows[node, name] for node, by_source in enumerate(groups) for name in by_source if name
        ]
        if self.law is Law.DETERMINISTIC and not drawn_rows:
            return TokenTree.of(shape, tokens, None, Law.DETERMINISTIC, self._device)
        draft_probs = torch.stack(drawn_rows) if drawn_rows else None
        tree = TokenTree.of(shape, tokens, draft_probs, laws, self._device)
        made_here = all(type(source.sampling) is Sampling for source in self._drawing.values())
        valid = made_here and all(proposed.is_vouched for proposed in self._trees.values())
        return tree.vouched() if valid else tree

    def _groups(
        self, nodes: list[Node], children: list[int], order: list[int]
    ) -> dict[str, list[int]]:
        """Children of a node, in order, by the source that draws them; "" for deterministic children."""
        groups: dict[str, list[int]] = {}
        for child in sorted(children):
            groups.setdefault(nodes[order[child]].drawn_by or "", []).append(child)
        return groups

    def _law_of(self, name: str) -> Law:
        if not name:
            return Law.DETERMINISTIC
        if name in self._drawing:
            return self._drawing[name].law
        (law,) = self._trees[name].laws
        return law

    def _with_own_features(self, name: str, step: Step) -> Step:
        """The step with those of its features that a source reads."""
        if step.features is None:
            return step
        reads, own = self.reads, reads_of(self.sources[name])
        scores = Scores(step.scores.logits, reads.part(step.scores.features, own))
        return replace(step, scores=scores, features=reads.part(step.features, own))

    def _own_step(self, name: str, step: Step) -> Step:
        """The step in terms of the tree that a source proposed."""
        tree, emitted = self._trees[name], step.emitted_ids
        path = [0]
        for token in emitted[:-1]:
            matching = [
                child for child in tree.shape.children[path[-1]] if tree.token_ids[child] == token
            ]
            if not matching:
                break
            path.append(matching[0])
        verified = {self._key(name, self._nodes[index]): i for i, index in enumerate(self._order)}
        entries = self._entries.get(name, range(tree.shape.size))
        nodes = {node: verified[entry] for node, entry in enumerate(entries) if entry in verified}

        def own(rows: Tensor) -> Tensor:
            """Rows of the own tree's nodes, from those of the merged tree."""
            found = rows.new_full((tree.shape.size, *rows.shape[1:]), torch.nan)
            found[list(nodes)] = rows[list(nodes.values())]
            return found

        logits, features = step.scores.logits, step.scores.features
        scores = Scores(own(logits), None if features is None else own(features))
        further = tuple(emitted[len(path) - 1 : -1])
        verdict = Verdict(tuple(path), emitted[-1])
        return Step(tree, verdict, scores, step.tokens, further, features=step.features)

    def _key(self, name: str, node: Node) -> int:
        """The trie entry or tree node of a planned node in a source's proposal; -1 if it has none."""
        if node.parent < 0:
            return 0
        if name in self._entries:
            return node.entry
        return node.tree_place if node.drawn_by == name else -1


def _stated_law(source: Drafter) -> Law:
    """The law of a source's children; DETERMINISTIC if the source does not state one."""
    return getattr(source, "law", Law.DETERMINISTIC)


def _sources(given: Mapping[str, Drafter]) -> dict[str, Drafter]:
    if len(given) < 2:
        raise InvalidArgument(
            f"sources has {len(given)} entries, but a merge needs at least two draft sources"
        )
    owners: dict[int, str] = {}  # by id of a source or of a part of it, the name of the source
    for name, source in given.items():
        if isinstance(source, Merge):
            raise InvalidArgument(
                f"source {name!r} is itself a merge, whose sources would not get the rows of their nodes: "
                "give its sources to this merge"
            )
        parts = parts_of(source)
        shared = next((part for part in parts if id(part) in owners), None)
        if shared is not None:
            owner = owners[id(shared)]
            same = shared is source is given[owner]
            raise InvalidArgument(
                f"sources: {owner!r} and {name!r} {'are one drafter' if same else 'share a drafter'}, "
                "which can follow a text only once: make two"
            )
        owners |= dict.fromkeys(map(id, parts), name)
        law = _stated_law(source)
        if law not in (*MIXED, Law.DETERMINISTIC):
            raise InvalidTree(
                f"source {name!r} drafts children of law {law}, all of a node together: in a merge they "
                "must be deterministic, or of law iid or without_replacement"
            )
    return dict(given)
