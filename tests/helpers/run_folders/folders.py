"""Run folders with known truth, for tests of what reads them. No model runs here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from run_folders.manifest import synthetic_manifest
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.records.rows import (
    SCHEMA_VERSION,
    PromptRow,
    StepRow,
    to_frame,
    write_lines,
)
from treespec.tree import TreeShape


@dataclass(frozen=True)
class SyntheticMethod:
    """A method that does not exist, and how it behaves.

    Args:
        name: of the method.
        kind: `generate`, `plain`, `assisted` or `tree`.
        shape: of its tree. Assisted generation accepts as the chain it is given and records no tree.
        acceptance: probability that the k-th child of a node is the accepted one.
        stage_ms: draft, verify, accept and commit, per step.
        other_ms: the rest of a step.
        lossless: as in the manifest.
        errors: prompts on which it fails, under every sampling setting.
        diverges: margin by prompt, at temperature 0; None where only the lengths differ.
    """

    name: str
    kind: str
    shape: TreeShape = field(default_factory=lambda: TreeShape.chain(0))
    acceptance: tuple[float, ...] = ()
    stage_ms: tuple[float, float, float, float] = (0.0, 20.0, 0.25, 0.25)
    other_ms: float = 0.5
    lossless: bool = True
    errors: frozenset[int] = frozenset()
    diverges: Mapping[int, float | None] = field(default_factory=dict)


def demo_methods() -> tuple[SyntheticMethod, ...]:
    """What the default config compares, with times as on two CPU cores."""
    rates, cost = (0.62, 0.14, 0.07, 0.04), lambda size: 19.5 + 0.55 * size
    chains = [
        (f"chain {d}", TreeShape.chain(d), (1.1 * d, cost(d + 1), 0.6, 0.2)) for d in (2, 4, 6, 8)
    ]
    trees = [
        (name, shape, (1.3 * shape.depth, cost(shape.size), 0.8, 0.25))
        for name, shape in (
            ("chains 2x4", TreeShape.independent_chains(2, 4)),
            ("chains 4x4", TreeShape.independent_chains(4, 4)),
            ("kary 2x3", TreeShape.kary(2, 3)),
            ("expansion 2-2-1-1", TreeShape.expansion([2, 2, 1, 1])),
            ("expansion 3-2-1-1-1", TreeShape.expansion([3, 2, 1, 1, 1])),
        )
    ]
    return (
        SyntheticMethod("generate", "generate", other_ms=2.1),
        SyntheticMethod("plain", "plain"),
        SyntheticMethod(
            "assisted", "assisted", TreeShape.chain(4), rates, (6.0, 23.0, 1.5, 1.0), other_ms=3.0
        ),
        *(SyntheticMethod(n, "tree", s, rates, ms) for n, s, ms in (*chains, *trees)),
    )


def write_run(
    folder: Path,
    methods: Sequence[SyntheticMethod] | None = None,
    *,
    prompts: int = 12,
    new_tokens: int = 64,
    temperatures: Sequence[float] = (0.0, 1.0),
    spread: float = 0.0,
    jitter: float = 0.0,
    seed: int = 0,
    finished: bool = True,
    schema_version: int = SCHEMA_VERSION,
) -> Path:
    """Write a run folder as SCHEMA.md describes it.

    Args:
        folder: created if missing.
        methods: `demo_methods()` by default.
        prompts: how many.
        new_tokens: of every prompt.
        temperatures: one sampling setting each.
        spread: standard deviation of log acceptance over prompts.
        jitter: standard deviation of log time over prompts and methods.
        seed: of everything.
        finished: whether to write Parquet and the end, or only the logs.
        schema_version: as the manifest says.

    Returns:
        The folder.
    """
    methods = demo_methods() if methods is None else tuple(methods)
    rng = np.random.default_rng(seed)
    with RunFolder(folder) as run:
        run.keep_manifest({"config_hash": "", "finished": None})  # leaving it does not remove it
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for prompt in range(prompts):
        ease = np.exp(rng.normal(0, spread))
        for temperature in temperatures:
            for order, method in enumerate(methods):
                time = np.exp(rng.normal(0, jitter))
                row, trace = _decode(method, prompt, temperature, new_tokens, ease, time, rng)
                rows.append({**row, "order": order, "seed": seed})
                steps += trace
    tables = ("prompts", [PromptRow(**r) for r in rows]), ("steps", [StepRow(**s) for s in steps])
    for name, table in tables:
        write_lines(folder / f"{name}.jsonl", table)
        if finished:
            kind = PromptRow if name == "prompts" else StepRow
            to_frame(table, kind).write_parquet(folder / f"{name}.parquet")
    manifest = synthetic_manifest(methods, temperatures, seed, finished, schema_version)
    run.keep_manifest(manifest)
    return folder


def _decode(
    method: SyntheticMethod,
    prompt: int,
    temperature: float,
    new_tokens: int,
    ease: float,
    time: float,
    rng: np.random.Generator,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The row of one prompt, and the rows of its steps."""
    key = {"prompt": prompt, "sampling": f"T={temperature:g}", "method": method.name, "repeat": 0}
    row: dict[str, Any] = {
        **key,
        "prompt_id": f"module_{prompt}.py",
        "category": None,
        "prompt_tokens": 64,
        "new_tokens": 0,
        "tokens": [],
        "text": "",
        **dict.fromkeys(("steps", "accepted", "emitted", "drafted"), 0),
        **dict.fromkeys(("prefill_s", "decode_s", "total_s", *(f"{s}_s" for s in STAGES))),
        **dict.fromkeys(("equal_to_plain", "first_divergence", "divergence_margin", "error")),
    }
    if prompt in method.errors:
        return {**row, "error": "NonFiniteLogits: the draft model returned NaN"}, []
    seconds = {f"{s}_s": ms * time / 1e3 for s, ms in zip(STAGES, method.stage_ms, strict=True)}
    trace: list[dict[str, Any]] = []
    left = new_tokens
    while left:
        path = _walk(method, ease, rng)
        emitted = len(path) + 1
        trace.append(
            {
                **key,
                "step": len(trace),
                "size": method.shape.size,
                "depth": method.shape.depth,
                "accepted": len(path),
                "emitted": emitted,
                "kept": min(left, emitted),
                "path_ranks": path,
                **seconds,
            }
        )
        left -= min(left, emitted)
    count, ours = len(trace), method.kind in ("plain", "tree")
    accepted = sum(len(s["path_ranks"]) for s in trace) if ours else new_tokens - count
    decode = count * (sum(seconds.values()) + method.other_ms * time / 1e3)
    equal = prompt not in method.diverges if temperature == 0 else None
    kept = new_tokens if equal is not False else new_tokens // 2
    names = [f"value_{prompt}_{i}" for i in range(kept)] + ["other"] * (new_tokens - kept)
    if temperature > 0:  # every method draws a text of its own
        names[kept // 4 :] = [f"drawn_{rng.integers(1000)}" for _ in names[kept // 4 :]]
    words = " ".join(names)
    row |= {
        "new_tokens": new_tokens,
        "tokens": list(range(kept)) + [9999] * (new_tokens - kept),
        "text": f"def function_{prompt}(self):\n    return {words}",
        "steps": count,
        "accepted": accepted,
        "emitted": accepted + count,
        "drafted": None if method.kind == "assisted" else count * (method.shape.size - 1),
        "prefill_s": 0.1,
        "decode_s": decode,
        "total_s": decode + 0.1,
        **({name: value * count for name, value in seconds.items()} if ours else {}),
        "equal_to_plain": equal,
        "first_divergence": kept if equal is False else None,
        "divergence_margin": method.diverges[prompt] if equal is False else None,
    }
    return row, trace if ours else []


def _walk(method: SyntheticMethod, ease: float, rng: np.random.Generator) -> list[int]:
    """Ranks of the accepted nodes of one step."""
    node, path = 0, []
    while children := method.shape.children[node]:
        rates = [min(rate * ease, 1.0) for rate in method.acceptance[: len(children)]]
        rank = int(np.searchsorted(np.cumsum(rates), rng.random(), side="right"))
        if rank >= len(rates):
            break
        path.append(rank)
        node = children[rank]
    return path
