"""From what was measured to trees: methods that ask for what is `measured` become methods with a tree."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import Config, Method, PlainMethod, TreeMethod
from experiments.config_shapes import (
    MEASURED,
    BestShape,
    CostAwareGrowth,
    OptimalShape,
    ParentsShape,
)
from experiments.errors import ConfigError
from experiments.measured import Measured
from experiments.search_files import read_acceptance
from experiments.stand_ins import wants_measured
from experiments.trees import label_of, search_best
from search import LatencyModel, calibration_data, fit_calibration, optimal_tree
from treespec.errors import TreespecError
from treespec.tree import Law, TreeShape

__all__ = ["resolve"]


def resolve(config: Config, measured: Measured, folder: Path) -> Config:
    """The config in which every method has its tree.

    A method whose tree depends on acceptance becomes one for each sampling setting, named after it; all of
    them run under all settings, so that the run shows what a tree tuned for another one loses.

    Args:
        config: as the user wrote it.
        measured: traces and times.
        folder: where they are kept.

    Raises:
        ConfigError: naming the method, if no tree fits its limits or what was measured does not cover it.
    """
    resolver = _Resolver(config, measured, folder)
    methods: list[Method] = []
    for i, method in enumerate(config.methods):
        if not wants_measured(method):
            methods.append(method)
            continue
        assert isinstance(method, TreeMethod)
        try:
            methods += resolver.resolved(method)
        except TreespecError as error:
            raise ConfigError(f"methods[{i}].shape: {error}") from None
    return config.model_copy(update={"methods": tuple(methods)})


@dataclass(frozen=True)
class _Resolver:
    config: Config
    measured: Measured
    folder: Path

    def resolved(self, method: TreeMethod) -> Iterator[Method]:
        """The method with its tree; one for each setting, if the tree depends on acceptance."""
        shape, name = method.shape, method.name or label_of(method)
        for setting in self.config.samplings:
            label = f"{name} for {setting.name}"
            if isinstance(shape, OptimalShape):
                found = self._optimal(shape, setting.name, method.law)
            elif isinstance(shape, BestShape):
                found = self._best(shape, setting.name, method.law)
            else:
                own = self._growth(shape, setting.name)
                if (
                    getattr(shape, "calibration", None) != MEASURED
                ):  # times alone: the same under every setting
                    yield method.model_copy(update={"shape": own, "name": name})
                    return
                label = f"{name}, calibrated for {setting.name}"
                yield method.model_copy(update={"shape": own, "name": label})
                continue
            if found.size == 1:
                yield PlainMethod(kind="plain", name=f"{label}: plain decoding")
            else:
                own = ParentsShape(kind="parents", parents=found.parents)
                yield method.model_copy(update={"shape": own, "name": label})

    def _optimal(self, shape: OptimalShape, sampling: str, law: str | None) -> TreeShape:
        rates: Any = self.measured.estimate(sampling, law or self.measured.default_law(sampling))
        return optimal_tree(rates, shape.size, depth=shape.depth, branching=shape.branching)

    def _best(self, shape: BestShape, sampling: str, law: str | None) -> TreeShape:
        """The fastest; above temperature 0 chains are drawn independently, as `treespec run` does it."""
        own_times = shape.latency == MEASURED
        latency = self.measured.latency if own_times else LatencyModel.load(shape.latency)
        if own_times and shape.prefix is None:
            shape = shape.model_copy(update={"prefix": self.measured.prefix})
        if shape.acceptance != MEASURED:
            return search_best(shape, read_acceptance(Path(shape.acceptance)), latency).best.shape
        usual, levels = law or self.measured.default_law(sampling), self.measured.search.depth
        if shape.depth is not None:  # rates go as deep as was recorded
            shape = shape.model_copy(update={"depth": min(shape.depth, levels)})
        rates = {usual: self.measured.estimate(sampling, usual)}
        best = search_best(shape, rates, latency, laws=self._timed(latency, usual)).best
        if usual != str(Law.WITHOUT_REPLACEMENT) or law is not None:
            return best.shape
        first = {str(Law.IID): self.measured.estimate(sampling, usual, ranks=1)}
        longest = (shape.depth or levels) + 1
        limits = {"max_size": min(longest, shape.max_size or longest), "branching": 1}
        laws = self._timed(latency, str(Law.IID))
        chain = search_best(shape.model_copy(update=limits), first, latency, laws=laws).best
        return max((best, chain), key=lambda choice: choice.tokens_per_s.estimate).shape

    @staticmethod
    def _timed(latency: LatencyModel, law: str) -> list[str] | None:
        """The law whose times hold, also those of another setting; None if times hold for all laws."""
        return [law] if law in latency.laws else None

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
            path.write_text(fit_calibration(data.predicted, data.exact).to_json(), encoding="utf-8")
        return path
