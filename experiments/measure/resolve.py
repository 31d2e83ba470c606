"""Turn measurements into trees: methods whose shape is `measured` become methods with a tree."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError
from treespec.experiments.config.build import label_of, wants_measured
from treespec.experiments.config.schema import Config, Method, PlainMethod, TreeMethod
from treespec.experiments.config.shapes import (
    BestShape,
    OptimalShape,
    ParentsShape,
)
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.measured import Measured
from treespec.files import write_whole
from treespec.search import (
    LatencyModel,
    Ranking,
    best_tree,
    calibration_data,
    fit_calibration,
    optimal_tree,
)
from treespec.search.choice.pairs import chains_as_run
from treespec.search.choice.ranking import ROWS_SHOWN
from treespec.search.growth.keys import MEASURED
from treespec.tree import Law, TreeShape

STATIC = (
    "trees that grow were left out, since `best` stands for one shape; `treespec search` ranks them too, "
    "on the files in `search/`"
)
"""Note on the choice of a config's search where the trace could rank growths too."""

Keep = Callable[[Path, str], object]


def resolve(config: Config, measured: Measured, folder: Path, keep: Keep | None = None) -> Config:
    """Return the config in which every method has its tree.

    A method whose tree depends on acceptance becomes one method per sampling setting, named after the
    setting. All of them run under all settings, so that the run shows what a tree tuned for another setting
    loses. Rankings of the search for the fastest shape are written next to the traces, into
    `best-<index of the setting>.json`.
    """
    resolver = _Resolver(config, measured, folder, keep or write_whole)
    methods: list[Method] = []
    for i, method in enumerate(config.methods):
        try:
            methods += resolver.resolved(method) if wants_measured(method) else [method]
        except TreespecError as error:
            raise ConfigError(f"methods[{i}].shape: {error}") from None
    resolver.keep()
    return config.model_copy(update={"methods": tuple(methods)})


