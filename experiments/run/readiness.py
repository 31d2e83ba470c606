"""What can be told of an experiment before it runs: its methods, prompts and tracker, and what fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from treespec.decoding import require_room
from treespec.errors import TreespecError
from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.drafts import all_of, source_of
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.errors import ConfigError, PromptError, TooFewPrompts
from treespec.experiments.run.prompts import Prompt, RawPrompt, read_prompts, search_prompts
from treespec.experiments.run.proof_of_parts import require_proved
from treespec.experiments.run.ranks import rank
from treespec.experiments.run.tracking import NoTracker, open_tracker
from treespec.experiments.run.tuning import prompts_needed
from treespec.experiments.run.until import at_most, planned_prompts, require_decidable
from treespec.plugins import Budget
from treespec.tree import Law

if TYPE_CHECKING:
    from treespec.models.load import Pair, PairOutline

__all__ = ["Ready", "ready", "require_fits"]

MOST_UNITS = 10**6
"""Prompts times settings times repeats of a run."""


@dataclass(frozen=True)
class Ready:
    """An experiment that can start.

    Args:
        experiment: its methods; those that wait for a measurement have stand-ins.
        tracker: where its rows are logged besides.
        measured: prompts that it measures.
        spare: prompts that tuning takes.
    """

    experiment: Experiment
    tracker: NoTracker
    measured: Sequence[RawPrompt]
    spare: Sequence[RawPrompt]


def ready(config: Config, say: Callable[[str], None]) -> Ready:
    """Read and check all that needs no model.

    Args:
        config: the experiment.
        say: told once if the tracker fails while the run goes on.

    Raises:
        ConfigError: if a method cannot be built, a part of a plug-in is not lossless, measurements mean
            nothing, `until` has nothing to decide, or the tracker is missing.
        PromptError: if the prompts cannot be read, or are too few.
    """
    experiment = build(config)
    paused_by_greenlet = any(m.kind in ("generate", "assisted") for m in experiment.methods)
    if paused_by_greenlet and find_spec("greenlet") is None:
        raise ConfigError(
            "methods: `generate` and `assisted` take turns with the others by the package greenlet, which "
            "is missing: pip install greenlet"
        )
    require_proved(experiment, say)
    units = config.repeats * len(config.samplings)
    tracker = open_tracker(None if rank() else config.tracker, say)  # one process of several logs
    if config.search is not None:
        search_prompts(config)
    require_decidable(experiment)
    measured, spare = _split(experiment, _read(config, prompts_needed(experiment.methods)))
    if units * len(measured) > MOST_UNITS:
        raise ConfigError(
            f"repeats = {config.repeats}: {len(measured)} prompts under {len(config.samplings)} settings "
            f"are {units * len(measured):,} texts of each method, but at most {MOST_UNITS:,} are run"
        )
    return Ready(experiment, tracker, measured, spare)


def _read(config: Config, more: int) -> Sequence[RawPrompt]:
    """The prompts of the config, as many as `until` allows, and more for tuning."""
    most = at_most(config)
    try:
        return read_prompts(planned_prompts(config), more=more)
    except TooFewPrompts as error:
        if most is None:
            raise
        each = len(getattr(config.prompts, "excerpts", None) or {"": 0})
        count = f"{error.present} prompts" if each == 1 else f"{error.present // each} files"
        alike = "" if each == 1 else ", and several excerpts of one file are one sample"
        raise PromptError(
            f"until.at_most = {most}, but {error.source} has {count}{alike}: lower it, or give more "
            "prompts"
        ) from None


def _split(
    experiment: Experiment, raw: Sequence[RawPrompt]
) -> tuple[Sequence[RawPrompt], Sequence[RawPrompt]]:
    """The measured prompts, and those that tuning takes.

    Raises:
        PromptError: if tuning needs more prompts than there are besides the measured ones.
    """
    count = planned_prompts(experiment.config).count
    count = len(raw) if count is None else count
    needed = prompts_needed(experiment.methods)
    named = "prompts.count" if at_most(experiment.config) is None else "until.at_most"
    if count + needed > len(raw):
        raise PromptError(
            f"tuning assisted generation takes {needed} prompts that are not measured, but of "
            f"{len(raw)} prompts {count} are measured; lower {named} or tune_prompts, or give one length "
            "and one threshold"
        )
    return raw[:count], raw[count : count + needed]


def _require_sources(experiment: Experiment, pair: "Pair | PairOutline") -> None:
    """Make our drafters but those of draft models once: their files are read before the first token."""
    for i, method in enumerate(experiment.methods):
        if not isinstance(method.config, TreeMethod) or source_of(method.config.draft).plugged:
            continue
        draft = method.config.draft
        parts = [one for one in all_of(draft) if isinstance(one, PartOfTarget)]
        try:
            for part in parts:
                part.skipped(pair.target.layer_count)
            # What runs a model is made of a loaded one. That of a draft model alone can be made.
            loaded = hasattr(pair.target, "fresh") or not (parts or method.draft_models)
            made = loaded and (bool(parts) or isinstance(method.tree, Budget))
            for sampling in method.choices if made else ():
                # Sources without models look at a vocabulary and tokenizer, which an outline has too.
                method.drafter(pair, sampling)  # pyrefly: ignore[bad-argument-type]
        except TreespecError as error:
            raise ConfigError(f"methods[{i}].draft: {error}") from None


def require_fits(
    experiment: Experiment, pair: "Pair | PairOutline", prompts: Sequence[Prompt]
) -> None:
    """Refuse, before anything runs, what does not fit in a context or a vocabulary.

    Raises:
        PromptError: naming the prompt and the method.
        ConfigError: if what a draft source reads is missing, damaged, or of another model.
    """
    _require_sources(experiment, pair)
    new = experiment.config.max_new_tokens
    for method in experiment.methods:
        drafts = None in method.draft_models or method.kind == "assisted"
        lengths = [m.max_length for m in ((pair.target, pair.draft) if drafts else (pair.target,))]
        lengths += [
            pair.others[name].max_length for name in method.own_models if name in pair.others
        ]
        for prompt in prompts:
            try:
                require_room(len(prompt.ids), new, method.max_depth, min(lengths))
            except TreespecError as error:
                raise PromptError(f"{prompt.where}, method {method.name!r}: {error}") from None
        laws = {choice.law for choice in method.choices.values()}
        widest = max(map(len, method.shape.children)) if method.shape else 0
        if laws - {Law.IID} and widest > pair.draft.vocab_size:
            raise PromptError(
                f"method {method.name!r}: {widest} distinct children of one node, but the draft's "
                f"vocabulary has {pair.draft.vocab_size}"
            )
