"""What the `search` of a config measures before the run: how often children are accepted, and times."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config, ModelsConfig, Prompts, SearchConfig
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.forms import COUNT, TEXT, fits, or_null, parsed
from treespec.experiments.records.manifest import config_hash
from treespec.experiments.run.progress import Reporter
from treespec.experiments.search_then_run.profile.commands import profile
from treespec.experiments.search_then_run.profile.plan import SIZES
from treespec.experiments.search_then_run.traces import trace
from treespec.search import (
    AcceptanceEstimate,
    LatencyModel,
    SmallSample,
    Trace,
    estimate_acceptance,
)
from treespec.tree import Law
from treespec.verify import usual_law, usual_rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = [
    "Measured",
    "load_measured",
    "measure",
    "own_config",
    "search_prompts",
    "timed_sizes",
]

STAMP = "config.json"
"""Which config, and which prefix, the files beside it are of."""

MOST = 64
"""Nodes up to which the target is timed, unless the config says otherwise."""

SAME_FIRST = {str(Law.IID): str(Law.WITHOUT_REPLACEMENT)}
"""Laws whose first child is drawn and accepted as that of another law: for chains one trace serves both."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Traces and times.

    Args:
        search: what was asked for.
        traces: by sampling setting and law.
        latency: the times.
        prefix: committed tokens at which times are read: in the middle of a text of the run.
    """

    search: SearchConfig
    traces: Mapping[tuple[str, str], Trace]
    latency: LatencyModel
    prefix: int

    def trace(self, sampling: str, law: str, chain: bool = False) -> Trace | None:
        """What was recorded for a law; for a chain, of a law with the same first child."""
        found = self.traces.get((sampling, law))
        return found or (self.traces.get((sampling, SAME_FIRST.get(law, ""))) if chain else None)

    def estimate(self, sampling: str, law: str, ranks: int | None = None) -> AcceptanceEstimate:
        """Rates by depth and rank, deep levels drawn to those of all.

        What the sample cannot support is in its `warnings`; it shows in the intervals of what follows.

        Raises:
            ConfigError: if the law was not recorded.
        """
        found = self.trace(sampling, law)
        if found is None:
            known = ", ".join(own for name, own in self.traces if name == sampling)
            raise ConfigError(
                f"{sampling}: law '{law}' was not recorded, but {known}; leave the law out"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSample)
            return estimate_acceptance(
                found,
                by="depth",
                depth=self.search.depth,
                ranks=ranks or self.search.width,
                shrinkage=self.search.shrinkage,
            )

    def default_law(self, sampling: str) -> str:
        """The law of trees under a setting: drawn without replacement, or none at temperature 0."""
        drawn = str(Law.WITHOUT_REPLACEMENT)
        return drawn if (sampling, drawn) in self.traces else str(Law.DETERMINISTIC)


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
    if not stamp.exists() or _stamped(stamp) != about:
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


def load_measured(config: Config, folder: Path) -> Measured:
    """What `measure` left in a folder.

    Raises:
        RunFolderError: if a file is missing.
    """
    assert config.search is not None
    stamp, times = folder / STAMP, folder / "latency.json"
    traces = {}
    for i, setting in enumerate(config.samplings):
        usual = Law.DETERMINISTIC if setting.temperature == 0 else Law.WITHOUT_REPLACEMENT
        for law in Law:
            path = _trace_path(folder, i, law)
            if path.exists():
                traces[setting.name, str(law)] = Trace.load(path)
            elif law is usual:
                raise RunFolderError(f"{path} is missing: start anew with --fresh")
    for path in (stamp, times):
        if not path.exists():
            raise RunFolderError(f"{path} is missing: start anew with --fresh")
    latency = LatencyModel.load(times)
    # Runs of versions that timed one prefix alone did not write it down.
    prefix = _stamped(stamp).get("prefix", latency.middle_prefix)
    return Measured(config.search, traces, latency, prefix)


def _stamped(stamp: Path) -> dict[str, Any]:
    """What a folder of measurements says of itself.

    Raises:
        RunFolderError: if the file is damaged.
    """
    way_out = "start anew with --fresh"
    data = parsed(stamp, RunFolderError, way_out)
    if problem := fits(data, {"config_hash": TEXT, "prefix?": or_null(COUNT)}):
        raise RunFolderError(f"{stamp} is damaged: {problem}; {way_out}")
    return data


def _trace_path(folder: Path, sampling: int, law: Law) -> Path:
    return folder / f"trace-{sampling}-{law}.npz"


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
        found += [(name, law, _trace_path(folder, i, law)) for law in laws]
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


def search_prompts(config: Config) -> Prompts:
    """What is measured on: prompts of its own, or the run's texts from where the run ends.

    Raises:
        ConfigError: if these are whole texts, so that nothing is left of them.
    """
    assert config.search is not None
    if config.search.prompts is not None:
        return config.search.prompts
    prompts = config.prompts
    if prompts.tokens is None:
        raise ConfigError(
            "search.prompts: the run's prompts are whole texts (prompts.tokens is null), so nothing is "
            "left of them to measure on: give other prompts here, or cut those with prompts.tokens"
        )
    farthest = max((getattr(prompts, "excerpts", None) or {"": 0}).values())
    start = prompts.start + farthest + prompts.tokens + config.max_new_tokens
    return prompts.model_copy(update={"start": start})
