"""What the `search` of a config measures before the run: how often children are accepted, and times."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config, ModelsConfig, SearchConfig
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.manifest import config_hash
from treespec.experiments.records.measured import (
    SAME_FIRST,
    STAMP,
    Measured,
    stamped,
    trace_path,
)
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import search_prompts
from treespec.experiments.search_then_run.profile.commands import profile
from treespec.experiments.search_then_run.profile.plan import SIZES
from treespec.experiments.search_then_run.traces import trace
from treespec.search import LatencyModel, Trace
from treespec.tree import Law
from treespec.verify import usual_law, usual_rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = [
    "measure",
    "own_config",
    "timed_sizes",
]

MOST = 64
"""Nodes up to which the target is timed, unless the config says otherwise."""


def measure(
    config: Config,
    known: Experiment,
    pair: "Pair",
    lengths: Sequence[int],
    records: RunFolder,
    console: Console | None,
) -> Measured:
    """Record traces and times, or take those that an interrupted start of the run left in the folder.

    Args:
        config: with `search`.
        known: its methods, with stand-ins for those that wait; their laws are recorded and timed.
        pair: the models.
        lengths: tokens of the run's prompts.
        records: where everything is kept; each part is written when it is finished.
        console: where progress is shown.
    """
    assert config.search is not None
    folder = records.search
    prefix = round(sum(lengths) / len(lengths)) + config.max_new_tokens // 2
    stamp, about = folder / STAMP, {"config_hash": config_hash(config), "prefix": prefix}
    if not stamp.exists() or stamped(stamp) != about:
        records.forget_search()
        records.keep(stamp, json.dumps(about))
    own = own_config(config, known)
    deepest = max([config.search.depth, *(method.max_depth for method in known.methods)])
    load: Callable[[ModelsConfig], Pair] = lambda models: pair  # noqa: E731
    traces, reporter = {}, Reporter(console)
    for sampling, law, path in _recordings(config, known, folder):
        if not path.exists():
            rule = usual_rule(law, known.samplings[sampling])
            reporter.note(f"recording what is accepted on other texts: {sampling}, law {law}")
            found = trace(
                own, sampling=sampling, law=str(law), rule=str(rule), width=config.search.width,
                beyond=deepest, console=console, load=load,
            )  # fmt: skip
            records.keep(path, found.to_bytes())
        traces[sampling, str(law)] = Trace.load(path)
    path = folder / "latency.json"
    if not path.exists():
        reporter.note("timing the parts of a step")
        found = profile(
            own, sizes=timed_sizes(config.search), prefixes=sorted({prefix, *_named_prefixes(config)}),
            repeats=config.search.repeats, console=console, load=load,
        )  # fmt: skip
        for note in found.notes:
            reporter.note(note)
        if found.interrupted:
            raise KeyboardInterrupt
        records.keep(path, found.model.to_json())
    return Measured(config.search, traces, LatencyModel.load(path), prefix)


def _named_prefixes(config: Config) -> list[int]:
    """Prefix lengths at which methods ask for measured times."""
    shapes = [getattr(method, "shape", None) for method in config.methods]
    timed = [shape for shape in shapes if getattr(shape, "latency", None) == MEASURED]
    named = [getattr(shape, "prefix", None) for shape in timed]
    return [prefix for prefix in named if prefix is not None]


def _recordings(config: Config, known: Experiment, folder: Path) -> list[tuple[str, Law, Path]]:
    """What is recorded: the usual law of each setting, and every other that a method uses."""
    found = []
    for i, (name, sampling) in enumerate(known.samplings.items()):
        laws = [usual_law(sampling)]
        for method in known.methods:
            if method.kind == "tree":
                law, chain = method.choices[name].law, method.shape and method.shape.is_chain
                covered = chain and SAME_FIRST.get(str(law)) == str(laws[0])
                if not (law.together or law in laws or covered or sampling.greedy):
                    laws.append(law)
        if not sampling.greedy and _wants_calibration(config) and Law.DETERMINISTIC not in laws:
            laws.append(Law.DETERMINISTIC)
        found += [(name, law, trace_path(folder, i, law)) for law in laws]
    return found


def _wants_calibration(config: Config) -> bool:
    shapes = [getattr(method, "shape", None) for method in config.methods]
    return any(getattr(shape, "calibration", None) == MEASURED for shape in shapes)


def timed_sizes(search: SearchConfig) -> list[int]:
    """Nodes at which the target is timed."""
    return list(search.sizes or [size for size in SIZES if size <= MOST])


def own_config(config: Config, known: Experiment) -> Config:
    """The config that is recorded and timed with: prompts of its own, stand-ins for what is searched."""
    assert config.search is not None
    methods = tuple(method.config for method in known.methods)
    return config.model_copy(
        update={
            "prompts": search_prompts(config),
            "max_new_tokens": config.search.max_new_tokens,
            "methods": methods,
            "search": None,
        }
    )
