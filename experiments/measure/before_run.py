"""What the `search` of a config measures before the run: acceptance of children, and times.

For methods whose trees grow by the draft's predictions, the traces also hold these predictions, so that the
report can compare expected with measured results.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treespec.errors import ContextOverflow
from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.beam_recording import BEAM, rows_of_position
from treespec.experiments.measure.profile.plan import default_sizes
from treespec.experiments.measure.profile.profile import profile
from treespec.experiments.measure.traces import trace
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
from treespec.protocols import MarginalGrowth
from treespec.search import InvalidTrace, LatencyModel, Trace
from treespec.search.growth.keys import GrowthSettings
from treespec.search.traces.rule_notes import by_member
from treespec.tree import Law
from treespec.verify import usual_law, usual_rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

LARGEST_TIMED = 64
"""Largest tree, in nodes, for which the target is timed by default."""


def measure(
    known: Experiment,
    pair: "Pair",
    lengths: Sequence[int],
    records: RunFolder,
    reporter: Reporter,
) -> Measured:
    """Record traces and times, or take those that an interrupted start of the run left in the folder."""
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
            growing = _growing(known, sampling, law)
            more = ", and what growths decide by" * bool(growing)
            reporter.note(f"recording acceptance on other texts{more}: {sampling}, law {law}")
            record = partial(
                trace,
                measuring,
                sampling=sampling,
                law=str(law),
                rule=str(usual_rule(law, known.samplings[sampling])),
                width=config.search.width,
                beyond=deepest,
                console=reporter.console,
                load=load,
            )
            recorded = _with_room(record, growing, pair.draft.vocab_size, reporter.note)
            records.keep(path, recorded.to_bytes())
        traces[sampling, str(law)] = Trace.load(path)
    path = records.search / "latency.json"
    if not path.exists():
        reporter.note("timing the parts of a step")
        named = [getattr(shape, "prefix", None) for shape in _measured_shapes(config, "latency")]
        timed = profile(
            measuring,
            sizes=config.search.sizes
            or [size for size in default_sizes("cpu", config.batch) if size <= LARGEST_TIMED],
            prefixes=sorted({prefix, *(length for length in named if length is not None)}),
            batches=[config.batch],
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
    """The shapes of methods in which this key is set to `measured`."""
    shapes = [getattr(method, "shape", None) for method in config.methods]
    return [shape for shape in shapes if getattr(shape, key, None) == MEASURED]


def _recordings(known: Experiment, folder: Path) -> list[tuple[str, Law, Path]]:
    """What is recorded: the usual law of each setting, and every other law that a method uses."""
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


class _Grows(NamedTuple):
    """What replaying a growth needs: rows for a beam of this width, on this many levels."""

    name: str
    beam: int
    depth: int

    @property
    def entries(self) -> int:
        """Number of probabilities that are recorded at each position."""
        return rows_of_position(self.beam, self.depth) * self.beam


def _growing(known: Experiment, sampling: str, law: Law) -> list[_Grows]:
    """The growths that a trace with draft rows can replay, sorted by what they need, the largest need last.

    Growths of plug-ins are left out, since reports work without plug-ins.
    """
    growing = []
    for method, built in zip(known.config.methods, known.methods, strict=True):
        shape = getattr(method, "shape", None)  # methods that wait for measurements have stand-ins
        if not (built.by_pair and isinstance(shape, GrowthSettings)):
            continue
        choice = built.choices[sampling]
        replayable = choice.law is law is Law.DETERMINISTIC and by_member(str(choice.rule))
        if replayable and not isinstance(built.tree, MarginalGrowth):
            growing.append(_Grows(built.name, max(BEAM, shape.children), built.max_depth))
    return sorted(growing, key=lambda growth: growth.entries)


def _with_room(
    record: Callable[..., Trace],
    growing: list[_Grows],
    most: int,
    note: Callable[[str], None],
) -> Trace:
    """Record a trace that serves as many of these growths as the trace file has room for."""
    while growing:
        try:
            return record(
                beam=min(most, max(growth.beam for growth in growing)),
                beam_depth=max(growth.depth for growth in growing),
            )
        except (InvalidTrace, ContextOverflow, ConfigError) as error:  # a beam too wide
            note(f"{growing.pop().name} will have no prediction: {error}")
    return record()


def _measuring_config(known: Experiment) -> Config:
    """The config for recording and timing: with prompts of its own, and stand-ins for searched shapes."""
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
