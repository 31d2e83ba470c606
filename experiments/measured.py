"""What the `search` of a config measures before the run: how often children are accepted, and times."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.builder import Experiment
from experiments.config import Config, ModelsConfig, Prompts, SearchConfig
from experiments.errors import ConfigError, RunFolderError
from experiments.manifest import config_hash
from experiments.profile_commands import SIZES, profile
from experiments.progress import Reporter
from experiments.trace_commands import trace
from search import (
    AcceptanceEstimate,
    LatencyModel,
    SmallSample,
    Trace,
    estimate_acceptance,
)
from treespec.tree import Law

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Measured", "load_measured", "measure"]

MOST = 64
"""Nodes up to which the target is timed, unless the config says otherwise."""

RECORDED = {
    Law.DETERMINISTIC: "onehot",
    Law.IID: "rrs",
    Law.WITHOUT_REPLACEMENT: "rrsw",
}
"""The rule that a law is recorded with above temperature 0."""

SAME_FIRST = {str(Law.IID): str(Law.WITHOUT_REPLACEMENT)}
"""Laws whose first child is drawn and accepted as that of another law: for chains one trace serves both."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Traces and times.

    Args:
        search: what was asked for.
        traces: by sampling setting and law.
        latency: the times.
    """

    search: SearchConfig
    traces: Mapping[tuple[str, str], Trace]
    latency: LatencyModel

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
    folder: Path,
    console: Console | None,
) -> Measured:
    """Record traces and times, or take those that an interrupted start of the run left in the folder.

    Args:
        config: with `search`.
        known: the methods that need no measurement; their laws are recorded too.
        pair: the models.
        folder: where everything is kept; each part is written when it is finished.
        console: where progress is shown.
    """
    assert config.search is not None
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "config.json"
    if not stamp.exists() or json.loads(stamp.read_text())["config_hash"] != config_hash(config):
        for path in folder.iterdir():
            path.unlink()
        stamp.write_text(json.dumps({"config_hash": config_hash(config)}), encoding="utf-8")
    own = _own_config(config, known)
    deepest = max([config.search.depth, *(method.max_depth for method in known.methods)])
    load: Callable[[ModelsConfig], Pair] = lambda models: pair  # noqa: E731
    traces, reporter = {}, Reporter(console)
    for sampling, law, path in _recordings(config, known, folder):
        if not path.exists():
            rule = "greedy" if known.samplings[sampling].greedy else RECORDED[law]
            reporter.note(f"recording what is accepted on other texts: {sampling}, law {law}")
            found = trace(
                own, sampling=sampling, law=str(law), rule=rule, width=config.search.width,
                beyond=deepest, console=console, load=load,
            )  # fmt: skip
            _replacing(path, found.save)
        traces[sampling, str(law)] = Trace.load(path)
    path = folder / "latency.json"
    if not path.exists():
        reporter.note("timing the parts of a step")
        sizes = config.search.sizes or [size for size in SIZES if size <= MOST]
        found = profile(
            own, sizes=sizes, prefixes=[_prefix(config, traces)],
            repeats=config.search.repeats, console=console, load=load,
        )  # fmt: skip
        if found.interrupted:
            raise KeyboardInterrupt
        _replacing(path, found.model.save)
    return Measured(config.search, traces, LatencyModel.load(path))


def load_measured(config: Config, known: Experiment, folder: Path) -> Measured:
    """What `measure` left in a folder.

    Raises:
        RunFolderError: if a file is missing.
    """
    assert config.search is not None
    recordings = _recordings(config, known, folder)
    files = [*(path for _, _, path in recordings), folder / "latency.json"]
    missing = [path for path in files if not path.exists()]
    if missing:
        raise RunFolderError(f"{missing[0]} is missing: start anew with --fresh")
    traces = {(sampling, str(law)): Trace.load(path) for sampling, law, path in recordings}
    return Measured(config.search, traces, LatencyModel.load(files[-1]))


def _recordings(config: Config, known: Experiment, folder: Path) -> list[tuple[str, Law, Path]]:
    """What is recorded: the usual law of each setting, and every other that a method uses."""
    found = []
    for i, (name, sampling) in enumerate(known.samplings.items()):
        laws = [Law.DETERMINISTIC if sampling.greedy else Law.WITHOUT_REPLACEMENT]
        for method in known.methods:
            if method.kind == "tree":
                law, chain = method.choices[name].law, method.shape and method.shape.is_chain
                covered = chain and SAME_FIRST.get(str(law)) == str(laws[0])
                if law in RECORDED and law not in laws and not covered and not sampling.greedy:
                    laws.append(law)
        if not sampling.greedy and _wants_calibration(config) and Law.DETERMINISTIC not in laws:
            laws.append(Law.DETERMINISTIC)
        found += [(name, law, folder / f"trace-{i}-{law}.npz") for law in laws]
    return found


def _wants_calibration(config: Config) -> bool:
    shapes = [getattr(method, "shape", None) for method in config.methods]
    return any(getattr(shape, "calibration", None) is not None for shape in shapes)


def _own_config(config: Config, known: Experiment) -> Config:
    """The config that is recorded and timed with: prompts of its own, methods that are known."""
    assert config.search is not None
    methods = tuple(method.config for method in known.methods)
    return config.model_copy(
        update={
            "prompts": config.search.prompts or _after(config.prompts, config.max_new_tokens),
            "max_new_tokens": config.search.max_new_tokens,
            "methods": methods,
            "search": None,
        }
    )


def _after(prompts: Prompts, new_tokens: int) -> Prompts:
    """The same texts from where the run's end."""
    if prompts.tokens is None:
        raise ConfigError(
            "search.prompts: the run's prompts are whole texts (prompts.tokens is null), so nothing is "
            "left of them to measure on: give other prompts here, or cut those with prompts.tokens"
        )
    start = prompts.start + prompts.tokens + new_tokens
    return prompts.model_copy(update={"start": start})


def _prefix(config: Config, traces: Mapping[tuple[str, str], Trace]) -> int:
    """Tokens before the middle of a text of the run."""
    lengths = [n for found in traces.values() for n in found.about.get("prompt_tokens", ())]
    return round(sum(lengths) / len(lengths)) + config.max_new_tokens // 2


def _replacing(path: Path, save: Callable[[Path], object]) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f"new-{path.name}")
    temporary.unlink(missing_ok=True)
    save(temporary)
    temporary.replace(path)
