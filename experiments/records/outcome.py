"""The result of decoding one prompt with one method, and the rows that record it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self

from treespec.checks import shown
from treespec.errors import InvalidPlugin, in_words
from treespec.experiments.records.rows import SOURCES_JOINED, PromptRow, StepRow, TreeRow
from treespec.plugins import parts
from treespec.step import Verdict
from treespec.tree import TreeShape

STAGES = ("draft", "verify", "accept", "commit")
STAGED = tuple(f"{stage}_s" for stage in STAGES)


@dataclass(frozen=True)
class StepOutcome:
    """One step: a pass of the target, and the drafting before it.

    Args:
        shape: shape of the drafted tree; a chain in assisted generation, the root alone in `generate`.
        kept: number of tokens that went into the text.
        seconds: time of each stage; empty for the methods of transformers.
        at: start of the step in seconds since 1970, by a clock that does not jump within a process.
        took: seconds of the whole step, without the prefill and without the steps of other methods. In a
            batch, the seconds of the round divided by `texts`; so are those of the stages.
        prefill_s: seconds of the prefill, in the first step of a text; 0 in the others.
        origins: for each node, the sources that drafted it, or the level of a cascade; empty if one source
            drafts a given shape or growth.
        spine, right: see `treespec.experiments.run.right_marks.NextRight`; None if nothing drafts.
        off_target: of a lossy rule, how far its tokens depart from the target (`treespec.verify.Rule`).
        texts: texts of the batch that made a step in the same round.
    """

    shape: TreeShape
    tokens: tuple[int, ...]
    verdict: Verdict
    kept: int
    seconds: dict[str, float]
    at: float
    took: float
    prefill_s: float = 0.0
    origins: tuple[tuple[str, ...], ...] = ()
    off_target: float | None = None
    texts: int = 1
    spine: int | None = None
    right: str | None = None

    @property
    def text(self) -> tuple[int, ...]:
        path = (self.tokens[node] for node in self.verdict.path[1:])
        return (*path, self.verdict.bonus)[: self.kept]

    def row(self, key: Mapping[str, Any], index: int, fresh: str | None = None) -> StepRow:
        """The row of the step; `fresh` is what `right` would be for a draft rooted at each node."""
        return StepRow.model_validate(
            {
                **key,
                "step": index,
                "size": self.shape.size,
                "depth": self.shape.depth,
                "accepted": self.verdict.accepted,
                "emitted": self.verdict.emitted,
                "kept": self.kept,
                "path_ranks": [self.shape.ranks[node] for node in self.verdict.path[1:]],
                **{f"{stage}_s": self.seconds.get(stage) for stage in STAGES},
                "at_s": self.at,
                "step_s": self.took,
                "parents": list(self.shape.parents) if self.origins else None,
                "origins": [SOURCES_JOINED.join(names) for names in self.origins] or None,
                "spine": self.spine,
                "right": self.right,
                "fresh": fresh,
            }
        )

    def tree_row(
        self, key: Mapping[str, Any], index: int, piece_of: Callable[[int], str]
    ) -> TreeRow:
        return TreeRow.model_validate(
            {
                **key,
                "step": index,
                "parents": list(self.shape.parents),
                "tokens": list(self.tokens),
                "pieces": [piece_of(token) for token in self.tokens],
                "path": list(map(int, self.verdict.path)),
                "bonus": int(self.verdict.bonus),
                "bonus_piece": piece_of(self.verdict.bonus),
            }
        )


Round = Mapping[int, StepOutcome | str]
"""What texts of a batch did in one round, by their place in it: a step, or the error that ends a text."""


@dataclass(frozen=True)
class Outcome:
    """A decoded text with its counts and times; see `records.rows.PromptRow`.

    Args:
        target_passes: number of forward calls of the target after the prefill.
        total_s: total seconds, without the turns of other methods.
    """

    tokens: tuple[int, ...]
    target_passes: int
    accepted: int
    drafted: int
    prefill_s: float
    total_s: float
    steps: tuple[StepOutcome, ...] = field(repr=False)

    @classmethod
    def of(cls, steps: Iterable[StepOutcome]) -> Self:
        steps = tuple(steps)
        prefill_s = sum(step.prefill_s for step in steps)
        return cls(
            tokens=tuple(token for step in steps for token in step.text),
            target_passes=len(steps),
            accepted=sum(step.verdict.accepted for step in steps),
            drafted=sum(step.shape.size - 1 for step in steps),
            prefill_s=prefill_s,
            total_s=prefill_s + sum(step.took for step in steps),
            steps=steps,
        )

    @property
    def staged(self) -> bool:
        """Whether the steps are those of our loop, whose stages are timed."""
        return all(step.seconds for step in self.steps)

    @property
    def off_target(self) -> float | None:
        departures = [step.off_target for step in self.steps if step.off_target is not None]
        return sum(departures) if len(departures) == len(self.steps) else None

    @property
    def rounds_s(self) -> float:
        """Seconds of the rounds that the text took part in; without a batch, those of its steps."""
        return sum(step.took * step.texts for step in self.steps)

    def stage_seconds(self, stage: str) -> float | None:
        return sum(step.seconds[stage] for step in self.steps) if self.staged else None

    def row(
        self,
        columns: Mapping[str, Any],
        text: str,
        compared: Mapping[str, Any],
        metrics: Mapping[str, float | None],
    ) -> PromptRow:
        return PromptRow.model_validate(
            {
                **columns,
                **compared,
                "new_tokens": len(self.tokens),
                "tokens": list(self.tokens),
                "text": text,
                "steps": self.target_passes,
                "accepted": self.accepted,
                "emitted": self.accepted + self.target_passes,
                "drafted": self.drafted,
                "off_target": self.off_target,
                "prefill_s": self.prefill_s,
                "decode_s": self.total_s - self.prefill_s,
                "total_s": self.total_s,
                "rounds_s": self.rounds_s,
                **{f"{stage}_s": self.stage_seconds(stage) for stage in STAGES},
                "error": None,
                "metrics": dict(metrics),
            }
        )

    def metrics(self) -> dict[str, float | None]:
        """The values of the metrics of plug-ins on these steps; empty for the methods of transformers.

        Raises:
            InvalidPlugin: naming the metric that fails, or does not return a finite number.
        """
        values: dict[str, float | None] = {}
        for name, part in parts("metric").items() if self.staged else ():
            try:
                value = part.make(self.steps)
            except (Exception, SystemExit) as error:
                message = f"metric {name!r}: {in_words(error, 'the metric')}"
                raise InvalidPlugin(message) from error
            values[name] = None if value is None else _finite(name, value)
        return values


def _finite(metric: str, value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise InvalidPlugin(f"metric {metric!r} gives {shown(value)}, which is too large") from None
    except Exception:  # `__float__` of a tensor or of a class of the plug-in may raise any
        raise InvalidPlugin(
            f"metric {metric!r} gives {shown(value)}, which is not a number"
        ) from None
    if not isfinite(number):
        raise InvalidPlugin(f"metric {metric!r} gives {number}, which is not a finite number")
    return number


def failed_row(columns: Mapping[str, Any], error: str) -> PromptRow:
    counts = dict.fromkeys(("new_tokens", "steps", "accepted", "emitted", "drafted"), 0)
    nulls = ["prefill_s", "decode_s", "total_s", *(f"{stage}_s" for stage in STAGES)]
    nulls += ["equal_to_plain", "first_divergence", "divergence_margin"]
    row = {**columns, **counts, **dict.fromkeys(nulls), "tokens": [], "text": "", "error": error}
    return PromptRow.model_validate(row)
