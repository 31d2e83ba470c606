"""`passes: auto` in a run: compile only what the run is long enough to gain by.

Compiling takes 20 seconds and more for each model, and half of that where an earlier process has left
its machine code on disk. So with `auto` a model on a CPU is loaded eager, one of its passes is timed, and
what compiling can save in the whole run is compared with what it costs. A part of the target that drafts
is a model of its own here, as it is for `draft_passes`.
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
from treespec.experiments.run.models import load_own_drafts
from treespec.experiments.run.parts import parts_of
from treespec.experiments.run.progress import Reporter
from treespec.models.pass_kinds import Passes

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

__all__ = ["ahead", "choose_by_length", "load_with_passes", "require_same_passes", "without_auto"]

COMPILING_S = {"target": 42.0, "draft": 25.0}
"""What compiling a model takes on two cores of an Intel Xeon, where no earlier process has left machine
code on disk: a target of 50M parameters, the embedded draft. A part of the target counts as a target."""

LOADING_S = {"target": 28.0, "draft": 11.0}
"""What it takes where one has."""

SAVED_SHARE = {"target": 0.4, "draft": 0.7}
"""Of an eager pass over 1 to 32 nodes, at least: 45 to 70 % of one of a target of 50M parameters, 72 to
87 % of one of the embedded draft (`experiments.benchmarks.passes`; bfloat16, two cores of an AMD EPYC with
AVX512). A part of the target that drafts counts as a target."""

TOKENS_A_STEP = 2.5
"""Of trees, to guess by how many steps a text takes."""

TIMED_PASSES, TIMED_NODES = 5, 4

PART = "part"
"""The role of a part of the target that drafts."""

TIMED_PREFIX = 256
"""Tokens before the timed passes, as behind a prompt."""


def without_auto(config: ModelsConfig) -> ModelsConfig:
    """The models' config for loading: what `auto` asks for is decided when they are there."""
    chosen = {key: None for key in ("passes", "draft_passes") if getattr(config, key) == "auto"}
    return config.model_copy(update=chosen)


def load_with_passes(
    config: ModelsConfig,
    methods: Iterable[BuiltMethod],
    load: Callable[[ModelsConfig], "Pair"],
    reporter: Reporter,
) -> "Pair":
    """Load all models, choose their passes, and say which of them are compiled meanwhile.

    Args:
        config: what it asks of passes is had or refused; `auto` compiles, however short the work is.
        methods: whose own draft models, and parts of the target that draft, are chosen for too.
        load: gives the pair. Passes that are already as the config asks stay as they are.
        reporter: shows the progress.

    Raises:
        LoadError: see `load_own_drafts`.
        Unavailable, UnsupportedModel: naming the key, and the model that has a name, if its passes cannot
            be had.
    """
    methods, asked = list(methods), _asked_by_role(config)
    with reporter.task("loading the models"):
        plain = config.model_copy(update={"passes": None, "draft_passes": None})
        pair = load_own_drafts(plain, load(plain), methods)
    for role, name, model in _roles(pair, parts_of(methods, pair.target)):
        if asked[role] in (None, model.passes.asked):
            continue
        try:
            _choose(role, name, model, asked[role], reporter)
        except (Unavailable, UnsupportedModel) as error:
            of = "" if name is None else f" (of {name}, which drafts)"
            raise type(error)(f"models.{error}{of}") from error
    return pair


def choose_by_length(
    pair: "Pair",
    config: ModelsConfig,
    experiment: Experiment,
    texts: int,
    reporter: Reporter,
    manifest: Mapping[str, Any] | None,
) -> None:
    """Decide on what `auto` asks for, and say what was chosen and why.

    Args:
        pair: loaded by a config `without_auto`.
        config: as the user wrote it.
        experiment: what is run.
        texts: that every method decodes.
        reporter: told of each choice.
        manifest: of the run that goes on, which keeps its choices; None if one begins.
    """
    if "auto" not in (config.passes, config.draft_passes):
        return
    asked = _asked_by_role(config)
    parts = parts_of(experiment.methods, pair.target)
    for role, name, model in _roles(pair, parts):
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
            count, seconds = _ahead_of(experiment, texts, pair, role, name), _pass_seconds(model)
            gain = SAVED_SHARE["draft" if role == "draft" else "target"] * seconds * count
            cost, there = _compiling(role, model)
            why = (
                f"about {count:,} passes of {1e3 * seconds:.1f} ms are ahead, in which compiling would "
                f"save {gain:.0f} s and take about {cost:.0f} s"
                + (", since its machine code is on disk" if there else "")
            )
            if gain <= cost:
                model.passes = Passes("eager", "auto", why)
                reporter.note(f"passes of {_called(role, name)} stay eager: {why}")
                continue
        _choose(role, name, model, "auto", reporter)
        passes = model.passes
        if passes.kind == "compiled":
            model.passes = replace(passes, why=why)
            said = f"compiled ({passes.seconds:.0f} s): {why}"
        else:
            said = passes.kind + (f": {passes.why}" if passes.why else "")
        reporter.note(f"passes of {_called(role, name)} are {said}")


