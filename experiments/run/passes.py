"""Load the models of a run with the settings that decide its speed: the dtype, and how passes are run.

`auto` takes the fastest passes that this machine has for each model, whatever the length of the run:
compiled on a CPU unless they turn out slower than eager ones, captured on CUDA. A part of the target that
drafts counts as a model of its own, as it does for `draft_passes`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.errors import Unavailable, UnsupportedModel
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.errors import RunFolderError
from treespec.experiments.run import compiled_speed
from treespec.experiments.run.datastores import build_missing, missing_datastores
from treespec.experiments.run.fastest_settings import Choice, choose
from treespec.experiments.run.models import (
    as_eager,
    dequantised,
    load_models,
    load_own_drafts,
    outline_models,
    parts_of,
)
from treespec.experiments.run.notes import kept
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.vocabularies import choosy_in, require_trimmable, require_vocabularies
from treespec.models.pass_kinds import Passes, in_words

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline
    from treespec.models.transformers_model import TransformersModel

EAGER = "TREESPEC_EAGER"
"""If this environment variable is set, as in tests, `fastest` and `auto` measure and compile nothing."""

PART = "part"
"""The role of a part of the target that drafts."""


@dataclass(frozen=True)
class Loaded:
    """Models, and the settings that they were loaded with.

    Args:
        pair: the models.
        models: the config with the chosen dtype and passes in place of `fastest` and `auto`.
        choice: the choice of the dtype; None if the config names it.
    """

    pair: "Pair"
    models: ModelsConfig
    choice: Choice | None

    @property
    def data(self) -> dict[str, Any] | None:
        """`settings` of the manifest (SCHEMA.md)."""
        return None if self.choice is None else asdict(self.choice)


def load_with_passes(
    config: ModelsConfig,
    methods: Iterable[BuiltMethod],
    load: Callable[[ModelsConfig], "Pair"],
    reporter: Reporter,
    manifest: Mapping[str, Any] | None = None,
    chosen_for: Iterable[BuiltMethod] | None = None,
    *,
    fresh: bool = False,
    check: Callable[["PairOutline"], object] | None = None,
) -> Loaded:
    """Load all models and choose their dtype and passes, showing each choice; build missing datastores.

    Raises:
        ConfigError: if a datastore is missing and not to be built, the machine is too busy to choose, or
            the vocabulary of a draft does not suit its method.
        LoadError: see `load_own_drafts`.
        Unavailable, UnsupportedModel: if the passes that the config asks for are not possible; names the
            key, and the model if it is a named draft model or part.

    Passes that already are as the config asks stay. A resumed run (`manifest`) keeps its choices.
    `chosen_for` are the methods that `fastest` is chosen for, if not those whose models are loaded. With
    `fresh`, passes are compared anew; `fastest_settings.forget` makes the dtype be chosen anew.

    `check` refuses inputs by what is known of the models before their weights are read; it is not called if
    `load` is not `load_models`, which mostly means that the models are in memory already.
    """
    methods = list(methods)
    decisive = methods if chosen_for is None else list(chosen_for)
    choosy = [method for method in methods if choosy_in(method)]
    checked = check is not None and load is load_models
    if choosy or checked:
        outline = outline_models(config, methods)
        require_vocabularies(outline, choosy)
        if checked:
            check(outline)
    missing, choice = missing_datastores(methods), None
    if config.dtype == "fastest" and manifest is not None:
        dtype = manifest["models"]["target"]["dtype"]
        choice = Choice(**(manifest.get("settings") or {"dtype": dtype, "why": "as before"}))
        config = config.model_copy(update={"dtype": dtype})
    if os.environ.get(EAGER):
        config = as_eager(config)
    pair = None
    if config.dtype == "fastest":
        choice, pair = _chosen(config, decisive, load, reporter)
        reporter.note(f"dtype {choice.dtype}: {choice.why}")
        config = config.model_copy(update={"dtype": choice.dtype})
    if pair is None or decisive is not methods:
        with reporter.task("loading the models"):
            pair = _eager(config, methods, load)
    require_trimmable(pair, choosy)
    for sentence in dequantised(pair):
        reporter.note(sentence)
    build_missing(missing, pair, reporter)
    kinds: dict[str, str] = {}
    for role, name, model in _roles(pair, parts_of(methods, pair.target)):
        key = "passes" if role == "target" else "draft_passes"
        asked = getattr(config, key)
        then = None if manifest is None else _recorded(manifest, role, name) or {}
        try:
            if asked == "auto" and then is not None and then.get("kind", "eager") == "eager":
                model.passes = Passes("eager", "auto", then.get("why"))
            elif asked not in (None, model.passes.asked):
                _choose(role, name, model, asked, reporter, then, fresh)
        except (Unavailable, UnsupportedModel) as error:
            drafting = "" if name is None else f" (of {name}, which drafts)"
            raise type(error)(f"models.{error}{drafting}") from error
        if asked == "auto" and name is None:
            kinds[key] = model.passes.kind
    return Loaded(pair, config.model_copy(update=kinds), choice)


def choose_ahead(
    experiment: Experiment,
    load: Callable[[ModelsConfig], "Pair"],
    reporter: Reporter,
    *,
    fresh: bool = False,
) -> None:
    """Choose the settings of a run that starts later, when other runs keep the machine busy.

    What is chosen is kept beside the code that was compiled for it. Models on other devices than one CPU
    are not loaded. What a model cannot have is reported by the run itself.
    """
    models = experiment.config.models
    chosen = models.dtype == "fastest" or "auto" in (models.passes, models.draft_passes)
    on_cpu = models.device == "cpu" and models.device_map is None and not models.tensor_parallel
    if chosen and on_cpu and not os.environ.get(EAGER):
        with suppress(Unavailable, UnsupportedModel):
            load_with_passes(models, experiment.methods, load, reporter, fresh=fresh)


def _chosen(
    config: ModelsConfig,
    methods: list[BuiltMethod],
    load: Callable[[ModelsConfig], "Pair"],
    reporter: Reporter,
) -> tuple[Choice, "Pair | None"]:
    def models_of(pair: "Pair") -> dict[str, "TransformersModel"]:
        return {n or r: model for r, n, model in _roles(pair, parts_of(methods, pair.target))}

    return choose(config, methods, lambda c: _eager(c, methods, load), models_of, reporter)


def _eager(
    config: ModelsConfig, methods: list[BuiltMethod], load: Callable[[ModelsConfig], "Pair"]
) -> "Pair":
    """The models of a config and of these methods, whose passes are chosen later."""
    config = config.model_copy(update={"passes": None, "draft_passes": None})
    return load_own_drafts(config, load(config), methods)


def require_same_passes(
    folder: Path,
    pair: "Pair",
    manifest: Mapping[str, Any],
    parts: Mapping[str, "TransformersModel"] | None = None,
) -> None:
    """Refuse to resume a run with other passes than it was started with: its times would not be comparable.

    Raises:
        RunFolderError: if they differ; names the model, both kinds of passes, the reason, and the ways out.
    """
    for role, name, model in _roles(pair, parts or {}):
        now, then = model.passes, _recorded(manifest, role, name)
        if then is None:
            continue
        packed = then.get("frozen", now.frozen)
        if (now.kind, now.frozen) != (then["kind"], packed):
            why = now.unpacked or now.why
            raise RunFolderError(
                f"{folder} was started with {_in_words(then['kind'], packed)} passes of "
                f"{_called(role, name)}, which are {_in_words(now.kind, now.frozen)} now"
                + (f" ({why})" if why else "")
                + ": resume on a machine that can run them as before, choose another folder with --out, or "
                "start over with --fresh"
            )


def _choose(
    role: str,
    name: str | None,
    model: "TransformersModel",
    asked: str,
    reporter: Reporter,
    then: Mapping[str, Any] | None,
    fresh: bool,
) -> None:
    """Make a model run its passes as asked, and show this and the choice of `auto`.

    `then` is what the manifest of a resumed run says: what `auto` chose is not chosen again. What an
    earlier process measured is used, unless `fresh`.
    """
    from treespec.models.passes.choosing_passes import choose_passes

    compiles = asked == "compiled" or (asked == "auto" and model.device.type == "cpu")
    chosen = asked == "auto" and compiles and then is None
    note = compiled_speed.note_of(model) if chosen else None
    slowdown = None if note is None or fresh else kept(note)
    if slowdown is None or slowdown < 1:
        with reporter.task(
            f"{'compiling' if compiles else 'preparing'} passes of {_called(role, name)}"
        ):
            choose_passes(model, asked, draft=role != "target")
            if model.passes.kind == "eager":  # as asked, or `choose_passes` has said why
                return
            if note is not None and slowdown is None:
                slowdown = compiled_speed.measured(model, note)
    if asked == "auto" and then is not None:
        model.passes = replace(model.passes, why=then.get("why"))
        return
    if slowdown is not None:
        if slowdown >= 1:
            choose_passes(model, "eager", draft=role != "target")
        nodes = compiled_speed.TIMED_NODES
        why = f"a compiled pass over {nodes} nodes takes {slowdown:.2f} of the time of an eager one"
        model.passes = replace(model.passes, asked="auto", why=why)
    if asked == "auto" or compiles:
        reporter.note(f"passes of {_called(role, name)}: {in_words(asdict(model.passes))}")


def _roles(
    pair: "Pair", parts: Mapping[str, "TransformersModel"]
) -> Iterator[tuple[str, str | None, "TransformersModel"]]:
    """Role, name and model of all loaded models, then of the parts of the target that draft.

    The name is None for the pair's own target and draft. Of a draft of another tokenizer it is the model
    that runs the passes, in its own ids.
    """
    from treespec.models.load import NoDraftModel

    yield "target", None, pair.target
    if not isinstance(pair.draft, NoDraftModel):
        yield "draft", None, getattr(pair.draft, "inner", pair.draft)
    for name, model in pair.others.items():
        yield "draft", name, getattr(model, "inner", model)
    for name, model in parts.items():
        yield PART, name, model


def _recorded(manifest: Mapping[str, Any], role: str, name: str | None) -> Mapping[str, Any] | None:
    models = manifest["models"]
    named = models.get("parts" if role == PART else "others", {})
    entry = models[role] if name is None else named.get(name, {})
    return entry.get("passes")


def _called(role: str, name: str | None) -> str:
    if role == PART:
        return f"{name} (as a draft)"
    return f"the {role}" + ("" if name is None else f" {name!r}")


def _in_words(kind: str, frozen: bool) -> str:
    if kind != "compiled":
        return kind
    return f"compiled ({'with' if frozen else 'without'} packed weights)"
