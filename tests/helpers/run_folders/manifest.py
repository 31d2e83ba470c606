"""The manifest of a run with known truth, for tests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from run_folders.folders import SyntheticMethod


def synthetic_manifest(
    methods: "Sequence[SyntheticMethod]",
    temperatures: Sequence[float],
    seed: int,
    finished: bool,
    schema_version: int,
) -> dict[str, Any]:
    """What `manifest.json` holds for these methods."""
    samplings = [f"T={t:g}" for t in temperatures]
    model = {
        "parameters": 94_000_000,
        "dtype": "bfloat16",
        "architecture": "LlamaForCausalLM",
        "context": 1024,
    }
    grid = [(length, threshold) for length in (2, 4, 6, 8, 12) for threshold in (0.0, 0.4)]
    table = [
        {"length": n, "threshold": t, "tokens_per_second": 60.0 - abs(n - 4) - 10 * t, "prompts": 2}
        for n, t in grid
    ]
    tuned = {"table": table, "chosen": {"length": 4, "threshold": 0.0}}
    described = []
    for m in methods:
        tree = m.kind == "tree"
        straight = tree and m.shape.is_chain
        described.append(
            {
                "name": m.name,
                "kind": m.kind,
                "parents": list(m.shape.parents) if tree else None,
                "size": m.shape.size if tree else None,
                "depth": m.shape.depth if tree else None,
                "law": _by_sampling(temperatures, "deterministic", "without_replacement")
                if tree
                else None,
                "rule": _by_sampling(temperatures, "greedy", "chain" if straight else "rrsw")
                if tree
                else None,
                "lossless": m.lossless,
            }
        )
    return {
        "schema_version": schema_version,
        "name": "tree_vs_chain",
        "config": {
            "name": "tree_vs_chain",
            "max_new_tokens": 64,
            "seed": seed,
            "prompts": {"kind": "embedded"},
        },
        "config_hash": "0" * 64,
        "prompts_hash": "0" * 64,
        "together": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:02:00+00:00" if finished else None,
        "sessions": [{"started": "2026-01-01T00:00:00+00:00", "git_hash": "abc1234"}],
        "treespec_version": "0.1.0",
        "git_hash": "abc1234",
        "versions": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "transformers": "5.17.0",
            "triton": None,
        },
        "hardware": {
            "machine": "x86_64",
            "cpu": "Synthetic CPU",
            "cores": 2,
            "threads": 2,
            "memory_gib": 8.0,
            "gpu": None,
        },
        "seed": seed,
        "models": {
            "target": {"name": "embedded", **model},
            "draft": {"name": "embedded", **model, "parameters": 1_100_000},
        },
        "methods": described,
        "samplings": [
            {"name": name, "temperature": t, "top_k": None, "top_p": None, "min_p": None}
            for name, t in zip(samplings, temperatures, strict=True)
        ],
        "tuning": {
            "assisted": {
                m.name: dict.fromkeys(samplings, tuned) for m in methods if m.kind == "assisted"
            }
        },
        "warmup": {"prompts": 1, "seconds": 9.5},
        "errors": sum(len(m.errors) for m in methods) * len(samplings),
    }


def _by_sampling(temperatures: Sequence[float], greedy: str, sampled: str) -> dict[str, str]:
    return {f"T={t:g}": greedy if t == 0 else sampled for t in temperatures}
