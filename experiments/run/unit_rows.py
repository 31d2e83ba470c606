"""The rows that record how a method decoded a prompt."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from treespec.checks import shown
from treespec.errors import InvalidPlugin, in_words
from treespec.experiments.records.outcome import STAGES, Outcome, StepOutcome
from treespec.experiments.records.rows import SOURCES_JOINED, PromptRow, StepRow, TreeRow
from treespec.plugins import parts


def prompt_row(
    columns: Mapping[str, Any],
    outcome: Outcome,
    text: str,
    compared: Mapping[str, Any],
    metrics: Mapping[str, float | None],
) -> PromptRow:
    return PromptRow.model_validate(
        {
            **columns,
            **compared,
            "new_tokens": len(outcome.tokens),
            "tokens": list(outcome.tokens),
            "text": text,
            "steps": outcome.target_passes,
            "accepted": outcome.accepted,
            "emitted": outcome.accepted + outcome.target_passes,
            "drafted": outcome.drafted,
            "prefill_s": outcome.prefill_s,
            "decode_s": outcome.total_s - outcome.prefill_s,
            "total_s": outcome.total_s,
            **{f"{stage}_s": outcome.stage_seconds(stage) for stage in STAGES},
            "error": None,
            "metrics": dict(metrics),
        }
    )


def metrics_of(outcome: Outcome) -> dict[str, float | None]:
    """The values of the metrics of plug-ins on these steps; empty for the methods of transformers.

    Raises:
        InvalidPlugin: naming the metric that fails, or does not return a finite number.
    """
    values: dict[str, float | None] = {}
    for name, part in parts("metric").items() if outcome.staged else ():
        try:
            value = part.make(outcome.steps)
        except Exception as error:
            raise InvalidPlugin(f"metric {name!r}: {in_words(error, 'the metric')}") from error
        if value is not None:
            try:
                value = float(value)
            except OverflowError:
                raise InvalidPlugin(
                    f"metric {name!r} gives {shown(value)}, which is too large"
                ) from None
            except Exception:  # `__float__` of a tensor or of a class of the plug-in may raise any
                raise InvalidPlugin(
                    f"metric {name!r} gives {shown(value)}, which is not a number"
                ) from None
            if not isfinite(value):
                raise InvalidPlugin(f"metric {name!r} gives {value}, which is not a finite number")
        values[name] = value
    return values


def failed_row(columns: Mapping[str, Any], error: str) -> PromptRow:
    counts = dict.fromkeys(("new_tokens", "steps", "accepted", "emitted", "drafted"), 0)
    nulls = ["prefill_s", "decode_s", "total_s", *(f"{stage}_s" for stage in STAGES)]
    nulls += ["equal_to_plain", "first_divergence", "divergence_margin"]
    row = {**columns, **counts, **dict.fromkeys(nulls), "tokens": [], "text": "", "error": error}
    return PromptRow.model_validate(row)


def step_row(key: Mapping[str, Any], index: int, step: StepOutcome) -> StepRow:
    return StepRow.model_validate(
        {
            **key,
            "step": index,
            "size": step.shape.size,
            "depth": step.shape.depth,
            "accepted": step.verdict.accepted,
            "emitted": step.verdict.emitted,
            "kept": step.kept,
            "path_ranks": [step.shape.ranks[node] for node in step.verdict.path[1:]],
            **{f"{stage}_s": step.seconds.get(stage) for stage in STAGES},
            "at_s": step.at,
            "step_s": step.took,
            "parents": list(step.shape.parents) if step.origins else None,
            "origins": [SOURCES_JOINED.join(names) for names in step.origins] or None,
        }
    )


def tree_rows(
    key: Mapping[str, Any], outcome: Outcome, piece_of: Callable[[int], str]
) -> list[TreeRow]:
    """The rows that hold the trees of all steps; empty for the methods of transformers."""
    return [
        TreeRow.model_validate(
            {
                **key,
                "step": index,
                "parents": list(step.shape.parents),
                "tokens": list(step.tokens),
                "pieces": [piece_of(token) for token in step.tokens],
                "path": list(map(int, step.verdict.path)),
                "bonus": int(step.verdict.bonus),
                "bonus_piece": piece_of(step.verdict.bonus),
            }
        )
        for index, step in enumerate(outcome.steps if outcome.staged else ())
    ]
