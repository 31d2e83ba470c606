"""Every draft source as it is proved: so small that all branches of several steps can be walked."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from marginal_heads import table_block, table_medusa
from tabular_heads import TabularHead
from tabulated import tiny_transformer
from two_vocabularies import draft_table, intersection, strings

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import (
    BlockDraft,
    Cascade,
    Datastore,
    Documents,
    Eagle,
    Eagle3,
    EarlyExit,
    Jacobi,
    LayerSkip,
    Lookahead,
    Medusa,
    Merge,
    ModelDrafter,
    Mtp,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
    TokenRecycling,
)
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.protocols import Drafter
from treespec.search import DDTree
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table
from treespec.verify import Rule

IID, WITHOUT, SURE = Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC
PROMPTS = {2: (0, 1, 0, 0, 1), 3: (0, 1, 2, 0, 1)}
TEXTS = {
    2: [[1, 0, 0, 0, 1, 0, 1], [0, 1, 1, 1, 0, 1, 0, 0]],
    3: [[1, 2, 2, 0, 1, 0, 2], [0, 1, 1, 2, 0, 1, 2, 2]],
}
"""Other texts, by vocabulary: of documents, datastores and past texts."""

CHAIN, TREE = TreeShape.chain(2), TreeShape.from_parents([-1, 0, 0, 1])
PAIR = TreeShape.expansion([2])
SIZE = {"size": 6, "branching": 2}
HIGH = ((0.9, 0.5, 0.2),)
MODELS = (
    *("model", "strings", "early_exit", "layer_skip", "cascade", "merge"),
    *("medusa", "block", "eagle", "eagle3", "mtp"),
)
"""Sources of which a model is a part."""
SKIPPED = ["mlp.0", "attention.1"]


@dataclass(frozen=True)
class Stored:
    """Files that sources are made of, written once: each branch of a proof loads them anew.

    Args:
        vocab: tokens, 2 or 3.
        folder: that holds them.
        datastore: of the other texts.
    """

    vocab: int
    folder: Path
    datastore: Datastore

    @classmethod
    def write(cls, folder: Path, vocab: int) -> "Stored":
        """The datastore, and what sources learned as the target wrote on after another text."""
        folder.mkdir()
        texts = TEXTS[vocab]
        for name, learner in (
            ("table", TokenRecycling()), *((f"{n}-grams", Lookahead(2, n, 2)) for n in (2, 3)),
        ):  # fmt: skip
            for _ in decode(
                ModelTarget(table(3, vocab)), learner, verify.greedy, torch.tensor(texts[0]),
                sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=16,
            ):  # fmt: skip
                pass
            learner.save(folder / name, vocab_size=vocab)
        store = Datastore.build(folder / "datastore", texts, vocab_size=vocab)
        return cls(vocab, folder, store)

    def recycling(self, shape: TreeShape) -> TokenRecycling:
        """Warm token recycling."""
        rows = TokenRecycling.load(self.folder / "table", vocab_size=self.vocab)
        return TokenRecycling(shape, table=rows, vocab_size=self.vocab)

    def lookahead(self, window: int, ngram: int, guesses: int) -> Lookahead:
        """Warm lookahead."""
        pool = Lookahead.load(self.folder / f"{ngram}-grams", vocab_size=self.vocab)
        return Lookahead(window, ngram, guesses, pool=pool, vocab_size=self.vocab)


@dataclass(frozen=True)
class Case:
    """One source, or one made of several, to be proved under each rule that covers its trees.

    Args:
        source: its name in configs.
        label: what is particular; warm ones begin with what was learned of another text.
        make: a new one, of the files if it needs some.
        trees: what it drafts: chains, trees, or trees with nodes of several groups.
        law: how its children are chosen; of mixed trees, the first law of those that are drawn.
        vocab: tokens, 2 or 3.
        layered: whether the target is a transformer, a part of which drafts.
    """

    source: str
    label: str
    make: Callable[[Stored], Drafter]
    trees: Literal["chain", "tree", "mixed"]
    law: Law = SURE
    vocab: int = 3
    layered: bool = False

    def __str__(self) -> str:
        return f"{self.source}-{self.label}"

    @property
    def warm(self) -> bool:
        """Whether it drafts from the first step on by what was learned before."""
        return self.label.startswith("warm")

    @property
    def runs_a_model(self) -> bool:
        """Whether a model drafts, or a part of one."""
        return self.source in MODELS

    @property
    def target(self) -> TabularModel:
        """Whose law is kept."""
        return tiny_transformer(self.vocab) if self.layered else table(3, self.vocab)

    @property
    def rules(self) -> list[Rule]:
        """All lossless rules that cover such trees."""
        if self.trees == "mixed":
            groups = [[(self.law, 1), (SURE, 1)], (), ()]
            return [
                rule
                for rule in lossless_rules()
                if not rule.covers(TreeShape.expansion([2]), groups, self.vocab)
            ]
        shape = CHAIN if self.trees == "chain" else TREE
        return [r for r in lossless_rules() if not r.covers(shape, self.law, self.vocab)]


def lossless_rules() -> list[Rule]:
    """Those that are to be proved."""
    return [rule for rule in verify.RULES.values() if rule.lossless]


@cache
def table(seed: int, vocab: int = 2) -> TabularModel:
    """Rows of every context, one object for each: by that branches are known to stand at one state."""
    return TabularModel(random_table(vocab, seed), vocab)


@cache
def past(vocab: int) -> SuffixCounts:
    """Past texts, counted; nobody writes to them."""
    counts = SuffixCounts(6)
    for text in TEXTS[vocab]:
        counts.read(text)
        counts.end()
    return counts


def model(law: Law = IID, shape: TreeShape = CHAIN, vocab: int = 2, seed: int = 4) -> ModelDrafter:
    return ModelDrafter(table(seed, vocab), shape, law, Sampling())


def head(
    kind: type[HeadDrafter], law: Law = IID, shape: TreeShape = CHAIN, vocab: int = 2
) -> HeadDrafter:
    return kind(TabularHead(table(7, vocab).row, vocab), shape, law, Sampling())  # pyrefly: ignore[bad-argument-type]


def early_exit(
    law: Law = IID, shape: TreeShape = CHAIN, vocab: int = 2, layers: int = 1
) -> EarlyExit:
    return EarlyExit(tiny_transformer(vocab), layers, shape, law, Sampling())


def layer_skip(law: Law = IID, shape: TreeShape = CHAIN, vocab: int = 2) -> LayerSkip:
    return LayerSkip(tiny_transformer(vocab), SKIPPED, shape, law, Sampling())


def lookup(depth: int = 2) -> PromptLookup:
    return PromptLookup(depth, ngram=2, size=5, branching=2)


def medusa(law: Law = IID, shape: TreeShape | DDTree = CHAIN, vocab: int = 2) -> Medusa:
    return Medusa(table_medusa(vocab), shape, law, Sampling())


def block(
    law: Law = IID, shape: TreeShape | DDTree = CHAIN, vocab: int = 2, **options: Any
) -> BlockDraft:
    return BlockDraft(table_block(vocab, **options), shape, law, Sampling())


def cascade(below: Drafter, rule: Rule, law: Law = IID, depth: int = 2, seed: int = 5) -> Cascade:
    return Cascade(table(seed), below, rule, depth, Sampling(), law=law)


def merge(size: int = 5, **sources: Drafter) -> Merge:
    return Merge(sources, size, rates=dict.fromkeys(sources, HIGH))


def apart(budgets: tuple[int, ...], *sources: Drafter) -> Merge:
    """A merge in which each source has nodes of its own."""
    named = dict(zip("abcd", sources, strict=False))
    return Merge(named, budgets=dict(zip(named, budgets, strict=True)))


def _vocab(law: Law) -> int:
    """Two tokens, where two children are still drawn by chance; steps multiply."""
    return 2 if law is IID else 3


def _without_models() -> list[Case]:
    documents, recycling = TEXTS[3], TokenRecycling
    return [
        Case("lookup", "chain", lambda _: PromptLookup(2, ngram=2), "chain"),
        Case("lookup", "tree", lambda _: PromptLookup(2, ngram=2, **SIZE), "tree"),
        Case("documents", "chain", lambda _: Documents(documents, 2), "chain"),
        Case("documents", "tree", lambda _: Documents(documents, 2, **SIZE), "tree"),
        Case("suffix_tree", "chain", lambda _: SuffixTree(2, offset=1.0), "chain"),
        Case("suffix_tree", "tree", lambda _: SuffixTree(2, window=6, offset=4.0, **SIZE), "tree"),
        Case(
            *("suffix_tree", "past texts"),
            lambda _: SuffixTree(2, offset=4.0, past=past(3), **SIZE),
            "tree",
        ),
        Case("suffix_automaton", "chain", lambda _: SuffixAutomaton(2), "chain"),
        Case(
            "retrieval", "chain", lambda stored: Retrieval(stored.datastore, 2, shortest=1), "chain"
        ),
        Case(
            "retrieval",
            "tree",
            lambda stored: Retrieval(stored.datastore, 2, shortest=1, **SIZE),
            "tree",
        ),
        Case("token_recycling", "chain", lambda _: recycling(CHAIN), "chain"),
        Case("token_recycling", "tree", lambda _: recycling(TreeShape.expansion([2, 2])), "tree"),
        Case("lookahead", "chain", lambda _: Lookahead(1, 2, 1), "chain"),
        Case("lookahead", "tree", lambda _: Lookahead(2, 3, 2), "tree"),
        Case("token_recycling", "warm chain", lambda stored: stored.recycling(CHAIN), "chain"),
        Case(
            *("token_recycling", "warm tree"),
            lambda stored: stored.recycling(TreeShape.expansion([2, 2])),
            "tree",
        ),
        Case("lookahead", "warm chain", lambda stored: stored.lookahead(1, 2, 1), "chain"),
        Case("lookahead", "warm tree", lambda stored: stored.lookahead(2, 3, 2), "tree"),
        Case("jacobi", "chain", lambda _: Jacobi(2), "chain"),
    ]


def _models() -> list[Case]:
    cases = []
    for law in Law:
        vocab = _vocab(law)
        for trees, shape in (("chain", CHAIN), ("tree", TREE)):
            more = law, shape, vocab
            said = f"{law} {trees}"
            cases += [
                Case("model", said, lambda _, more=more: model(*more), trees, law, vocab),
                Case(
                    *("early_exit", said, lambda _, more=more: early_exit(*more)),
                    *(trees, law, vocab, True),
                ),
                Case(
                    *("layer_skip", said, lambda _, more=more: layer_skip(*more)),
                    *(trees, law, vocab, True),
                ),
                *(
                    Case(
                        *(name, said, lambda _, more=more, kind=kind: head(kind, *more)),
                        *(trees, law, vocab),
                    )
                    for name, kind in (("eagle", Eagle), ("eagle3", Eagle3), ("mtp", Mtp))
                ),
            ]
    cases += [
        Case(
            "model",
            "DDTree",
            lambda _: ModelDrafter(table(4, 3), DDTree(5, 2), SURE, Sampling()),
            "tree",
        ),
        Case(
            *("early_exit", "DDTree"),
            lambda _: EarlyExit(tiny_transformer(3), 1, DDTree(4, 2), SURE, Sampling()),
            *("tree", SURE, 3, True),
        ),
    ]
    cases += [
        Case(
            *("strings", f"a model's {trees}"),
            lambda _, size=size, shape=shape: strings(
                ModelDrafter(draft_table(), shape, SURE, Sampling()), size
            ),
            *(trees, SURE, 3),
        )
        for trees, size, shape in (("chain", 3, CHAIN), ("tree", 6, TreeShape.expansion([2, 2])))
    ]
    cases.append(
        Case("strings", "lookup", lambda _: strings(PromptLookup(3, ngram=2, **SIZE), 6), "chain")
    )
    cases += [
        Case(
            *("model", f"another tokenizer, {law} chain"),
            lambda _, law=law: ModelDrafter(intersection(), CHAIN, law, Sampling()),
            *("chain", law, 3),
        )
        for law in (IID, Law.WITHOUT_REPLACEMENT)
    ]
    cases += [
        Case(
            *("model", f"another tokenizer, {law} tree"),
            lambda _, law=law: ModelDrafter(intersection(), PAIR, law, Sampling()),
            *("tree", law, 3),
        )
        for law in Law
    ]
    # One deep: all drafts are accepted, and deeper ones would leave no token for a second step.
    for trees, shape in (("chain", TreeShape.chain(1)), ("tree", TreeShape.expansion([2]))):
        cases.append(
            Case(
                *("early_exit", f"all layers, {trees}"),
                lambda _, shape=shape: early_exit(shape=shape, layers=2),
                *(trees, IID, 2, True),
            )
        )
    return cases


def _heads() -> list[Case]:
    """Trained heads of random weights, on the hidden states of a table."""
    makes: dict[str, Callable[..., Drafter]] = {"medusa": medusa, "block": block}
    cases = []
    for source, make in makes.items():
        for law in Law:
            vocab = _vocab(law)
            for trees, shape in (("chain", CHAIN), ("tree", TREE)):
                more = law, shape, vocab
                cases.append(
                    Case(
                        *(source, f"{law} {trees}"),
                        lambda _, make=make, more=more: make(*more),
                        *(trees, law, vocab),
                    )
                )
        cases.append(
            Case(
                *(source, "DDTree"),
                lambda _, make=make: make(SURE, DDTree(5, 2), 3),
                *("tree", SURE, 3),
            )
        )
    return [
        *cases,
        Case("block", "causal tree", lambda _: block(IID, TREE, 2, causal=True), "tree", IID, 2),
        Case(
            *("block", "tree of a reduced vocabulary"),
            lambda _: block(IID, TREE, 3, kept=(0, 2)),
            *("tree", IID, 3),
        ),
    ]


def _cascades() -> list[Case]:
    two = TreeShape.expansion([2])
    below: dict[str, tuple[Callable[[], Drafter], Rule]] = {
        "a model": (lambda: model(shape=TreeShape.chain(1)), verify.chain),
        "a model's tree": (lambda: model(shape=two), verify.rrs),
        "lookup": (lookup, verify.onehot),
        "documents": (lambda: Documents(TEXTS[2], 2, **SIZE), verify.onehot),
        "recycling": (lambda: TokenRecycling(TreeShape.expansion([2, 1])), verify.onehot),
        "suffix tree": (lambda: SuffixTree(2, offset=1.0), verify.onehot),
        "suffix automaton": (lambda: SuffixAutomaton(2), verify.onehot),
        "lookup, below a model": (
            lambda: cascade(lookup(), verify.onehot, depth=1, seed=6),
            verify.chain,
        ),
        "a model, below a model": (
            lambda: cascade(model(shape=TreeShape.chain(1)), verify.chain, depth=1, seed=6),
            verify.block,
        ),
    }  # fmt: skip
    below |= {
        "Medusa's heads": (medusa, verify.chain),
        "a block": (lambda: block(shape=two), verify.rrs),
    }
    cases = [
        Case("cascade", f"over {name}", lambda _, s=source, r=rule: cascade(s(), r), "chain", IID, 2)
        for name, (source, rule) in below.items()
    ]  # fmt: skip
    cases += [
        Case(
            *("cascade", "over retrieval"),
            lambda stored: cascade(
                Retrieval(stored.datastore, 2, shortest=1, **SIZE), verify.onehot
            ),
            *("chain", IID, 2),
        ),
        Case(
            *("cascade", "over warm recycling"),
            lambda stored: cascade(stored.recycling(TreeShape.expansion([2, 1])), verify.onehot),
            *("chain", IID, 2),
        ),
        Case(
            *("cascade", "over an early exit"),
            lambda _: cascade(early_exit(shape=TreeShape.chain(1)), verify.chain),
            *("chain", IID, 2, True),
        ),
    ]
    for law in (WITHOUT, SURE):
        cases += [
            Case(
                *("cascade", f"{law}, over lookup"),
                lambda _, law=law: cascade(lookup(), verify.onehot, law),
                *("chain", law, 2),
            ),
            Case(
                *("cascade", f"{law}, over a model's tree"),
                lambda _, law=law: cascade(model(shape=two), verify.rrs, law),
                *("chain", law, 2),
            ),
            Case(
                *("cascade", f"{law}, over two levels"),
                lambda _, law=law: cascade(
                    cascade(lookup(), verify.onehot, depth=1, seed=6), verify.chain, law
                ),
                *("chain", law, 2),
            ),
        ]
    # Every rule that a model can verify the drafts of the level below by.
    for law in Law:
        for rule in lossless_rules():
            fits = not rule.one_hot and not rule.covers(two, law, 2)
            chain = not rule.one_hot and not rule.covers(TreeShape.chain(1), law, 2)
            if fits or chain:
                shape = two if fits else TreeShape.chain(1)
                cases.append(
                    Case(
                        *("cascade", f"which verifies {law} by {rule}"),
                        lambda _, law=law, shape=shape, rule=rule: cascade(
                            model(law, shape), rule, depth=1
                        ),
                        *("chain", IID, 2),
                    )
                )
    return cases


def _merges() -> list[Case]:
    one = TreeShape.chain(1)
    beside: dict[str, Callable[[Stored], Drafter]] = {
        "lookup": lambda _: lookup(),
        "documents": lambda _: Documents(TEXTS[2], 2, **SIZE),
        "suffix tree": lambda _: SuffixTree(2, window=6, offset=4.0, **SIZE),
        "suffix automaton": lambda _: SuffixAutomaton(2),
        "retrieval": lambda stored: Retrieval(stored.datastore, 2, shortest=1, **SIZE),
        # A chain: two successors of each token would leave the model no room.
        "recycling": lambda _: TokenRecycling(CHAIN),
        "lookahead": lambda _: Lookahead(1, 2, 1),
        "warm recycling": lambda stored: stored.recycling(CHAIN),
        "warm lookahead": lambda stored: stored.lookahead(1, 2, 1),
        "jacobi": lambda _: Jacobi(2),
        "Medusa's best": lambda _: medusa(SURE, TREE),
    }
    cases = []
    for name, make in beside.items():
        cases += [
            Case(
                *("merge", f"model, {name}"),
                lambda stored, make=make: merge(a=model(shape=one), b=make(stored)),
                *("mixed", IID, 2),
            ),
            Case(
                *("merge", f"early exit, {name}"),
                lambda stored, make=make: merge(a=early_exit(shape=one), b=make(stored)),
                *("mixed", IID, 2, True),
            ),
            Case(
                *("merge", f"model's best, {name}"),
                lambda stored, make=make: merge(a=model(SURE, TREE), b=make(stored)),
                *("tree", SURE, 2),
            ),
            Case(
                *("merge", f"early exit's best, {name}"),
                lambda stored, make=make: merge(a=early_exit(SURE, TREE), b=make(stored)),
                *("tree", SURE, 2, True),
            ),
        ]
    over_lookup = lambda: cascade(lookup(1), verify.onehot)  # noqa: E731
    several: dict[str, tuple[Callable[[], Merge], Law, bool]] = {
        "model two deep, lookup": (lambda: merge(a=model(), b=lookup()), IID, False),
        "two models, lookup": (
            lambda: merge(a=model(shape=one), b=model(WITHOUT, one, seed=5), c=lookup(1)), IID, False,
        ),
        "model without replacement, recycling": (
            lambda: merge(6, a=model(WITHOUT, one), b=TokenRecycling(CHAIN)), WITHOUT, False,
        ),
        "early exit, skipped sublayers": (
            lambda: Merge(
                {"a": early_exit(shape=one), "b": layer_skip(shape=one)},
                4, rates={"a": ((0.9, 0.2),), "b": HIGH},  # the second child is the other's
            ), IID, True,
        ),
        "early exit without replacement, lookup": (
            lambda: merge(a=early_exit(WITHOUT, one), b=lookup()), WITHOUT, True,
        ),
        "skipped sublayers, lookup": (
            lambda: merge(a=layer_skip(shape=one), b=lookup()), IID, True,
        ),
        "early exit, model, lookup": (
            lambda: merge(a=early_exit(shape=one), b=model(shape=one), c=lookup(1)), IID, True,
        ),
        "cascade, lookup": (lambda: merge(a=over_lookup(), b=lookup()), IID, False),
        "Medusa, lookup": (lambda: merge(a=medusa(shape=one), b=lookup()), IID, False),
        "block, lookup": (lambda: merge(a=block(WITHOUT, one), b=lookup(1)), WITHOUT, False),
        "Medusa, block": (lambda: merge(4, a=medusa(shape=one), b=block(SURE, one)), IID, False),
        "cascade, early exit": (
            lambda: merge(4, a=over_lookup(), b=early_exit(shape=one)), IID, True,
        ),
    }  # fmt: skip
    cases += [
        Case("merge", name, lambda _, make=make: make(), "mixed", law, 2, layered)
        for name, (make, law, layered) in several.items()
    ]
    return [
        *cases,
        Case(
            *("merge", "lookup, recycling"),
            lambda _: merge(a=lookup(), b=TokenRecycling(CHAIN)),
            *("tree", SURE, 2),
        ),
    ]


def _merges_apart() -> list[Case]:
    """Merges with a budget for each source."""
    one, two = TreeShape.chain(1), TreeShape.expansion([2])
    drawn: dict[str, tuple[Callable[[], Merge], Law, bool]] = {
        "model, lookup": (lambda: apart((2, 2), model(), lookup()), IID, False),
        "lookup, model cut": (lambda: apart((2, 2), lookup(), model(shape=TREE)), IID, False),
        "two models": (lambda: apart((2, 1), model(shape=two), model(WITHOUT, one, seed=5)), IID, False),
        "model without replacement, recycling": (
            lambda: apart((2, 3), model(WITHOUT, two), TokenRecycling(two)), WITHOUT, False,
        ),
        "cascade, jacobi": (
            lambda: apart((1, 1), cascade(lookup(1), verify.onehot, depth=1), Jacobi(1)), IID, False,
        ),
        "early exit, lookahead": (
            lambda: apart((1, 3), early_exit(shape=one), Lookahead(1, 2, 1)), IID, True,
        ),
    }  # fmt: skip
    sure: dict[str, Callable[[Datastore], Merge]] = {
        "lookup, retrieval": lambda store: apart(
            (1, 3), lookup(), Retrieval(store.datastore, 2, shortest=1, **SIZE)
        ),
        "model's best, suffix automaton": lambda _: apart((3, 1), model(SURE, TREE), SuffixAutomaton(2)),
    }  # fmt: skip
    return [
        Case("merge", f"apart: {name}", lambda _, make=make: make(), "mixed", law, 2, layered)
        for name, (make, law, layered) in drawn.items()
    ] + [Case("merge", f"apart: {name}", make, "tree", SURE, 2) for name, make in sure.items()]


CASES = [*_without_models(), *_models(), *_heads(), *_cascades(), *_merges(), *_merges_apart()]
"""All of them. Labels are distinct within a source."""
