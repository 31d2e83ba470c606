"""What counts in the end, while a draft is trained: tokens per step of a set of trees.

Everything is replayed on the target's own greedy answers to held-out prompts. A trained head's or draft
model's children are recorded at every position of the answers (`forest_recording`), and each tree is walked
from the start of every answer as a live run at temperature 0 walks it (`search.traces.replay`).

The trees are the same at every step of a training and for every family, so that a curve moves because the
draft does, and two curves can be compared. A static tree that is optimal for the rates just measured would
move as well, and would be flattered by the positions it was chosen on; which tree is best for a finished
draft is a question for `treespec search`.

At temperature 1 no tree can be replayed on greedy answers, whose tokens are not drawn. How near the draft
is to the target is known at each of their positions all the same (`held_out_loss`): a loss that means the
same for every family, and the expected acceptance of one drawn child.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from treespec.draft import ModelDrafter
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.marginal_drafter import MarginalDrafter
from treespec.experiments.measure.forest_recording import (
    Drafts,
    KnownText,
    drafts_of,
    trace_of_drafts,
)
from treespec.experiments.report.right_shares import BELOW, SIBLING, SPINE, NextRight
from treespec.experiments.report.table import Column, Table, interval, interval_columns
from treespec.experiments.training.held_out_answers import DEPTH, TargetSays
from treespec.experiments.training.held_out_loss import (
    LOSS_DEPTH,
    Closeness,
    TextCloseness,
    along,
    closeness,
)
from treespec.features import reads_of
from treespec.protocols import Growth
from treespec.search import Trace
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import SpecExec
from treespec.search.intervals import Interval
from treespec.search.traces.next_right import accepted_nodes
from treespec.search.traces.replay import Replay, replay
from treespec.tree import TreeShape

WIDTH = 16
"""Most children of a node."""
RANKS = 4
"""Ranks whose acceptance is stated."""
RATES = (0.4, 0.12, 0.06, 0.04, 0.03)
"""Rates by rank for which the static tree is optimal: about those of a small head after little training."""
CHAIN = TreeShape.chain(4)
STATIC = TreeShape((-1, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 6, 6, 7, 9, 11))
"""The best tree of 16 nodes for `RATES`, no deeper than the chain: every family can draft it."""
BEST_FIRST = (16, 64)
"""Nodes of the trees that are searched best first by the draft's probabilities."""


@dataclass(frozen=True)
class TreeFigure:
    """The steps of one tree.

    Args:
        tokens_per_step: emitted tokens per step, with a bootstrap interval over the answers.
        steps: number of steps.
    """

    tokens_per_step: Interval
    steps: int


@dataclass(frozen=True)
class RightNext:
    """How often the draft's first choice is the text's next token, after nodes that a tree accepts.

    Args:
        right: share of the nodes, with its interval.
        nodes: accepted nodes at which the draft has a row.
    """

    right: Interval
    nodes: int


@dataclass(frozen=True)
class Metric:
    """What a draft is worth on held-out answers.

    Args:
        texts: number of answers.
        positions: positions of all answers together.
        acceptance: by depth and rank: the share of positions at which the answer's token at this depth is
            the draft's child of this rank, given the answer down to there.
        trees: by name: chain_4, static_16, best_first_16 and best_first_64.
        spine: below the root of `STATIC`, after nodes down to which every token was the first choice.
        sibling: after all other accepted nodes of `STATIC`.
        near: how near the draft is to the target, at temperature 1.
        seconds: what it took to measure.
    """

    texts: int
    positions: int
    acceptance: tuple[tuple[float, ...], ...]
    trees: Mapping[str, TreeFigure]
    spine: RightNext
    sibling: RightNext
    near: Closeness
    seconds: float

    def row(self) -> dict[str, float | int | None]:
        """All figures as one flat line of a curve; None for bounds and shares that there are not."""
        line: dict[str, float | int | None] = {"texts": self.texts, "positions": self.positions}
        for name, tree in self.trees.items():
            line |= interval_columns(f"tokens_per_step_{name}", tree.tokens_per_step)
            line[f"steps_{name}"] = tree.steps
        for name, found in (("spine", self.spine), ("sibling", self.sibling)):
            line |= interval_columns(f"right_{name}", found.right if found.nodes else None)
            line[f"nodes_{name}"] = found.nodes
        line |= self.near.row()
        for depth, by_rank in enumerate(self.acceptance, 1):
            line |= {f"accepted_{depth}_{rank}": share for rank, share in enumerate(by_rank, 1)}
        return line | {"seconds": self.seconds}

    def tables(self) -> list[Table[Any]]:
        """Trees and rates, and acceptance by depth and rank."""
        trees: list[tuple[str, Interval | None, int]] = [
            *((name, tree.tokens_per_step, tree.steps) for name, tree in self.trees.items())
        ]
        shares: list[tuple[str, Interval | None, int]] = [
            ("next right, spine", self.spine.right if self.spine.nodes else None, self.spine.nodes),
            (
                "next right, sibling",
                self.sibling.right if self.sibling.nodes else None,
                self.sibling.nodes,
            ),
            ("overlap at T = 1", self.near.overlap, self.positions),
            (f"KL at T = 1, depths 1 to {LOSS_DEPTH}", self.near.loss, self.positions),
        ]
        about = f"{self.texts} held-out answers, {self.positions} positions"
        ranks = [f"rank {rank}" for rank in range(1, RANKS + 1)]
        return [
            Table("tree", _columns("tree", "tokens/step", "steps"), trees, title=about),
            Table("rate", _columns("rate", "value", "of"), shares, title="rates"),
            Table(
                "depth",
                [
                    Column("depth", lambda row: str(row[0])),
                    *(
                        Column(head, lambda row, i=i: f"{row[1][i]:.3f}")
                        for i, head in enumerate(ranks)
                    ),
                ],
                [*enumerate(self.acceptance, 1)],
                title="acceptance, given the answer down to there",
            ),
        ]


