"""Decode one unit of a run, a prompt under one sampling setting, by all methods in turns; return rows.

Every method of a unit is open at once, and a turn is one step. A temporary slowdown of the machine then
affects all methods alike, and each step has neighbours in time by the other methods. The text with the
fewest tokens steps next, so that all texts have about the same length at any time and end together; if each
took one step per round, plain decoding would have a shorter prefix than the others, which would bias the
comparison.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from treespec.errors import InvalidPlugin, in_words
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import Config
from treespec.experiments.records.loading import PLAIN_KINDS
from treespec.experiments.records.outcome import Outcome, StepOutcome, failed_row
from treespec.experiments.records.rows import PromptRow, StepRow, TreeRow
from treespec.experiments.run.baselines import (
    first_difference,
    generate_assisted,
    generate_plain,
    preference,
)
from treespec.experiments.run.groups import Group, together_in_words
from treespec.experiments.run.meters.meter import Meters
from treespec.experiments.run.ours import decode_ours
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.seeds import seed_of
from treespec.experiments.run.transformers_hooks import quiet_transformers
from treespec.stopping import Stop, any_of, stop_at_strings, stop_at_tokens
from treespec.target import make_target

if TYPE_CHECKING:
    from treespec.models.load import Pair

_Name = TypeVar("_Name", bound=Hashable)

Decoding = Iterator[StepOutcome]
"""The steps of a text as it is decoded; no work is done between two steps."""


@dataclass(frozen=True)
class Bench:
    """Everything that decoding needs: methods, models, stop condition and meters.

    `tuned` holds length and threshold of assisted generation, by (method, sampling).
    """

    experiment: Experiment
    pair: "Pair"
    stop: Stop
    groups: Sequence[Group]
    tuned: Mapping[tuple[str, str], tuple[int, float]]
    meters: Meters

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        pair: "Pair",
        groups: Sequence[Group] = (),
        meters: Meters | None = None,
    ) -> "Bench":
        """The bench of an experiment before tuning, with the stop conditions of its config."""
        stop, strings = stop_at_tokens(pair.end_tokens), experiment.config.stop_strings
        if strings:
            stop = any_of(stop, stop_at_strings(strings, pair.tokenizer))
        experiment = experiment.ending(pair.end_tokens)
        for sampling in experiment.samplings.values():
            if sampling.processors is not None:
                sampling.processors.require_vocabulary(pair.target.vocab_size)
        return cls(experiment, pair, stop, groups, {}, meters or Meters([]))

    def decode(
        self,
        method: BuiltMethod,
        prompt: Prompt,
        sampling: str,
        *,
        seed: int,
        tuned: tuple[int, float] | None = None,
        max_new_tokens: int | None = None,
    ) -> Decoding:
        config = self.experiment.config
        ids = torch.tensor(prompt.ids, dtype=torch.long, device=self.pair.target.device)
        arguments: dict[str, Any] = {
            "max_new_tokens": max_new_tokens or config.max_new_tokens,
            "stop": self.stop,
            "seed": seed,
        }
        if method.kind in ("plain", "tree"):
            return decode_ours(self.pair, method, sampling, ids, **arguments)
        settings = self.experiment.samplings[sampling]
        if method.kind == "generate":
            return generate_plain(self.pair, ids, settings, **arguments)
        length, threshold = tuned or self.tuned[method.name, sampling]
        return generate_assisted(
            self.pair, ids, settings, length=length, threshold=threshold, **arguments
        )


@dataclass(frozen=True)
class Unit:
    """One repeat of one prompt under one sampling setting."""

    prompt: Prompt
    sampling: str
    repeat: int

    def runs_alone(self, config: Config) -> bool:
        """Whether every method also decodes the prompt by itself, under the meters."""
        return self.repeat == 0 and self.prompt.index < config.alone


def run_unit(
    bench: Bench, unit: Unit, started: Callable[[str, int], None]
) -> tuple[list[PromptRow], list[StepRow], list[TreeRow]]:
    """Decode one prompt by all methods in turns, and return the rows.

    A method that fails leaves a row with its error and does not affect the other methods.

    Returns:
        The rows of `prompts`, `steps` and `trees`.

    `started` is called with a label and a number of texts before each group of methods runs, and before
    each method that runs by itself. Each repeat has its own order of methods and its own coins.
    """
    config, prompt = bench.experiment.config, unit.prompt
    sampling, repeat = unit.sampling, unit.repeat
    coins = (config.seed, prompt.key, sampling)
    repeated = (repeat,) if repeat else ()  # repeat 0 keeps the seeds of runs without repeats
    seeds = {m.name: seed_of(*coins, m.name, *repeated) for m in bench.experiment.methods}

    begins = {
        m.name: partial(bench.decode, m, prompt, sampling, seed=seeds[m.name])
        for m in bench.experiment.methods
    }
    outcomes: dict[str, Outcome | str] = {}
    order: list[tuple[str, BuiltMethod]] = []
    rng = random.Random(seed_of(*coins, *repeated))
    for group in _rotated_groups(bench, prompt.index + repeat, sampling):
        started(together_in_words(group), len(group))
        members = list(group.items())
        rng.shuffle(members)
        order += members
        turns = {name: begins[method.name] for name, method in members}
        outcomes |= take_turns(turns, seed=rng.getrandbits(32))
    alone: dict[str, dict[str, Any]] = {}
    if unit.runs_alone(config):
        for name, method in order:
            if name == method.name and isinstance(outcomes[name], Outcome):
                started(f"{name} by itself", 1)
                alone[name] = _by_itself(bench, begins[name])
    reference = _reference(bench, outcomes, sampling)
    prompts, steps, trees = [], [], []
    # A part of a character becomes U+FFFD.
    piece_of = cache(lambda token: str(bench.pair.tokenizer.decode([token])))
    for number, (name, method) in enumerate(order):
        outcome = outcomes[name]
        key = {"prompt": prompt.index, "sampling": sampling, "method": name, "repeat": repeat}
        columns = {
            **key,
            "prompt_id": prompt.id,
            "category": prompt.category,
            "order": number,
            "prompt_tokens": len(prompt.ids),
            "seed": seeds[method.name],
            "state": method.state,
        }
        if isinstance(outcome, str):
            prompts.append(failed_row(columns, outcome))
            continue
        text = str(bench.pair.tokenizer.decode(list(outcome.tokens), skip_special_tokens=True))
        try:
            compared = _compare(bench, prompt, sampling, outcome, reference)
        except Exception as error:
            message = f"comparing with `generate`: {in_words(error, 'the comparison')}"
            prompts.append(failed_row(columns, message))
            continue
        try:
            metrics = outcome.metrics()
        except InvalidPlugin as error:
            prompts.append(failed_row(columns, str(error)))
            continue
        prompts.append(outcome.row(columns | alone.get(name, {}), text, compared, metrics))
        steps += [step.row(key, i) for i, step in enumerate(outcome.steps)]
        if repeat == 0 and prompt.index < config.trees and outcome.staged:
            trees += [step.tree_row(key, i, piece_of) for i, step in enumerate(outcome.steps)]
    return prompts, steps, trees


def _rotated_groups(bench: Bench, number: int, sampling: str) -> list[Group]:
    """The groups, rotated from unit to unit so that no group always comes first."""
    first = number + list(bench.experiment.samplings).index(sampling)
    first %= max(1, len(bench.groups))
    return [*bench.groups[first:], *bench.groups[:first]]


def _by_itself(bench: Bench, begin: Callable[[], Decoding]) -> dict[str, Any]:
    """Columns of what the meters read, and the decoding time, while a method decodes a prompt by itself.

    If decoding fails here, only `alone_error` is returned; the outcome in turns stays valid.
    """
    _capture_before(bench.pair)
    bench.meters.start()
    try:
        outcome = finish(begin())
    except (Exception, SystemExit) as error:
        return {"alone_error": in_words(error, "the decoding")}
    finally:
        readings = bench.meters.stop()
    return {**readings, "alone_s": outcome.total_s - outcome.prefill_s}


def _capture_before(pair: "Pair") -> None:
    """Capture now what the models' twins for a text would capture first; its text gets the same places."""
    make_target(pair.target)
    for model in pair.models:
        model.fresh()


