"""Whether the metric's replays are the live runs, step by step, and by how little where they are not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from treespec.decoding import decode
from treespec.draft import ModelDrafter
from treespec.experiments.training.held_out_answers import TargetSays
from treespec.experiments.training.metric import recorded, replayed, trees
from treespec.protocols import Growth
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.search import Trace
from treespec.search.traces.replay import Replay
from treespec.step import Step
from treespec.target import ModelTarget
from treespec.tree import TreeShape
from treespec.verify import greedy


@dataclass(frozen=True)
class Difference:
    """The first step of an answer that a live run does not make as the replay does.

    Args:
        tree: name of the tree.
        text: index of the answer.
        position: of the answer at which the step begins.
        replayed: accepted tokens in the replay; None if it has no such step.
        live: accepted tokens in the live run; None if it has no such step.
        cause: "target" if the live run's tokens are others than the answer's, else "draft".
        gap: how near the tie is that the two resolve otherwise: of the target, between the logits of its
            two best tokens where the tokens part; of the draft, between the probability of the answer's
            token and the nearest of its siblings', at the root of the step.
    """

    tree: str
    text: int
    position: int
    replayed: int | None
    live: int | None
    cause: str
    gap: float


@dataclass(frozen=True)
class Comparison:
    """A tree's replay and its live run.

    Args:
        tree: name of the tree.
        replayed: tokens per step of the replay.
        live: tokens per step of the live run.
        steps: steps of the live run.
        differences: the first of each answer that has one.
    """

    tree: str
    replayed: float
    live: float
    steps: int
    differences: tuple[Difference, ...]


def compared(
    says: TargetSays, make: Callable[[Growth | TreeShape], ModelDrafter]
) -> Iterator[Comparison]:
    """Decode every held-out prompt with every tree of the metric, and compare with the replays.

    Arguments and errors are those of `measure`.
    """
    trace = recorded(says, make).trace
    for name, tree in trees(trace).items():
        found, emitted, steps, differences = replayed(trace, tree), 0, 0, []
        for text in range(trace.texts):
            live = _live(says, make(tree), text)
            steps += len(live)
            emitted += sum(step.verdict.emitted for step in live)
            difference = _first_difference(says, trace, found, name, text, live)
            if difference is not None:
                differences.append(difference)
        yield Comparison(name, found.tokens_per_step, emitted / steps, steps, tuple(differences))


def _live(says: TargetSays, drafter: ModelDrafter, text: int) -> list[Step]:
    prompt, _ = says.texts[text]
    return [
        *decode(
            ModelTarget(says.target), drafter, greedy, prompt, sampling=Sampling(temperature=0.0),
            coins=TorchCoins(0), max_new_tokens=says.held_out.kept[text],
        )
    ]  # fmt: skip


def _first_difference(
    says: TargetSays, trace: Trace, found: Replay, name: str, text: int, live: list[Step]
) -> Difference | None:
    mine, at = found.of_text(text).tolist(), 0
    answer = says.held_out.answers[text]
    for i in range(max(len(mine), len(live))):
        step = live[i] if i < len(live) else None
        accepted = None if step is None else step.verdict.accepted
        expected = mine[i] if i < len(mine) else None
        tokens = () if step is None else step.tokens
        parted = next((j for j, token in enumerate(tokens) if token != answer[at + j]), None)
        if accepted != expected or parted is not None:
            where = at + (parted or 0)
            if parted is None:
                cause, gap = "draft", _draft_gap(trace, int(trace.offsets[text]) + where)
            else:
                best = says.logits[text][where].topk(2).values
                cause, gap = "target", float(best[0] - best[1])
            return Difference(name, text, at, expected, accepted, cause, gap)
        at += len(tokens)
    return None


def _draft_gap(trace: Trace, position: int) -> float:
    """The difference of the answer's token to its nearest sibling in the draft's row at a position."""
    rank, probs = int(trace.ranks[position]), torch.from_numpy(trace.probs[position].copy())
    if rank >= trace.width:
        return float(probs[-1])
    others = torch.cat([probs[:rank], probs[rank + 1 :]])
    return float((others - probs[rank]).abs().min())
