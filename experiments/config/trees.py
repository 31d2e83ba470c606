"""Build trees from configs: a shape, a growth or a budget, and a label for each.

A tree that waits for a measurement gets a stand-in until the measurement is made.
"""

from pathlib import Path
from typing import Any, TypeGuard

from treespec import plugins
from treespec.errors import InvalidPlugin, TreespecError, in_words
from treespec.experiments.config.model_draft import Combined, by_pair, source_of
from treespec.experiments.config.schema import Method, TreeMethod
from treespec.experiments.config.search_files import read_calibration
from treespec.experiments.config.shapes import (
    BestShape,
    BudgetShape,
    ExpansionShape,
    FixedShape,
    OptimalShape,
)
from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget, Settings
from treespec.protocols import Growth
from treespec.search import InvalidGrowth, LatencyModel
from treespec.search.growth.keys import MEASURED, GrowthSettings
from treespec.tree import TreeShape


def label_of(method: TreeMethod) -> str:
    """The name of a method that the config does not name.

    It says the tree, the draft source unless that is `models.draft`, and law and rule if they are given.
    """
    law_and_rule = ", ".join(name for name in (method.law, method.rule) if name)
    source = "" if by_pair(method.draft) else f"{label_of_draft(method.draft)} "
    return source + label_of_shape(method.shape) + (f" ({law_and_rule})" if law_and_rule else "")


def label_of_shape(shape: Any) -> str:
    """The tree's part of a method's name; the settings, for a growth of a plug-in."""
    if isinstance(shape, FixedShape | BudgetShape | GrowthSettings):
        return shape.label
    return " ".join([shape.kind, *(f"{key}={value}" for key, value in shape if key != "kind")])


def label_of_draft(draft: Settings) -> str:
    """The name of a draft source, with the settings that differ from the defaults."""
    if isinstance(draft, Combined):
        return draft.label
    given = draft.model_dump(exclude={"source"}, exclude_defaults=True)
    return " ".join([source_of(draft).name, *(f"{key}={value}" for key, value in given.items())])


def tree_of(shape: Any) -> TreeShape | Growth | Budget:
    """Build the shape, growth or budget that a config's `shape` describes."""
    return shape.tree() if isinstance(shape, FixedShape | BudgetShape) else _growth(shape)


def wants_measured(method: Method) -> TypeGuard[TreeMethod]:
    """Whether a method can be built only after the config's `search` has measured something."""
    shape = getattr(method, "shape", None)
    keys = ("rates", "acceptance", "latency", "calibration")
    return any(getattr(shape, key, None) == MEASURED for key in keys)


def stand_in(path: str, method: TreeMethod) -> TreeMethod:
    """The method to build in place of one that waits for a measurement, under a name of its own.

    `path` is that of the method in its config, for messages.
    """
    shape, name = method.shape, method.name or label_of(method)
    replacement: Any
    if isinstance(shape, OptimalShape | BestShape):
        # about as many nodes as searched trees have on a CPU, since `dtype: fastest` counts them
        replacement = ExpansionShape(kind="expansion", branching=(2, 1, 1, 1))
    elif isinstance(shape, GrowthSettings):
        try:
            replacement = shape.unmeasured()
        except InvalidGrowth as error:
            raise ConfigError(f"{path}.shape.{error}") from None
    else:  # of a plug-in, which has these keys too
        waiting = {"calibration", "latency", "prefix"} & set(type(shape).model_fields)
        replacement = shape.model_copy(update=dict.fromkeys(waiting))
    # The config may hold the same growth without a calibration too
    if getattr(shape, "calibration", None) == MEASURED:
        name += ", calibrated"
    return method.model_copy(update={"shape": replacement, "name": name})


def _growth(config: Any) -> Growth:
    arguments = {key: value for key, value in config if key != "kind"}
    if arguments.get("calibration") is not None:
        arguments["calibration"] = read_calibration(Path(arguments["calibration"]))
    if arguments.get("latency") is not None:
        arguments["latency"] = LatencyModel.load(arguments["latency"])
    part = plugins.parts("growth")[config.kind]
    if not part.plugged:  # null stands for the default
        arguments = {key: value for key, value in arguments.items() if value is not None}
    try:
        return part.make(**arguments)
    except Exception as error:
        if isinstance(error, TreespecError) or not part.plugged:
            raise
        raise InvalidPlugin(
            f"growth {part.name!r} of {part.origin}: {in_words(error, 'its constructor')}"
        ) from error
