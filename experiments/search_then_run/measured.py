"""What the `search` of a config measures before the run: how often children are accepted, and times."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config, ModelsConfig
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

__all__ = ["measure"]

LARGEST_TIMED = 64
"""Nodes up to which the target is timed, unless the config says otherwise."""


def measure(
    known: Experiment,
    pair: "Pair",
    lengths: Sequence[int],
    records: RunFolder,
    reporter: Reporter,
) -> Measured:
    """Record traces and times, or take those that an interrupted start of the run left in the folder.

    Args:
        known: of a config with `search`; of methods that wait, the stand-ins are recorded and timed.
        pair: the models.
        lengths: tokens of the run's prompts.
        records: in whose `search` everything is kept; each part is written when it is finished.
        reporter: shows the progress.
    """
    config = known.config
    assert config.search is not None
    prefix = round(sum(lengths) / len(lengths)) + config.max_new_tokens // 2
    stamp = records.search / STAMP
    stamped_as = {"config_hash": config_hash(config), "prefix": prefix}
    if not stamp.exists() or stamped(stamp) != stamped_as:
        records.forget_search()
        records.keep(stamp, json.dumps(stamped_as))
    measuring = _measuring_config(known)
    deepest = max([config.search.depth, *(method.max_depth for method in known.methods)])
    load: Callable[[ModelsConfig], Pair] = lambda models: pair  # noqa: E731
    traces = {}
    for sampling, law, path in _recordings(known, records.search):
        if not path.exists():
            rule = usual_rule(law, known.samplings[sampling])
            reporter.note(f"recording what is accepted on other texts: {sampling}, law {law}")
            recorded = trace(
                measuring,
                sampling=sampling,
                law=str(law),
                rule=str(rule),
                width=config.search.width,
                beyond=deepest,
                console=reporter.console,
                load=load,
            )
            records.keep(path, recorded.to_bytes())
        traces[sampling, str(law)] = Trace.load(path)
    path = records.search / "latency.json"
    if not path.exists():
        reporter.note("timing the parts of a step")
        timed = profile(
            measuring,
            sizes=config.search.sizes or [size for size in SIZES if size <= LARGEST_TIMED],
            prefixes=sorted({prefix, *_named_prefixes(config)}),
            repeats=config.search.repeats,
            console=reporter.console,
            load=load,
        )
        for note in timed.notes:
            reporter.note(note)
        if timed.interrupted:
            raise KeyboardInterrupt
        records.keep(path, timed.model.to_json())
    return Measured(config.search, traces, LatencyModel.load(path), prefix)


def _measured_shapes(config: Config, key: str) -> list[Any]:
    """The shapes of methods in which this key asks for what is measured."""
    shapes = [getattr(method, "shape", None) for method in config.methods]
    return [shape for shape in shapes if getattr(shape, key, None) == MEASURED]


def _named_prefixes(config: Config) -> list[int]:
    """Prefix lengths at which methods ask for measured times."""
    named = [getattr(shape, "prefix", None) for shape in _measured_shapes(config, "latency")]
    return [prefix for prefix in named if prefix is not None]


def _recordings(known: Experiment, folder: Path) -> list[tuple[str, Law, Path]]:
    """What is recorded: the usual law of each setting, and every other that a method uses."""
    recordings = []
    for i, (name, sampling) in enumerate(known.samplings.items()):
        laws = [usual_law(sampling)]
        for method in known.methods:
            if method.by_pair:
                law, chain = method.choices[name].law, method.shape and method.shape.is_chain
                covered = chain and SAME_FIRST.get(str(law)) == str(laws[0])
                if not (law.together or law in laws or covered or sampling.greedy):
                    laws.append(law)
        calibrated = not sampling.greedy and _measured_shapes(known.config, "calibration")
        if calibrated and Law.DETERMINISTIC not in laws:
            laws.append(Law.DETERMINISTIC)
        recordings += [(name, law, trace_path(folder, i, law)) for law in laws]
    return recordings


def _measuring_config(known: Experiment) -> Config:
    """The config that is recorded and timed with: prompts of its own, stand-ins for what is searched."""
    config = known.config
    assert config.search is not None
    return config.model_copy(
        update={
            "prompts": search_prompts(config),
            "max_new_tokens": config.search.max_new_tokens,
            "methods": tuple(method.config for method in known.methods),
            "search": None,
        }
    )
