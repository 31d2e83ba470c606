"""`passes: auto` in a run: compile a model only if the run is long enough to gain from it.

Compiling takes 20 seconds or more for each model, and half of that where an earlier process has left
its machine code on disk. With `auto`, a model on a CPU is therefore loaded with eager passes, one of its
passes is timed, and what compiling can save over the whole run is compared with what it costs. Compiled
passes that turn out slower than eager ones on this machine are not used. A part of the target that drafts
counts as a model of its own, as it does for `draft_passes`.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from treespec.errors import Unavailable, UnsupportedModel
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import ModelsConfig, TreeMethod
from treespec.experiments.errors import RunFolderError
from treespec.experiments.run.datastores import build_missing, missing_datastores
from treespec.experiments.run.models import load_own_drafts, parts_of
from treespec.experiments.run.progress import Reporter
from treespec.models.pass_kinds import Passes

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

__all__ = ["ahead", "choose_by_length", "load_with_passes", "require_same_passes", "without_auto"]

COMPILING_S = {"target": 42.0, "draft": 25.0}
"""Seconds to compile a model without machine code on disk, on two cores of an Intel Xeon: a target of 50M
parameters, the embedded draft. A part of the target counts as a target."""

LOADING_S = {"target": 28.0, "draft": 11.0}
"""The same where an earlier process has left machine code on disk."""

SAVED_SHARE = {"target": 0.5, "draft": 0.7}
"""Lower bound of the share that compiling saves of an eager pass over 1 to 32 nodes. Measured: 58 to 81 %
for a target of 50M parameters, 76 to 90 % for the embedded draft (`experiments.benchmarks.passes`;
bfloat16, two cores: AMD EPYC with AVX512, AMD EPYC with AVX2 only, Intel Xeon with AVX512). A part of the
target that drafts counts as a target."""

TOKENS_A_STEP = 2.5
"""Assumed tokens per step of trees, to estimate how many steps a text takes."""

TIMED_PASSES, TIMED_NODES = 5, 4
"""How many passes are timed, over how many nodes each."""

COMPARED_ROUNDS = 3
"""How many times compiled passes are compared with eager ones."""

PART = "part"
"""The role of a part of the target that drafts."""

TIMED_PREFIX = 256
"""Cached tokens before the timed passes, as after a prompt."""


def without_auto(config: ModelsConfig) -> ModelsConfig:
    """The models' config with `auto` removed, for loading: `auto` is decided after loading."""
    deferred = {key: None for key in ("passes", "draft_passes") if getattr(config, key) == "auto"}
    return config.model_copy(update=deferred)


def load_with_passes(
    config: ModelsConfig,
    methods: Iterable[BuiltMethod],
    load: Callable[[ModelsConfig], "Pair"],
    reporter: Reporter,
) -> "Pair":
    """Load all models and choose their passes, showing what is being compiled; build missing datastores.

    Args:
        config: names the models and their passes. `auto` compiles, however short the run is.
        methods: methods whose own draft models are loaded, and whose parts of the target get passes too.
        load: loads the pair. Passes that already are as the config asks stay as they are.
        reporter: shows progress.

    Raises:
        ConfigError: if a datastore is missing and not to be built.
        LoadError: see `load_own_drafts`.
        Unavailable, UnsupportedModel: if the passes that the config asks for are not possible; names the
            key, and the model if it is a named draft model or part.
    """
    methods, asked = list(methods), _asked_by_role(config)
    missing = missing_datastores(methods)
    with reporter.task("loading the models"):
        plain = config.model_copy(update={"passes": None, "draft_passes": None})
        pair = load_own_drafts(plain, load(plain), methods)
    build_missing(missing, pair, reporter)
    for role, name, model in _roles(pair, parts_of(methods, pair.target)):
        try:
            if asked[role] not in (None, model.passes.asked):
                _choose(role, name, model, asked[role], reporter)
        except (Unavailable, UnsupportedModel) as error:
            drafting = "" if name is None else f" (of {name}, which drafts)"
            raise type(error)(f"models.{error}{drafting}") from error
    return pair