def _columns(name: str, value: str, count: str) -> list[Column[Any]]:
    return [
        Column(name, lambda row: row[0], left=True),
        Column(value, lambda row: interval(row[1], 3)),
        Column(count, lambda row: f"{row[2]:,}"),
    ]


def measure(says: TargetSays, make: Callable[[Growth | TreeShape], ModelDrafter]) -> Metric:
    """Measure a draft on held-out answers.

    Args:
        says: the answers, and what the target says about them.
        make: makes a drafter along a growth, of a trained head or a draft model, with deterministic
            children at temperature 0.

    Raises:
        InvalidTree: if the head predicts fewer positions than the chain has.
        NonFiniteLogits: if the draft returns NaN or infinite logits.
    """
    begin = time.perf_counter()
    found = recorded(says, make)
    trace = found.trace
    replays = {name: replayed(trace, tree) for name, tree in trees(trace).items()}
    nodes = accepted_nodes(trace, replays["static_16"])
    assert nodes is not None, "texts are greedy"
    rates = NextRight(nodes, trace.texts)
    spine, sibling = (rates.share(place, BELOW) for place in (SPINE, SIBLING))
    return Metric(
        texts=trace.texts,
        positions=says.held_out.positions,
        acceptance=found.acceptance,
        trees={
            name: TreeFigure(steps.interval(), len(steps.accepted))
            for name, steps in replays.items()
        },
        spine=RightNext(spine.right, spine.rows),
        sibling=RightNext(sibling.right, sibling.rows),
        near=found.near,
        seconds=time.perf_counter() - begin,
    )


def trees(trace: Trace) -> dict[str, TreeShape | Growth]:
    """The trees of the metric by name.

    A search that would go deeper than any recorded row finds nothing there.
    """
    assert trace.draft_rows is not None, "recorded for these searches"
    depth = min(DEPTH, trace.draft_rows.depth)
    searched = {f"best_first_{size}": SpecExec(size, WIDTH, depth) for size in BEST_FIRST}
    return {"chain_4": CHAIN, "static_16": STATIC, **searched}


def replayed(trace: Trace, tree: TreeShape | Growth) -> Replay:
    """The steps of a live run with a tree or a growth at temperature 0."""
    return replay(trace, tree) if isinstance(tree, TreeShape) else replay_growth(trace, tree)


@dataclass(frozen=True)
class Recorded:
    """What a draft says at all held-out positions.

    Args:
        trace: its children.
        acceptance: by depth and rank, as in `Metric`.
        near: how near it is to the target.
    """

    trace: Trace
    acceptance: tuple[tuple[float, ...], ...]
    near: Closeness


def recorded(says: TargetSays, make: Callable[[Growth | TreeShape], ModelDrafter]) -> Recorded:
    """What the draft says at all positions. Arguments and errors are those of `measure`."""
    drafter, kept = make(CHAIN), says.held_out.kept
    rows_of_text = not isinstance(drafter, (HeadDrafter, MarginalDrafter))
    texts = [
        KnownText(prompt, answer, features)
        for (prompt, answer), features in zip(
            says.texts, says.features(reads_of(drafter)), strict=True
        )
    ]
    drafts, near, found = [], [], []
    for text, count, target in zip(texts, kept, says.logits, strict=True):
        positions = len(text.tokens) if rows_of_text else count
        parts, start = list[Drafts](), 0
        nearness = list[TextCloseness]()
        for part in drafts_of(
            drafter, text, positions, width=WIDTH, levels=DEPTH, best=max(BEST_FIRST) - 1
        ):
            nearness.append(TextCloseness.of(target, part, start, says.kept))
            start += len(part.root_logits)
            parts.append(part.without_logits())
        ranks = np.concatenate([part.text_ranks for part in parts])
        levels = DEPTH if rows_of_text else ranks.shape[1]
        found.append(along(ranks, levels, count, rows_of_text=rows_of_text))
        near.append(TextCloseness.joined(nearness, count, rows_of_text=rows_of_text))
        drafts.append(parts)
    trace = trace_of_drafts(texts, kept, drafts, rows_of_text=rows_of_text)
    acceptance = (np.concatenate(found)[:, :, None] == np.arange(RANKS)).mean(axis=0)
    return Recorded(trace, tuple(map(tuple, acceptance.tolist())), closeness(near))
