"""Measured times as the JSON of a latency model, with what they were measured on."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.schema import Config
from treespec.experiments.records.manifest import environment, now
from treespec.experiments.search_then_run.profile.profile import Samples
from treespec.experiments.search_then_run.profile.shapes import Setting
from treespec.search.latency.file import VERSION

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["about_times", "json_of_samples"]


def about_times(config: Config, pair: "Pair", samples: Samples, repeats: int) -> dict[str, Any]:
    """What was measured, on what, and how often."""

    def facts(model: Any) -> dict[str, Any]:
        parameters = {id(p): p for p in model.model.parameters()}.values()
        return {
            "parameters": sum(p.numel() for p in parameters),
            "dtype": str(next(iter(parameters)).dtype).removeprefix("torch."),
            "attention": model.attention,
        }

    return {
        "measured": now(),
        "pair": pair.name,
        "models": config.models.model_dump(mode="json"),
        "target": facts(pair.target),
        "draft": facts(pair.draft),
        "rounds": samples.rounds,
        "rounds_wanted": repeats,
        **environment(),
    }


def json_of_samples(samples: Samples, settings: Sequence[Setting], about: Mapping[str, Any]) -> str:
    """The samples as the JSON of a latency model, in milliseconds."""
    laws = {}
    for setting in settings:
        own = samples.of_law.get(str(setting.law), {})
        tables = {f"{name}_ms": _milliseconds(by_prefix) for name, by_prefix in own.items()}
        if "level_ms" in tables:
            laws[str(setting.law)] = {"sampling": setting.name, "rule": str(setting.rule)} | tables
    shared = {f"{name}_ms": _milliseconds(own) for name, own in samples.shared.items()}
    batches = {"1": {**shared, "laws": laws}}
    return json.dumps({"version": VERSION, "about": about, "batches": batches})


def _milliseconds(by_prefix: Mapping[int | None, Mapping[int | None, list[float]]]) -> Any:
    def by_size(own: Mapping[int | None, list[float]]) -> Any:
        cells = {
            size: [round(1e3 * s, 4) for s in own[size]]
            for size in sorted(own, key=lambda s: s or 0)
        }
        return cells[None] if None in cells else {str(size): times for size, times in cells.items()}

    tables = {prefix: by_size(own) for prefix, own in by_prefix.items()}
    if None in tables:
        return tables[None]
    return {str(prefix): tables[prefix] for prefix in sorted(tables, key=lambda p: p or 0)}
