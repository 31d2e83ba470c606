"""Rounds of a batch of texts of about one length, with one tree for all of them, timed."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from treespec.batch import Failed, Text, decode_rounds
from treespec.experiments.measure.profile.loop import Loop, TimedDrafter, draft_next
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.run.round_timer import RoundTimer
from treespec.protocols import Observer, Target
from treespec.sampling.coins import TorchCoins
from treespec.step import Step
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import verifier_for

LEVEL = "level"
"""The stage that a drafter tells its observer of, once for each level of a tree."""


class BatchLoop(Loop):
    """The loop on several texts side by side: a step of each is a round, whose passes are joined.

    Times are of a whole round. Texts begin equally long, and all start over once the longest has grown too
    long.

    Args:
        targets: one of this loop alone for each text.
        given: the arguments of `Loop` after its target.
    """

    def __init__(self, pair: Any, targets: Sequence[Target], *given: Any, **options: Any) -> None:
        super().__init__(pair, targets[0], *given, **options)
        self._targets = targets
        self._timed = RoundTimer()
        self._levels: list[_Levels] = []
        self._drafters: list[TimedDrafter] = []
        self._rounds: Iterator[list[tuple[int, Step | Failed]]] = iter(())
        self._lengths: list[int] = []

    def _begin(self, length: int) -> None:
        texts = len(self._targets)
        numbers = range(texts * self._seed, texts * (self._seed + 1))
        prompts = [self._prompt(number, length) for number in numbers]
        pairs = [self._pair] * texts
        if self._behind is not None:
            pairs = [self._behind(number) for number in numbers]
            self._targets = [make_target(pair.target) for pair in pairs]
        self._timed = RoundTimer(prompts[0].device)
        observers = [self._timed.of_text(i) for i in range(texts)]
        self._levels = [_Levels(observer) for observer in observers]
        self._drafters = [
            self._made_drafter(pair, levels)
            for pair, levels in zip(pairs, self._levels, strict=True)
        ]
        rule = verifier_for(self._choice.rule, self._pair.target)
        self._rounds = decode_rounds(
            [
                Text(
                    target,
                    drafter,
                    rule,
                    prompt,
                    self._choice.sampling,
                    TorchCoins(texts * self._seed + i),
                    self._room(length),
                    observer=observer,
                )
                for i, (target, drafter, prompt, observer) in enumerate(
                    zip(self._targets, self._drafters, prompts, observers, strict=True)
                )
            ],
            watch=self._timed,
        )
        self._lengths = [length] * texts

    def _advance(self, shape: TreeShape) -> dict[str, Any] | None:
        for drafter, levels in zip(self._drafters, self._levels, strict=True):
            draft_next(drafter, shape)
            levels.begun = 0
        self._timed.begin()
        made = next(self._rounds, [])
        spent: dict[str, float] = {}
        for (stage, _), seconds in self._timed.end().items():
            spent[stage] = spent.get(stage, 0.0) + seconds
        for i, step in made:
            if isinstance(step, Failed):
                raise step.error
            self._lengths[i] += len(step.tokens)
        self._length = max(self._lengths) if len(made) == len(self._lengths) else 0
        if not self._length:
            return None
        levels = [spent[level] for i in range(shape.depth) if (level := f"{LEVEL} {i}") in spent]
        stages = {stage: spent.get(stage, 0.0) for stage in STAGES}
        stages["draft"] += sum(levels)
        whole = sum(spent.values()) - spent.get("prefill", 0.0)
        return {"whole": whole, "rest": whole - sum(stages.values()), "levels": levels, **stages}


class _Levels:
    """Gives the levels of a tree numbers, by which the stages of several texts are added up."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self.begun = observer, 0

    def stage(self, name: str) -> AbstractContextManager[object]:
        """The stage of the next level."""
        self.begun += 1
        return self._observer.stage(f"{name} {self.begun - 1}")
