"""Rows of a run with values that do not matter, for tests of what reads and writes them."""

from typing import Any

from treespec.experiments.records.outcome import STAGES
from treespec.experiments.records.rows import PromptRow, StepRow


def prompt_row(prompt: int = 0, method: str = "plain", **changes: Any) -> PromptRow:
    """A finished prompt; `generate` records no times of stages."""
    counts = dict.fromkeys(("order", "prompt_tokens", "new_tokens", "steps", "accepted", "seed"), 1)
    row: dict[str, Any] = {"prompt": prompt, "sampling": "T=0", "method": method, "prompt_id": "a"}
    row["repeat"] = 0
    row |= counts | {f"{part}_s": 0.5 for part in ("prefill", "decode", "total", *STAGES)}
    row |= {"category": None, "tokens": [1], "text": "ü\n", "emitted": 2, "drafted": 1}
    row |= dict.fromkeys(("equal_to_plain", "first_divergence", "divergence_margin", "error"))
    if method == "generate":
        row |= dict.fromkeys(f"{stage}_s" for stage in STAGES)
    return PromptRow(**row | changes)


def step_row(prompt: int = 0, method: str = "plain", step: int = 0, repeat: int = 0) -> StepRow:
    """A step that accepted one node."""
    counts = dict.fromkeys(("size", "depth", "accepted", "emitted", "kept"), 1)
    key = {"prompt": prompt, "sampling": "T=0", "method": method, "repeat": repeat, "step": step}
    return StepRow.model_validate(
        {**key, **counts, **{f"{stage}_s": 0.5 for stage in STAGES}, "path_ranks": [0]}
    )