def _reference(
    bench: Bench, outcomes: Mapping[str, Outcome | str], sampling: str
) -> tuple[int, ...] | None:
    """Under greedy decoding, the ids of `generate`, or those of our own plain loop if there are none."""
    if not bench.experiment.samplings[sampling].greedy:
        return None
    methods = bench.experiment.methods
    plain = [outcomes[m.name] for kind in PLAIN_KINDS for m in methods if m.kind == kind]
    return next((outcome.tokens for outcome in plain if isinstance(outcome, Outcome)), None)


def _compare(
    bench: Bench,
    prompt: Prompt,
    sampling: str,
    outcome: Outcome,
    reference: tuple[int, ...] | None,
) -> dict[str, Any]:
    """The columns that compare a text with the reference; all null if there is no reference."""
    nulls = {"equal_to_plain": None, "first_divergence": None, "divergence_margin": None}
    if reference is None:
        return nulls
    if outcome.tokens == reference:
        return nulls | {"equal_to_plain": True}
    index, margin = first_difference(outcome.tokens, reference), None
    # If one text is a prefix of the other, no token differs, so rounding cannot explain the difference.
    if index < min(len(outcome.tokens), len(reference)):
        context = [*prompt.ids, *reference[:index]]
        margin = preference(
            bench.pair, bench.experiment.samplings[sampling], context, len(prompt.ids),
            reference[index], outcome.tokens[index],
        )  # fmt: skip
    return {"equal_to_plain": False, "first_divergence": index, "divergence_margin": margin}