@dataclass(frozen=True)
class _Resolver:
    config: Config
    measured: Measured
    folder: Path
    write: Keep
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Summaries of rankings, by sampling setting and method."""

    def resolved(self, method: TreeMethod) -> Iterator[Method]:
        """The method with its tree; one method per setting if the tree depends on acceptance."""
        shape, name = method.shape, method.name or label_of(method)
        for setting in self.config.samplings:
            label = f"{name} for {setting.name}"
            if isinstance(shape, OptimalShape):
                yield _fixed(method, label, self._optimal(shape, setting.name, method.law))
            elif isinstance(shape, BestShape):
                ranking = self._best(shape, setting.name, method.law)
                cautions = self._cautions(method, setting.name, ranking.best.shape)
                ranking = replace(ranking, notes=(*ranking.notes, *cautions))
                fixed = _fixed(method, label, ranking.best.shape)
                self.summaries.setdefault(setting.name, {})[str(fixed.name)] = _summary(ranking)
                yield fixed
            else:
                growth = self._growth(shape, setting.name)
                calibrated = getattr(shape, "calibration", None) == MEASURED
                label = f"{name}, calibrated for {setting.name}" if calibrated else name
                yield method.model_copy(update={"shape": growth, "name": label})
                if not calibrated:  # the same under every setting
                    return

    def keep(self) -> None:
        """Write the summaries of rankings: one file for each setting that has rankings."""
        for place, setting in enumerate(self.config.samplings):
            path = self.folder / f"best-{place}.json"
            # An existing file belongs to the trees that the run was started with.
            if setting.name in self.summaries and not path.exists():
                self.write(path, json.dumps(self.summaries[setting.name], indent=1) + "\n")

    def _optimal(self, shape: OptimalShape, sampling: str, law: str | None) -> TreeShape:
        rates: Any = self.measured.estimate(sampling, law or self.measured.default_law(sampling))
        return optimal_tree(rates, shape.size, depth=shape.depth, branching=shape.branching)

    def _best(self, shape: BestShape, sampling: str, law: str | None) -> Ranking:
        """Rank trees and chains by replay of what was recorded."""
        times_measured = shape.latency == MEASURED
        latency = self.measured.latency if times_measured else LatencyModel.load(shape.latency)
        batch = self.config.batch
        prefix = self.measured.prefix if times_measured and shape.prefix is None else shape.prefix
        if shape.acceptance != MEASURED:
            return shape.model_copy(update={"prefix": prefix}).search(latency, batch)
        usual, levels = law or self.measured.default_law(sampling), self.measured.search.depth
        recorded = self.measured.recorded(sampling, usual)
        static = replace(recorded, draft_rows=None)  # a growing tree is not a shape
        ranking = best_tree(
            {usual: static},
            latency,
            chains=chains_as_run(static, latency, batch) if law is None else None,
            max_size=shape.max_size,
            depth=levels if shape.depth is None else min(shape.depth, levels),
            branching=shape.branching,
            prefix=prefix,
            batch=batch,
            laws=[usual] if usual in latency.laws else None,  # times of another setting serve too
        )
        if recorded.draft_rows is None:
            return ranking
        return replace(ranking, notes=(*ranking.notes, STATIC))

    def _cautions(self, method: TreeMethod, sampling: str, tree: TreeShape) -> list[str]:
        """Cautions for a method whose rule accepts differently from the recorded rule."""
        law = str(method.law or self.measured.default_law(sampling))
        rule = method.rule
        recorded_rule = rule and self.measured.of_other_rule(rule, sampling, law, tree)
        if not recorded_rule:
            return []
        return [
            f"caution: chosen by what rule {recorded_rule} accepts, but rule {rule} of this method "
            "accepts differently: leave the rule out, or compare named trees in a run"
        ]

    def _growth(self, shape: Any, sampling: str) -> Any:
        update: dict[str, Any] = {}
        if getattr(shape, "latency", None) == MEASURED:
            update["latency"] = str(self.folder / "latency.json")
            if shape.prefix is None:
                update["prefix"] = self.measured.prefix
            if getattr(shape, "prior", 0.0) is None:
                update["prior"] = self._first_accepted()
        if shape.calibration == MEASURED:
            place = [setting.name for setting in self.config.samplings].index(sampling)
            update["calibration"] = str(self._calibrated(sampling, f"calibration-{place}.json"))
        return shape.model_copy(update=update)

    def _first_accepted(self) -> float:
        """Acceptance rate of the most probable token, in the setting where this rate is highest.

        A growth is the same under all settings; where it does not pay even there, it need not draft.
        """
        law = str(Law.DETERMINISTIC)
        names = [s.name for s in self.config.samplings if self.measured.trace(s.name, law)]
        rates = [self.measured.estimate(name, law, ranks=1).rates[0, 0] for name in names]
        return float(max(rates, default=1.0))

    def _calibrated(self, sampling: str, file: str) -> Path:
        """The file that maps the draft's probabilities to acceptance of deterministic children."""
        trace, path = self.measured.trace(sampling, str(Law.DETERMINISTIC)), self.folder / file
        assert trace is not None
        if not path.exists():
            data = calibration_data(trace)
            self.write(path, fit_calibration(data.predicted, data.exact).to_json())
        return path


def _fixed(method: TreeMethod, name: str, tree: TreeShape) -> Method:
    """The method with this tree, or plain decoding if the tree is the root alone."""
    if tree.size == 1:
        return PlainMethod(kind="plain", name=f"{name}: plain decoding")
    shape = ParentsShape(kind="parents", parents=tree.parents)
    return method.model_copy(update={"shape": shape, "name": name})


def _summary(ranking: Ranking) -> dict[str, Any]:
    """A ranking as data, reduced to its first rows, the best tree, the best chain and plain decoding."""
    data = json.loads(ranking.to_json())
    ends = [row for row in (ranking.tree, ranking.chain, ranking.plain) if row is not None]
    shown = {*range(ROWS_SHOWN), *(ranking.rows.index(row) for row in ends)}
    return data | {"rows": [row for i, row in enumerate(data["rows"]) if i in shown]}
