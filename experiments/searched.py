"""From what was measured to trees: methods that ask for what is `measured` become methods with a tree."""

from collections.abc import Iterator
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
from experiments.trees import LABELS, search_best
from search import calibration_data, fit_calibration, optimal_tree
from treespec.errors import TreespecError
from treespec.tree import Law, TreeShape

__all__ = ["resolve", "wants_measured", "without_measured"]


def wants_measured(method: Method) -> bool:
    """Whether a method can be built only once something is measured."""
    shape = getattr(method, "shape", None)
    asked = [getattr(shape, key, None) for key in ("rates", "acceptance", "latency", "calibration")]
    return MEASURED in asked


def without_measured(config: Config) -> Config:
    """The config with those methods alone that can be built at once.

    Raises:
        ConfigError: if others ask for measurements that the config does not have.
    """
    waiting = [i for i, method in enumerate(config.methods) if wants_measured(method)]
    if waiting and config.search is None:
        raise ConfigError(
            f"methods[{waiting[0]}].shape asks for what is {MEASURED!r}, but the config has no `search`: "
            "add `search: {}`, or name files"
        )
    methods = tuple(method for method in config.methods if not wants_measured(method))
    return config.model_copy(update={"methods": methods})


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
    methods: list[Method] = []
    for i, method in enumerate(config.methods):
        if not wants_measured(method):
            methods.append(method)
            continue
        assert isinstance(method, TreeMethod)
        try:
            methods += _resolved(method, config, measured, folder)
        except TreespecError as error:
            raise ConfigError(f"methods[{i}].shape: {error}") from None
    return config.model_copy(update={"methods": tuple(methods)})


def _resolved(
    method: TreeMethod, config: Config, measured: Measured, folder: Path
) -> Iterator[Method]:
    shape = method.shape
    name = method.name or LABELS[type(shape)](shape)
    if isinstance(shape, CostAwareGrowth) and shape.latency == MEASURED:
        shape = shape.model_copy(update={"latency": str(folder / "latency.json")})
    if not isinstance(shape, OptimalShape | BestShape):
        if getattr(shape, "calibration", None) != MEASURED:
            yield method.model_copy(update={"shape": shape})
            return
        for i, setting in enumerate(config.samplings):
            path = _calibrated(measured, setting.name, folder / f"calibration-{i}.json")
            own = shape.model_copy(update={"calibration": str(path)})
            label = f"{name}, calibrated for {setting.name}"
            yield method.model_copy(update={"shape": own, "name": label})
        return
    for setting in config.samplings:
        label = f"{name} for {setting.name}"
        if isinstance(shape, OptimalShape):
            law = method.law or measured.default_law(setting.name)
            rates: Any = measured.estimate(setting.name, law)
            found = optimal_tree(rates, shape.size, depth=shape.depth, branching=shape.branching)
        else:
            found = _best(shape, measured, setting.name, method.law)
        if found.size == 1:
            yield PlainMethod(kind="plain", name=f"{label}: plain decoding")
        else:
            own = ParentsShape(kind="parents", parents=found.parents)
            yield method.model_copy(update={"shape": own, "name": label})


def _best(shape: BestShape, measured: Measured, sampling: str, law: str | None) -> TreeShape:
    """The fastest; above temperature 0 chains are drawn independently, as `treespec run` does it."""
    usual = law or measured.default_law(sampling)
    best = search_best(shape, {usual: measured.estimate(sampling, usual)}, measured.latency).best
    if usual != str(Law.WITHOUT_REPLACEMENT) or law is not None:
        return best.shape
    first = measured.estimate(sampling, usual, ranks=1)
    longest = min(shape.depth or measured.search.depth, measured.search.depth) + 1
    chains = shape.model_copy(update={"max_size": min(longest, shape.max_size or longest)})
    chain = search_best(chains, {str(Law.IID): first}, measured.latency).best
    return max((best, chain), key=lambda choice: choice.tokens_per_s.estimate).shape


def _calibrated(measured: Measured, sampling: str, path: Path) -> Path:
    """A file with the map from the draft's probabilities to acceptance of deterministic children."""
    trace = measured.trace(sampling, str(Law.DETERMINISTIC))
    assert trace is not None
    data = calibration_data(trace)
    if not path.exists():
        path.write_text(fit_calibration(data.predicted, data.exact).to_json(), encoding="utf-8")
    return path