def choose_by_length(
    pair: "Pair",
    config: ModelsConfig,
    experiment: Experiment,
    texts: int,
    reporter: Reporter,
    manifest: Mapping[str, Any] | None,
) -> None:
    """Choose the passes of every model with `auto`, and report each choice with its reason.

    Args:
        pair: the models, loaded with a config `without_auto`.
        config: the models' config as the user wrote it.
        experiment: the methods, settings and budget of the run.
        texts: number of texts that every method decodes in each setting.
        reporter: receives a note on each choice.
        manifest: of the run that is resumed, whose choices are kept; None for a new run.
    """
    asked = _asked_by_role(config)
    for role, name, model in _roles(pair, parts_of(experiment.methods, pair.target)):
        if asked[role] != "auto":
            continue
        why = None
        if manifest is not None:
            earlier = _recorded(manifest, role, name) or {}
            if earlier.get("kind", "eager") == "eager":
                model.passes = Passes("eager", "auto", earlier.get("why"))
                continue
            why = earlier.get("why")
        elif model.device.type == "cpu":
            count = ahead(experiment, texts, pair.target)[role, name]
            seconds = _pass_seconds(model)
            gain = SAVED_SHARE["draft" if role == "draft" else "target"] * seconds * count
            cost, on_disk = _compiling(role, model)
            why = (
                f"about {count:,} passes of {1e3 * seconds:.1f} ms are ahead, in which compiling would "
                f"save {gain:.0f} s and take about {cost:.0f} s"
                + (", since its machine code is on disk" if on_disk else "")
            )
            if gain <= cost:
                model.passes = Passes("eager", "auto", why)
                reporter.note(f"passes of {_called(role, name)} stay eager: {why}")
                continue
        _choose(role, name, model, "auto", reporter)
        passes = model.passes
        if passes.kind == "compiled":
            model.passes = replace(passes, why=why)
            outcome = f"compiled ({passes.seconds:.0f} s): {why}"
        else:
            outcome = passes.kind + (f": {passes.why}" if passes.why else "")
        reporter.note(f"passes of {_called(role, name)} are {outcome}")


def require_same_passes(
    folder: Path,
    pair: "Pair",
    manifest: Mapping[str, Any],
    parts: Mapping[str, "TransformersModel"] | None = None,
) -> None:
    """Refuse to resume a run with other passes than it was started with: its times would not be comparable.

    Args:
        folder: the run's folder.
        pair: the models, with their passes chosen.
        manifest: of the run; manifests of earlier versions may not record passes.
        parts: the parts of the target that draft, by name.

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


def _asked_by_role(config: ModelsConfig) -> dict[str, str | None]:
    """The kind of passes that the config asks for, by the role of a model."""
    return {"target": config.passes, "draft": config.draft_passes, PART: config.draft_passes}


def _compiling(role: str, model: "TransformersModel") -> tuple[float, bool]:
    """About how many seconds compiling a model takes, and whether its machine code is on disk."""
    from treespec.models.code_on_disk import is_on_disk

    on_disk = is_on_disk(model)
    seconds = LOADING_S if on_disk else COMPILING_S
    return seconds["draft" if role == "draft" else "target"], on_disk


def _choose(
    role: str, name: str | None, model: "TransformersModel", asked: str | None, reporter: Reporter
) -> None:
    """Make a model run its passes as asked, and show this as a task."""
    from treespec.models.passes import choose_passes

    compiles = asked == "compiled" or (asked == "auto" and model.device.type == "cpu")
    activity = "compiling" if compiles else "capturing"
    estimate = f" (about {_compiling(role, model)[0]:.0f} s)" if compiles else ""
    with reporter.task(f"{activity} passes of {_called(role, name)}{estimate}"):
        choose_passes(model, asked, draft=role != "target")
        if asked != "auto" or model.passes.kind != "compiled":
            return
        slowdown = _slowdown(model)
        if slowdown >= 1:
            choose_passes(model, "eager", draft=role != "target")
            why = (
                f"a compiled pass over {TIMED_NODES} nodes takes {slowdown:.1f} times as long as an eager "
                "one on this machine"
            )
            model.passes = Passes("eager", "auto", why)


def _roles(
    pair: "Pair", parts: Mapping[str, "TransformersModel"]
) -> Iterator[tuple[str, str | None, "TransformersModel"]]:
    """Role, name and model of all loaded models, then of the parts of the target that draft.

    The name is None for the pair's own target and draft.
    """
    from treespec.models.load import NoDraftModel

    yield "target", None, pair.target
    if not isinstance(pair.draft, NoDraftModel):
        yield "draft", None, pair.draft
    for name, model in pair.others.items():
        yield "draft", name, model
    for name, model in parts.items():
        yield PART, name, model


def _recorded(manifest: Mapping[str, Any], role: str, name: str | None) -> Mapping[str, Any] | None:
    """What a manifest records about a model's passes; None if nothing."""
    models = manifest["models"]
    named = models.get("parts" if role == PART else "others", {})
    entry = models[role] if name is None else named.get(name, {})
    return entry.get("passes")


