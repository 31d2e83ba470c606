"""From what was measured to trees: methods that ask for what is `measured` become methods with a tree."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError
from treespec.experiments.config.schema import Config, Method, PlainMethod, TreeMethod
from treespec.experiments.config.shapes import (
    MEASURED,
    BestShape,
    CostAwareGrowth,
    OptimalShape,
    ParentsShape,
)
from treespec.experiments.config.trees import label_of, search_best, wants_measured
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.measured import Measured
from treespec.search import (
    LatencyModel,
    Ranking,
    best_tree,
    calibration_data,
    fit_calibration,
    optimal_tree,
)
from treespec.search.choice.law_speed import chains_as_run
from treespec.search.choice.ranking import ROWS_SHOWN
from treespec.tree import Law, TreeShape
from treespec.whole_file import write_whole

__all__ = ["resolve"]

STATIC = (
    "trees that grow were left out, since `best` stands for one shape: `treespec search` ranks them, too, "
    "on the files in `search/`"
)
"""Said of what a config's search chose where the trace would have told of growths."""

Keep = Callable[[Path, str], object]


def resolve(config: Config, measured: Measured, folder: Path, keep: Keep | None = None) -> Config:
    """The config in which every method has its tree.

    A method whose tree depends on acceptance becomes one for each sampling setting, named after it; all of
    them run under all settings, so that the run shows what a tree tuned for another one loses. What the
    search for the fastest one said is kept beside the traces, in `best-<place of the sampling>.json`.

    Args:
        config: as the user wrote it.
        measured: traces and times.
        folder: where they are kept.
        keep: writes a file there; `treespec.whole_file.write_whole` by default.

    Raises:
        ConfigError: naming the method, if no tree fits its limits or what was measured does not cover it.
    """
    resolver = _Resolver(config, measured, folder, keep or write_whole)
    methods: list[Method] = []
    for i, method in enumerate(config.methods):
        if not wants_measured(method):
            methods.append(method)
            continue
        try:
            methods += resolver.resolved(method)
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
    """What rankings said, by sampling setting and method."""

    def resolved(self, method: TreeMethod) -> Iterator[Method]:
        """The method with its tree; one for each setting, if the tree depends on acceptance."""
        shape, name = method.shape, method.name or label_of(method)
        for setting in self.config.samplings:
            label = f"{name} for {setting.name}"
            if isinstance(shape, OptimalShape):
                tree = self._optimal(shape, setting.name, method.law)
                yield _fixed(method, label, tree)
            elif isinstance(shape, BestShape):
                ranking = self._best(shape, setting.name, method.law)
                said = self._cautions(method, setting.name, ranking.best.shape)
                ranking = replace(ranking, notes=(*ranking.notes, *said))
                fixed = _fixed(method, label, ranking.best.shape)
                of_setting = self.summaries.setdefault(setting.name, {})
                of_setting[str(fixed.name)] = _summary(ranking)
                yield fixed
            else:
                growth = self._growth(shape, setting.name)
                times_alone = getattr(shape, "calibration", None) != MEASURED
                label = name if times_alone else f"{name}, calibrated for {setting.name}"
                yield method.model_copy(update={"shape": growth, "name": label})
                if times_alone:  # the same under every setting
                    return

    def keep(self) -> None:
        """Write down what rankings said: a file for each setting that has some."""
        for place, setting in enumerate(self.config.samplings):
            if setting.name not in self.summaries:
                continue
            path = self.folder / f"best-{place}.json"
            text = json.dumps(self.summaries[setting.name], indent=1) + "\n"
            if not path.exists():  # of the trees that the run was started with
                self.write(path, text)

    def _optimal(self, shape: OptimalShape, sampling: str, law: str | None) -> TreeShape:
        rates: Any = self.measured.estimate(sampling, law or self.measured.default_law(sampling))
        return optimal_tree(rates, shape.size, depth=shape.depth, branching=shape.branching)

    def _best(self, shape: BestShape, sampling: str, law: str | None) -> Ranking:
        """Trees and chains by replay of what was recorded."""
        times_measured = shape.latency == MEASURED
        latency = self.measured.latency if times_measured else LatencyModel.load(shape.latency)
        prefix = self.measured.prefix if times_measured and shape.prefix is None else shape.prefix
        if shape.acceptance != MEASURED:
            timed = shape.model_copy(update={"prefix": prefix})
            return search_best(timed, latency)
        usual, levels = law or self.measured.default_law(sampling), self.measured.search.depth
        recorded = self.measured.recorded(sampling, usual)
        static = replace(recorded, draft_rows=None)  # a tree that grows is no shape
        ranking = best_tree(
            {usual: static},
            latency,
            chains=chains_as_run(static, latency, 1) if law is None else None,
            max_size=shape.max_size,
            depth=levels if shape.depth is None else min(shape.depth, levels),
            branching=shape.branching,
            prefix=prefix,
            laws=[usual] if usual in latency.laws else None,  # also times of another setting
        )
        if recorded.draft_rows is None:
            return ranking
        return replace(ranking, notes=(*ranking.notes, STATIC))

    def _cautions(self, method: TreeMethod, sampling: str, tree: TreeShape) -> list[str]:
        """What to know where the run decides by a rule that accepts otherwise than what was recorded."""
        law = str(method.law or self.measured.default_law(sampling))
        rule = method.rule
        other = rule and self.measured.of_other_rule(rule, sampling, law, tree)
        if not other:
            return []
        return [
            f"caution: chosen by what rule {other} accepts, but rule {rule} of this method "
            "accepts otherwise: leave the rule out, or compare named trees in a run"
        ]

    def _growth(self, shape: Any, sampling: str) -> Any:
        """The growth with files for what it wants measured."""
        update: dict[str, Any] = {}
        if getattr(shape, "latency", None) == MEASURED:
            update["latency"] = str(self.folder / "latency.json")
            if shape.prefix is None:
                update["prefix"] = self.measured.prefix
            if isinstance(shape, CostAwareGrowth) and shape.prior is None:
                update["prior"] = self._first_accepted()
        if shape.calibration == MEASURED:
            place = [setting.name for setting in self.config.samplings].index(sampling)
            update["calibration"] = str(self._calibrated(sampling, f"calibration-{place}.json"))
        return shape.model_copy(update=update)

    def _first_accepted(self) -> float:
        """How often the most probable token is accepted, in the setting where that is most often.

        A growth is the same under all settings; where it does not pay even there, it need not draft.
        """
        law = str(Law.DETERMINISTIC)
        names = [s.name for s in self.config.samplings if self.measured.trace(s.name, law)]
        rates = [self.measured.estimate(name, law, ranks=1).rates[0, 0] for name in names]
        return float(max(rates, default=1.0))

    def _calibrated(self, sampling: str, file: str) -> Path:
        """A file with the map from the draft's probabilities to acceptance of deterministic children."""
        trace, path = self.measured.trace(sampling, str(Law.DETERMINISTIC)), self.folder / file
        assert trace is not None
        if not path.exists():
            data = calibration_data(trace)
            self.write(path, fit_calibration(data.predicted, data.exact).to_json())
        return path


def _fixed(method: TreeMethod, name: str, tree: TreeShape) -> Method:
    """The method with this tree; plain decoding, if it is the root alone."""
    if tree.size == 1:
        return PlainMethod(kind="plain", name=f"{name}: plain decoding")
    shape = ParentsShape(kind="parents", parents=tree.parents)
    return method.model_copy(update={"shape": shape, "name": name})


def _summary(ranking: Ranking) -> dict[str, Any]:
    """What a ranking said, with its first rows, the best tree, the best chain and plain decoding."""
    data = json.loads(ranking.to_json())
    ends = [row for row in (ranking.tree, ranking.chain, ranking.plain) if row is not None]
    shown = {*range(ROWS_SHOWN), *(ranking.rows.index(row) for row in ends)}
    return data | {"rows": [row for i, row in enumerate(data["rows"]) if i in shown]}
