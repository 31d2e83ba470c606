"""Methods that wait for a measurement, and what stands in for them until it is made."""

from typing import Any

from treespec.experiments.config.schema import Config, Method, TreeMethod
from treespec.experiments.config.shapes import (
    MEASURED,
    BestShape,
    CostAwareGrowth,
    DySpecGrowth,
    ExpansionShape,
    OptimalShape,
    SpecExecGrowth,
)
from treespec.experiments.config.trees import label_of
from treespec.experiments.errors import ConfigError

__all__ = ["stand_ins", "wants_measured", "without_measured"]


def wants_measured(method: Method) -> bool:
    """Whether a method can be built only once something is measured."""
    shape = getattr(method, "shape", None)
    asked = [getattr(shape, key, None) for key in ("rates", "acceptance", "latency", "calibration")]
    return MEASURED in asked


def without_measured(config: Config) -> Config:
    """The config with those methods alone that can be built without a measurement."""
    methods = tuple(method for method in config.methods if not wants_measured(method))
    return config.model_copy(update={"methods": methods})


def stand_ins(config: Config) -> Config:
    """The config with a tree of the same laws and rules for every method that waits for a measurement.

    What can be told before is told before: names, laws to record and to time, levels, and mistakes.

    Raises:
        ConfigError: if methods ask for measurements that the config does not have, or that mean nothing.
    """
    methods: list[Method] = []
    for i, method in enumerate(config.methods):
        if not wants_measured(method):
            methods.append(method)
            continue
        assert isinstance(method, TreeMethod)
        if config.search is None:
            raise ConfigError(
                f"methods[{i}].shape asks for what is {MEASURED!r}, but the config has no `search`: "
                "add `search: {}`, or name files"
            )
        name = method.name or label_of(method)
        if getattr(method.shape, "calibration", None) == MEASURED:
            name += ", calibrated"  # beside the same growth as it is
        methods.append(
            method.model_copy(update={"shape": _stand_in(i, method.shape), "name": name})
        )
    return config.model_copy(update={"methods": tuple(methods)})


def _stand_in(index: int, shape: Any) -> Any:
    if isinstance(shape, OptimalShape | BestShape):
        return ExpansionShape(kind="expansion", branching=(2,))
    if isinstance(shape, CostAwareGrowth):
        limits = shape.model_dump(include={"size", "branching", "depth"})
        return SpecExecGrowth(kind="specexec", **limits)
    if isinstance(shape, DySpecGrowth):
        raise ConfigError(
            f"methods[{index}].shape.calibration: {MEASURED!r} is of children that are chosen, but DySpec "
            "draws its children, and these are accepted by more than their own probability: leave it out, "
            "or name a file"
        )
    return shape.model_copy(
        update={
            key: None
            for key in ("calibration", "latency", "prefix")
            if getattr(shape, key, None) is not None
        }
    )