def _called(role: str, name: str | None) -> str:
    """How messages refer to a model."""
    if role == PART:
        return f"{name} (as a draft)"
    return f"the {role}" + ("" if name is None else f" {name!r}")


def _in_words(kind: str, frozen: bool) -> str:
    if kind != "compiled":
        return kind
    return f"compiled ({'with' if frozen else 'without'} packed weights)"


def ahead(
    experiment: Experiment, texts: int, target: "TransformersModel"
) -> Counter[tuple[str, str | None]]:
    """Estimate how many passes our methods take in a run, without warm-up and tuning.

    Args:
        experiment: methods, settings and budget.
        texts: prompts times repeats.
        target: the loaded target.

    Returns:
        Passes of each model by its role and name: of the pair's own target and draft (None), of the draft
        models that methods bring, and of the parts of the target that draft.
    """
    passes = Counter[tuple[str, str | None]]()
    for method in experiment.methods:
        per_step = TOKENS_A_STEP if isinstance(method.config, TreeMethod) else 1
        steps = experiment.config.max_new_tokens * texts / per_step
        passes["target", None] += round(steps * len(method.choices))
        drafts = [("draft", name) for name in method.draft_models]
        drafts += [(PART, name) for name in parts_of([method], target)]
        for draft in drafts:
            passes[draft] += round(steps * method.max_depth) * len(method.choices)
    return passes


def _slowdown(model: "TransformersModel") -> float:
    """Time of a model's pass over that of an eager one: the median of rounds in which they alternate."""
    from treespec.models.runner import TreeRunner

    eager = model.fresh(runner=TreeRunner)
    return statistics.median(
        _pass_seconds(model) / _pass_seconds(eager) for _ in range(COMPARED_ROUNDS)
    )


def _pass_seconds(model: "TransformersModel") -> float:
    """Median time of a pass over a few nodes after a prompt, measured here and now."""
    length = max(1, min(TIMED_PREFIX, model.max_length - TIMED_NODES))
    fresh, prompt = model.fresh(), torch.arange(length) % model.vocab_size
    fresh.prefill(prompt)
    nodes = torch.arange(TIMED_NODES) % model.vocab_size
    seconds = []
    for _ in range(TIMED_PASSES + 1):
        start = time.perf_counter()
        fresh.run(nodes, (-1, *[0] * (TIMED_NODES - 1)))
        seconds.append(time.perf_counter() - start)
        fresh.keep(())
    return statistics.median(seconds[1:])
