"""The measurements in a run's folder `search/`: how often children are accepted, and pass times."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treespec.experiments.config.schema import Config, SearchConfig
from treespec.experiments.errors import ConfigError, RunFolderError
from treespec.reading_models import read_form
from treespec.search import (
    AcceptanceEstimate,
    LatencyModel,
    SmallSample,
    Trace,
    estimate_acceptance,
)
from treespec.search.traces.rule_notes import accepts_alike
from treespec.tree import Law, TreeShape

STAMP = "config.json"
"""File that records which config and which prefix the other files of the folder belong to."""

WAY_OUT = "start over with --fresh"

SAME_FIRST = {str(Law.IID): str(Law.WITHOUT_REPLACEMENT)}
"""Laws whose first child is drawn and accepted as under another law: one trace serves chains of both."""


class _Stamp(BaseModel):
    config_hash: str
    prefix: int


class _Advice(BaseModel):
    verdict: str


@dataclass(frozen=True, eq=False)
class Measured:
    """Traces and pass times.

    Args:
        prefix: number of committed tokens at which times are read: the middle of a text of the run.
    """

    search: SearchConfig
    traces: Mapping[tuple[str, str], Trace]
    latency: LatencyModel
    prefix: int

    def trace(self, sampling: str, law: str, chain: bool = False) -> Trace | None:
        """The trace of a law, or for a chain that of a law with the same first child; None without."""
        recorded = self.traces.get((sampling, law))
        return recorded or (self.traces.get((sampling, SAME_FIRST.get(law, ""))) if chain else None)

    @property
    def batch(self) -> int:
        """Number of texts that were decoded side by side while the times were measured."""
        return min(self.latency.batches)

    def of_other_rule(self, rule: str, sampling: str, law: str, shape: TreeShape) -> str | None:
        """The rule that a tree's trace was recorded with, if its rates do not hold for another rule.

        Returns:
            The recorded rule; None if both rules accept alike, or nothing was recorded.
        """
        trace = self.trace(sampling, law, shape.is_chain)
        if trace is None or accepts_alike(rule, trace.rule, shape, trace.greedy):
            return None
        return trace.rule

    def recorded(self, sampling: str, law: str) -> Trace:
        trace = self.trace(sampling, law)
        if trace is None:
            known = ", ".join(other for name, other in self.traces if name == sampling)
            raise ConfigError(
                f"{sampling}: law '{law}' was not recorded, only {known}: leave the law out"
            )
        return trace

    def estimate(self, sampling: str, law: str, ranks: int | None = None) -> AcceptanceEstimate:
        """Acceptance rates by depth and rank, with deep levels shrunk towards the rates over all levels.

        Limits of a small sample are in the estimate's `warnings`, and in the intervals derived from it.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSample)
            return estimate_acceptance(
                self.recorded(sampling, law),
                by="depth",
                depth=self.search.depth,
                ranks=ranks or self.search.width,
                shrinkage=self.search.shrinkage,
            )

    def default_law(self, sampling: str) -> str:
        """The default law of trees in a setting: without replacement, or deterministic at temperature 0."""
        sampled = str(Law.WITHOUT_REPLACEMENT)
        return sampled if (sampling, sampled) in self.traces else str(Law.DETERMINISTIC)


def load_measured(config: Config, folder: Path) -> Measured:
    assert config.search is not None
    stamp, times = folder / STAMP, folder / "latency.json"
    traces = {}
    for i, setting in enumerate(config.samplings):
        default = Law.DETERMINISTIC if setting.temperature == 0 else Law.WITHOUT_REPLACEMENT
        for law in Law:
            path = trace_path(folder, i, law)
            if path.exists():
                traces[setting.name, str(law)] = Trace.load(path)
            elif law is default:
                raise RunFolderError(f"{path} is missing: {WAY_OUT}")
    for path in (stamp, times):
        if not path.exists():
            raise RunFolderError(f"{path} is missing: {WAY_OUT}")
    return Measured(config.search, traces, LatencyModel.load(times), stamped(stamp)["prefix"])


def advice_kept(folder: Path, place: int) -> dict[str, str]:
    path = folder / f"best-{place}.json"
    if not path.exists():
        return {}
    data = read_form(path, RunFolderError, WAY_OUT, dict[str, _Advice])
    return {method: given["verdict"] for method, given in data.items()}


def stamped(stamp: Path) -> dict[str, Any]:
    return read_form(stamp, RunFolderError, WAY_OUT, _Stamp)


def trace_path(folder: Path, sampling: int, law: Law) -> Path:
    return folder / f"trace-{sampling}-{law}.npz"
