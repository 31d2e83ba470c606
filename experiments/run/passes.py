"""`passes: auto` in a run: compile only what the run is long enough to gain by.

Compiling takes 20 seconds and more for each model. So with `auto` a model on a CPU is loaded eager, one of
its passes is timed, and what compiling can save in the whole run is compared with what it costs.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from treespec.experiments.config.build import Experiment
from treespec.experiments.config.drafts import ModelDraft
from treespec.experiments.config.schema import ModelsConfig, TreeMethod
from treespec.experiments.run.progress import Reporter
from treespec.models.pass_kinds import Passes

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

__all__ = ["ahead", "choose_by_length", "without_auto"]

COMPILING_S = 25.0
"""What compiling a model takes at least, on two cores."""

SAVED = 0.5
"""Of an eager pass: half of it is what compiling has saved wherever it was measured, or more."""

TOKENS_A_STEP = 2.5
"""Of trees, to guess by how many steps a text takes."""

TIMED_PASSES, TIMED_NODES = 5, 4


def without_auto(config: ModelsConfig) -> ModelsConfig:
    """The models' config for loading: what `auto` asks for is decided when they are there."""
    chosen = {key: None for key in ("passes", "draft_passes") if getattr(config, key) == "auto"}
    return config.model_copy(update=chosen)


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
    from treespec.models.load import NoDraftModel
    from treespec.models.passes import choose_passes

    asked = {"target": config.passes, "draft": config.draft_passes}
    of_target, of_draft = ahead(experiment, texts)
    roles = [("target", pair.target, of_target), ("draft", pair.draft, of_draft)]
    roles += [("draft", model, of_draft) for model in pair.others.values()]
    for role, model, count in roles:
        if asked[role] != "auto" or isinstance(model, NoDraftModel):
            continue
        why = None
        if manifest is not None:
            earlier = manifest["models"][role].get("passes") or {}
            if earlier.get("kind", "eager") == "eager":
                model.passes = Passes("eager", "auto", earlier.get("why"))
                continue
            why = earlier.get("why")
        elif model.device.type == "cpu":
            seconds = _pass_seconds(model)
            gain = SAVED * seconds * count
            why = (
                f"about {count:,} passes of {1e3 * seconds:.1f} ms are ahead, in which compiling would "
                f"save {gain:.0f} s and take {COMPILING_S:.0f} s or more"
            )
            if gain <= COMPILING_S:
                model.passes = Passes("eager", "auto", why)
                reporter.note(f"passes of the {role} stay eager: {why}")
                continue
        with reporter.task(f"compiling or capturing passes of the {role}"):
            choose_passes(model, "auto", draft=role == "draft")
        passes = model.passes
        if passes.kind == "compiled":
            model.passes = replace(passes, why=why)
            said = f"compiled ({passes.seconds:.0f} s): {why}"
        else:
            said = passes.kind + (f": {passes.why}" if passes.why else "")
        reporter.note(f"passes of the {role} are {said}")


def ahead(experiment: Experiment, texts: int) -> tuple[int, int]:
    """About how many passes of target and draft a run is: of our methods, warm-up and tuning apart.

    Args:
        experiment: methods, settings and budget.
        texts: prompts times repeats.
    """
    of_target = of_draft = 0.0
    new = experiment.config.max_new_tokens * texts
    for method in experiment.methods:
        for _ in method.choices:
            if not isinstance(method.config, TreeMethod):
                of_target += new
                continue
            steps = new / TOKENS_A_STEP
            of_target += steps
            if isinstance(method.config.draft, ModelDraft):
                of_draft += steps * method.max_depth
    return round(of_target), round(of_draft)


def _pass_seconds(model: "TransformersModel") -> float:
    """What an eager pass over a few nodes takes here, now."""
    one, tokens = model.fresh(), torch.arange(TIMED_NODES) % model.vocab_size
    one.prefill(tokens)
    seconds = []
    for _ in range(TIMED_PASSES + 1):
        start = time.perf_counter()
        one.run(tokens, (-1, *[0] * (TIMED_NODES - 1)))
        seconds.append(time.perf_counter() - start)
        one.keep(())
    return statistics.median(seconds[1:])