def take_turns(
    decodings: Mapping[_Name, Callable[[], Decoding]],
    *,
    seed: int,
) -> dict[_Name, Outcome | str]:
    """Decode several texts concurrently, one step at a time.

    Args:
        decodings: functions that begin a text, by name.
        seed: decides which of several texts of equal length steps next.

    Returns:
        The outcome of each text, or its error message if it failed. A text that fails does not affect the
        others.
    """
    outcomes: dict[_Name, Outcome | str] = {}
    with torch.inference_mode(), quiet_transformers():  # of the thread, so around all texts
        texts = {name: _begun_late(begin) for name, begin in decodings.items()}
        steps: dict[_Name, list[StepOutcome]] = {name: [] for name in decodings}
        kept = Counter[_Name]()
        draw = random.Random(seed)
        try:
            while waiting := [name for name in texts if name not in outcomes]:
                least = min(kept[name] for name in waiting)
                name = draw.choice([n for n in waiting if kept[n] == least])
                try:
                    step = next(texts[name], None)
                    if step is None:
                        outcomes[name] = Outcome.of(steps[name])
                    else:
                        steps[name].append(step)
                        kept[name] += step.kept
                except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
                    outcomes[name] = in_words(error, "the decoding")
        finally:
            for text in texts.values():
                text.close()
    return {name: outcomes[name] for name in decodings}


def finish(decoding: Decoding) -> Outcome:
    """Decode a text by itself.

    Raises:
        TreespecError, RuntimeError: what the decoding raises.
    """
    with torch.inference_mode(), quiet_transformers():
        return Outcome.of(decoding)


def _begun_late(begin: Callable[[], Decoding]) -> Generator[StepOutcome]:
    """The steps of a text, which begins with its first step and can be closed wherever it stands."""
    yield from begin()
