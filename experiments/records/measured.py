"""What a run's folder `search/` holds: how often children are accepted, and times."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.experiments.config.schema import Config, SearchConfig
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.experiments.records.forms import COUNT, TEXT, by_name, fits, parsed
from treespec.search import (
    AcceptanceEstimate,
    LatencyModel,
    SmallSample,
    Trace,
    estimate_acceptance,
)
from treespec.search.rates.rule_notes import accepts_alike
from treespec.tree import Law, TreeShape

__all__ = [
    "SAME_FIRST",
    "STAMP",
    "Measured",
    "advice_kept",
    "load_measured",
    "stamped",
    "trace_path",
]

STAMP = "config.json"
"""Which config, and which prefix, the files beside it are of."""

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
        recorded = self.traces.get((sampling, law))
        return recorded or (self.traces.get((sampling, SAME_FIRST.get(law, ""))) if chain else None)

    def of_other_rule(self, rule: str, sampling: str, law: str, shape: TreeShape) -> str | None:
        """The rule of what was recorded for a tree, where it says nothing of what another rule accepts.

        Args:
            rule: that is asked about.
            sampling: name of the setting.
            law: how children are drawn.
            shape: the tree.

        Returns:
            None if both rules accept alike, or nothing was recorded.
        """
        trace = self.trace(sampling, law, shape.is_chain)
        if trace is None or accepts_alike(rule, trace.rule, shape, trace.greedy):
            return None
        return trace.rule

    def recorded(self, sampling: str, law: str) -> Trace:
        """What was recorded for a law.

        Raises:
            ConfigError: if nothing was.
        """
        trace = self.trace(sampling, law)
        if trace is None:
            known = ", ".join(other for name, other in self.traces if name == sampling)
            raise ConfigError(
                f"{sampling}: law '{law}' was not recorded, but {known}; leave the law out"
            )
        return trace

    def estimate(self, sampling: str, law: str, ranks: int | None = None) -> AcceptanceEstimate:
        """Rates by depth and rank, deep levels drawn to those of all.

        What the sample cannot support is in its `warnings`; it shows in the intervals of what follows.

        Raises:
            ConfigError: if the law was not recorded.
        """
        recorded = self.recorded(sampling, law)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSample)
            return estimate_acceptance(
                recorded,
                by="depth",
                depth=self.search.depth,
                ranks=ranks or self.search.width,
                shrinkage=self.search.shrinkage,
            )

    def default_law(self, sampling: str) -> str:
        """The law of trees under a setting: drawn without replacement, or none at temperature 0."""
        drawn = str(Law.WITHOUT_REPLACEMENT)
        return drawn if (sampling, drawn) in self.traces else str(Law.DETERMINISTIC)


def load_measured(config: Config, folder: Path) -> Measured:
    """What was measured before a run, as its folder `search/` keeps it.

    Raises:
        RunFolderError: if a file is missing.
    """
    assert config.search is not None
    stamp, times = folder / STAMP, folder / "latency.json"
    traces = {}
    for i, setting in enumerate(config.samplings):
        usual = Law.DETERMINISTIC if setting.temperature == 0 else Law.WITHOUT_REPLACEMENT
        for law in Law:
            path = trace_path(folder, i, law)
            if path.exists():
                traces[setting.name, str(law)] = Trace.load(path)
            elif law is usual:
                raise RunFolderError(f"{path} is missing: start over with --fresh")
    for path in (stamp, times):
        if not path.exists():
            raise RunFolderError(f"{path} is missing: start over with --fresh")
    latency = LatencyModel.load(times)
    return Measured(config.search, traces, latency, stamped(stamp)["prefix"])


def advice_kept(folder: Path, place: int) -> dict[str, str]:
    """What searches advised before a run, by the method that got the tree.

    Args:
        folder: that measurements are kept in.
        place: of the sampling setting.

    Raises:
        RunFolderError: if the file is damaged.
    """
    path, way_out = folder / f"best-{place}.json", "start over with --fresh"
    if not path.exists():
        return {}
    data = parsed(path, RunFolderError, way_out)
    if problem := fits(data, by_name({"verdict": TEXT})):
        raise RunFolderError(f"{path} is damaged: {problem}; {way_out}")
    return {method: said["verdict"] for method, said in data.items()}


def stamped(stamp: Path) -> dict[str, Any]:
    """What a folder of measurements says of itself.

    Raises:
        RunFolderError: if the file is damaged.
    """
    way_out = "start over with --fresh"
    data = parsed(stamp, RunFolderError, way_out)
    if problem := fits(data, {"config_hash": TEXT, "prefix": COUNT}):
        raise RunFolderError(f"{stamp} is damaged: {problem}; {way_out}")
    return data


def trace_path(folder: Path, sampling: int, law: Law) -> Path:
    """Where the trace of a law is, by the number of the sampling setting."""
    return folder / f"trace-{sampling}-{law}.npz"