def require_same_passes(
    folder: Path,
    pair: "Pair",
    manifest: Mapping[str, Any],
    parts: Mapping[str, "TransformersModel"] | None = None,
) -> None:
    """Refuse to go on with other passes than a run was started with: its times would be of two kinds.

    Args:
        folder: of the run.
        pair: with its passes chosen.
        manifest: of the run; one of an earlier version may not say how its passes were run.
        parts: of the target that draft, by name.

    Raises:
        RunFolderError: with the model, both kinds, the reason, and the ways out.
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
                + ": go on where they can be run as before, give another folder with --out, or start over "
                "with --fresh"
            )


def _asked_by_role(config: ModelsConfig) -> dict[str, str | None]:
    return {"target": config.passes, "draft": config.draft_passes, PART: config.draft_passes}


def _compiling(role: str, model: "TransformersModel") -> tuple[float, bool]:
    """About how many seconds compiling a model takes, and whether its machine code is on disk."""
    from treespec.models.code_on_disk import is_on_disk

    there = is_on_disk(model)
    return (LOADING_S if there else COMPILING_S)["draft" if role == "draft" else "target"], there


def _choose(
    role: str, name: str | None, model: "TransformersModel", asked: str | None, reporter: Reporter
) -> None:
    """Have a model run its passes as asked, and say so while it takes long."""
    from treespec.models.passes import choose_passes

    doing = "capturing"
    if asked == "compiled" or (asked == "auto" and model.device.type == "cpu"):
        doing = "compiling"
    about = f" (about {_compiling(role, model)[0]:.0f} s)" if doing == "compiling" else ""
    with reporter.task(f"{doing} passes of {_called(role, name)}{about}"):
        choose_passes(model, asked, draft=role != "target")


def _roles(
    pair: "Pair", parts: Mapping[str, "TransformersModel"]
) -> Iterator[tuple[str, str | None, "TransformersModel"]]:
    """All models that are loaded, as target or draft, then parts of the target.

    Drafts that methods bring, and parts, have names.
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
    """What a manifest says of a model's passes; None if it says nothing."""
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


def ahead(experiment: Experiment, texts: int) -> tuple[int, Counter[str | None]]:
    """About how many passes a run is: of our methods, warm-up and tuning apart.

    Args:
        experiment: methods, settings and budget.
        texts: prompts times repeats.

    Returns:
        Passes of the target, and of each draft model: of the pair's own (None), and of those that methods
        bring, by name.
    """
    of_target, of_drafts = 0.0, Counter[str | None]()
    new = experiment.config.max_new_tokens * texts
    for method in experiment.methods:
        for _ in method.choices:
            if not isinstance(method.config, TreeMethod):
                of_target += new
                continue
            steps = new / TOKENS_A_STEP
            of_target += steps
            for name in method.draft_models:
                of_drafts[name] += round(steps * method.max_depth)
    return round(of_target), of_drafts


def _ahead_of(experiment: Experiment, texts: int, pair: "Pair", role: str, name: str | None) -> int:
    """About how many passes of one model a run is; see `ahead`."""
    if role != PART:
        of_target, of_drafts = ahead(experiment, texts)
        return of_target if role == "target" else of_drafts[name]
    steps = experiment.config.max_new_tokens * texts / TOKENS_A_STEP
    using = [m for m in experiment.methods if name in parts_of([m], pair.target)]
    return sum(round(steps * method.max_depth) * len(method.choices) for method in using)


def _pass_seconds(model: "TransformersModel") -> float:
    """What an eager pass over a few nodes behind a prompt takes here, now."""
    length = max(1, min(TIMED_PREFIX, model.max_length - TIMED_NODES))
    one, tokens = model.fresh(), torch.arange(length) % model.vocab_size
    one.prefill(tokens)
    nodes = torch.arange(TIMED_NODES) % model.vocab_size
    seconds = []
    for _ in range(TIMED_PASSES + 1):
        start = time.perf_counter()
        one.run(nodes, (-1, *[0] * (TIMED_NODES - 1)))
        seconds.append(time.perf_counter() - start)
        one.keep(())
    return statistics.median(seconds[1:])
