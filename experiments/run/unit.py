"""Decode one unit of a run, a batch of prompts under one sampling setting, by all methods in turns.

A batch is the config's `batch` prompts that follow each other, by default one. Every method of a unit is
open at once, and a turn is one round: a step of every text of the batch that has not ended. A temporary
slowdown of the machine then affects all methods alike, and each round has neighbours in time by the other
methods. The method with the fewest tokens goes next, so that all texts have about the same length at any
time and end together; if each took one step in turn, plain decoding would have a shorter prefix than the
others, which would bias the comparison.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from treespec.errors import InvalidPlugin, in_words
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import Config
from treespec.experiments.records.loading import PLAIN_KINDS
from treespec.experiments.records.outcome import Outcome, Round, StepOutcome, failed_row
from treespec.experiments.records.rows import PromptRow, StepRow, TreeRow
from treespec.experiments.run.baselines import (
    first_difference,
    generate_assisted,
    generate_plain,
    generate_plain_together,
    preference,
)
from treespec.experiments.run.groups import Group, together_in_words
from treespec.experiments.run.meters.meter import ENERGY, Meters
from treespec.experiments.run.ours import decode_ours, decode_ours_together
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.right_marks import fresh_right
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
    _behind: dict[tuple[int, ...], "Pair"] = field(default_factory=dict, repr=False)

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

    def decode_batch(
        self,
        method: BuiltMethod,
        prompts: Sequence[Prompt],
        sampling: str,
        *,
        seeds: Sequence[int],
        max_new_tokens: int | None = None,
    ) -> Iterator[Round]:
        """Decode the prompts of a batch side by side; a single one as `decode` does it."""
        budget = max_new_tokens or self.experiment.config.max_new_tokens
        if len(prompts) == 1:
            steps = self.decode(
                method, prompts[0], sampling, seed=seeds[0], max_new_tokens=max_new_tokens
            )
            return ({0: step} for step in steps)
        ids, stop = [self._ids(prompt) for prompt in prompts], self._stop_of(method)
        pairs = self.behind(*prompts)
        if method.kind == "generate":
            settings, seed = self.experiment.samplings[sampling], seeds[0]
            return generate_plain_together(
                pairs, ids, settings, max_new_tokens=budget, stop=stop, seed=seed
            )
        return decode_ours_together(
            pairs, method, sampling, ids, max_new_tokens=budget, stop=stop, seeds=seeds
        )

    def _stop_of(self, method: BuiltMethod) -> Stop:
        """A text without a meaning does not end at a stop token or string, which it holds by chance."""
        return (lambda ids: False) if method.synthetic else self.stop

    def behind(self, *prompts: Prompt) -> list["Pair"]:
        """The pair behind the source of each prompt, which is encoded once for all methods.

        The sources of one batch, or one prompt of it, are kept.
        """
        sources = {prompt.source for prompt in prompts if prompt.source}
        if not sources <= {*self._behind}:
            self._behind.clear()
            self._behind.update((source, self.pair.on(source)) for source in sources)
        return [self._behind.get(prompt.source, self.pair) for prompt in prompts]

    def _ids(self, prompt: Prompt) -> torch.Tensor:
        return torch.tensor(prompt.ids, dtype=torch.long, device=self.pair.target.device)

    def fresh_drafts(
        self, method: BuiltMethod, prompt: Prompt, sampling: str, outcome: Outcome
    ) -> list[str]:
        """The column `fresh` of a decoded text's steps; see `next_right`."""
        (pair,) = self.behind(prompt)
        return fresh_right(
            make_target(pair.target),
            method.drafter(pair, sampling),
            method.choices[sampling].sampling,
            self._ids(prompt),
            outcome.steps,
        )

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
        config, ids, (pair,) = self.experiment.config, self._ids(prompt), self.behind(prompt)
        arguments: dict[str, Any] = {
            "max_new_tokens": max_new_tokens or config.max_new_tokens,
            "stop": self._stop_of(method),
            "seed": seed,
        }
        if method.kind in ("plain", "tree"):
            return decode_ours(pair, method, sampling, ids, **arguments)
        settings = self.experiment.samplings[sampling]
        if method.kind == "generate":
            return generate_plain(pair, ids, settings, **arguments)
        length, threshold = tuned or self.tuned[method.name, sampling]
        return generate_assisted(
            pair, ids, settings, length=length, threshold=threshold, **arguments
        )


@dataclass(frozen=True)
class Unit:
    """One repeat of the prompts of one batch under one sampling setting."""

    prompts: tuple[Prompt, ...]
    sampling: str
    repeat: int

    @property
    def numbers(self) -> str:
        """The numbers of its prompts, from 1: `prompt 3`, or `prompts 9-16`."""
        first, last = self.prompts[0].index + 1, self.prompts[-1].index + 1
        return f"prompt {first}" if first == last else f"prompts {first}-{last}"

    def runs_alone(self, config: Config) -> bool:
        """Whether every method also decodes the prompts by itself, under the meters."""
        return self.repeat == 0 and self.prompts[0].index < config.alone

    def drafts_afresh(self, config: Config, prompt: Prompt) -> bool:
        """Whether every method also drafts from each accepted node of this prompt anew."""
        return self.repeat == 0 and prompt.index < config.fresh_drafts


def run_unit(
    bench: Bench, unit: Unit, started: Callable[[str, int], None]
) -> tuple[list[PromptRow], list[StepRow], list[TreeRow]]:
    """Decode the prompts of a batch by all methods in turns, and return the rows.

    A method that fails leaves rows with its error and does not affect the other methods.

    Returns:
        The rows of `prompts`, `steps` and `trees`.

    `started` is called with a label and a number of texts before each group of methods runs, and before
    each method that runs by itself. Each repeat has its own order of methods and its own coins.
    """
    config, batch, sampling, repeat = (
        bench.experiment.config,
        unit.prompts,
        unit.sampling,
        unit.repeat,
    )
    repeated = (repeat,) if repeat else ()  # repeat 0 keeps the seeds of runs without repeats
    coins = [(config.seed, prompt.key, sampling) for prompt in batch]
    seeds = {
        m.name: [seed_of(*own, m.name, *repeated) for own in coins]
        for m in bench.experiment.methods
    }
    begins = {
        m.name: partial(bench.decode_batch, m, batch, sampling, seeds=seeds[m.name])
        for m in bench.experiment.methods
    }
    outcomes: dict[str, Sequence[Outcome | str]] = {}
    order: list[tuple[str, BuiltMethod]] = []
    rng = random.Random(seed_of(*coins[0], *repeated))
    for group in _rotated_groups(bench, batch[0].index // len(batch) + repeat, sampling):
        started(together_in_words(group), len(group) * len(batch))
        members = list(group.items())
        rng.shuffle(members)
        order += members
        turns = {name: begins[method.name] for name, method in members}
        outcomes |= rounds_in_turns(turns, texts=len(batch), seed=rng.getrandbits(32))
    alone: dict[str, Sequence[dict[str, Any]]] = {}
    if unit.runs_alone(config):
        for name, method in order:
            if name == method.name and all(isinstance(o, Outcome) for o in outcomes[name]):
                started(f"{name} by itself", len(batch))
                alone[name] = _by_itself(bench, begins[name], len(batch))
    prompts, steps, trees = [], [], []
    # A part of a character becomes U+FFFD.
    piece_of = cache(lambda token: str(bench.pair.tokenizer.decode([token])))
    for place, prompt in enumerate(batch):
        reference = _reference(
            bench, {name: made[place] for name, made in outcomes.items()}, sampling
        )
        for number, (name, method) in enumerate(order):
            outcome = outcomes[name][place]
            key = {"prompt": prompt.index, "sampling": sampling, "method": name, "repeat": repeat}
            columns = {
                **key,
                "prompt_id": prompt.id,
                "category": prompt.category,
                "order": number,
                "prompt_tokens": len(prompt.ids),
                "seed": seeds[method.name][0 if method.kind == "generate" else place],
                "state": method.state,
            }
            if isinstance(outcome, str):
                prompts.append(failed_row(columns, outcome))
                continue
            text = str(bench.pair.tokenizer.decode(list(outcome.tokens), skip_special_tokens=True))
            try:
                # A synthetic text is not meant to equal another.
                known = None if method.synthetic else reference
                compared = _compare(bench, prompt, sampling, outcome, known)
            except Exception as error:
                message = f"comparing with `generate`: {in_words(error, 'the comparison')}"
                prompts.append(failed_row(columns, message))
                continue
            try:
                metrics = outcome.metrics()
            except InvalidPlugin as error:
                prompts.append(failed_row(columns, str(error)))
                continue
            measured = alone[name][place] if name in alone else {}
            fresh: Sequence[str | None] = [None] * len(outcome.steps)
            if unit.drafts_afresh(config, prompt) and method.ranks_tokens:
                started(f"{name}: fresh drafts", 1)
                try:
                    fresh = bench.fresh_drafts(method, prompt, sampling, outcome)
                except (Exception, SystemExit) as error:  # the decoded text stays valid
                    measured = measured | {"fresh_error": in_words(error, "the fresh draft")}
            prompts.append(outcome.row(columns | measured, text, compared, metrics))
            steps += [step.row(key, i, fresh[i]) for i, step in enumerate(outcome.steps)]
            if repeat == 0 and prompt.index < config.trees and outcome.staged:
                trees += [step.tree_row(key, i, piece_of) for i, step in enumerate(outcome.steps)]
    return prompts, steps, trees


def _rotated_groups(bench: Bench, number: int, sampling: str) -> list[Group]:
    """The groups, rotated from unit to unit so that no group always comes first."""
    first = number + list(bench.experiment.samplings).index(sampling)
    first %= max(1, len(bench.groups))
    return [*bench.groups[first:], *bench.groups[:first]]


def _by_itself(
    bench: Bench, begin: Callable[[], Iterator[Round]], texts: int
) -> list[dict[str, Any]]:
    """Columns of what the meters read, and the decoding time, while a method decodes by itself.

    The texts of a batch share the energy equally. If decoding fails here, only `alone_error` is returned;
    the outcome in turns stays valid.
    """
    _capture_before(bench.pair)
    bench.meters.start()
    try:
        outcomes = finish_batch(begin(), texts)
    except (Exception, SystemExit) as error:
        return [{"alone_error": in_words(error, "the decoding")}] * texts
    finally:
        readings = bench.meters.stop()
    shared = {
        name: value / texts if name in ENERGY and value is not None else value
        for name, value in readings.items()
    }
    return [
        {"alone_error": outcome}
        if isinstance(outcome, str)
        else shared | {"alone_s": outcome.total_s - outcome.prefill_s}
        for outcome in outcomes
    ]


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
        context, (pair,) = [*prompt.ids, *reference[:index]], bench.behind(prompt)
        margin = preference(
            pair, bench.experiment.samplings[sampling], context, len(prompt.ids),
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

    def as_batch(begin: Callable[[], Decoding]) -> Iterator[Round]:
        return ({0: step} for step in begin())

    batches = {name: partial(as_batch, begin) for name, begin in decodings.items()}
    outcomes = rounds_in_turns(batches, texts=1, seed=seed)
    return {name: outcome for name, (outcome,) in outcomes.items()}


def rounds_in_turns(
    decodings: Mapping[_Name, Callable[[], Iterator[Round]]],
    *,
    texts: int,
    seed: int,
) -> dict[_Name, Sequence[Outcome | str]]:
    """Decode several batches concurrently, one round at a time.

    Args:
        decodings: functions that begin a batch, by name.
        texts: number of texts of each batch.
        seed: decides which of several batches with equally many tokens goes next.

    Returns:
        The outcomes of each batch, of each text or its error message if it failed. A batch that fails as a
        whole does not affect the others.
    """
    outcomes: dict[_Name, Sequence[Outcome | str]] = {}
    with torch.inference_mode(), quiet_transformers():  # of the thread, so around all texts
        batches = {name: _begun_late(begin) for name, begin in decodings.items()}
        rounds: dict[_Name, list[Round]] = {name: [] for name in decodings}
        kept = Counter[_Name]()
        draw = random.Random(seed)
        try:
            while waiting := [name for name in batches if name not in outcomes]:
                least = min(kept[name] for name in waiting)
                name = draw.choice([n for n in waiting if kept[n] == least])
                try:
                    made = next(batches[name], None)
                    if made is None:
                        outcomes[name] = _outcomes_of(rounds[name], texts)
                    else:
                        rounds[name].append(made)
                        kept[name] += sum(s.kept for s in made.values() if not isinstance(s, str))
                except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
                    outcomes[name] = [in_words(error, "the decoding")] * texts
        finally:
            for batch in batches.values():
                batch.close()
    return {name: outcomes[name] for name in decodings}


def finish(decoding: Decoding) -> Outcome:
    """Decode a text by itself.

    Raises:
        TreespecError, RuntimeError: what the decoding raises.
    """
    with torch.inference_mode(), quiet_transformers():
        return Outcome.of(decoding)


def finish_batch(rounds: Iterator[Round], texts: int) -> Sequence[Outcome | str]:
    """Decode a batch by itself; the outcome of each text, or its error message.

    Raises:
        TreespecError, RuntimeError: what ends the batch as a whole.
    """
    with torch.inference_mode(), quiet_transformers():
        return _outcomes_of(rounds, texts)


def _outcomes_of(rounds: Iterable[Round], texts: int) -> Sequence[Outcome | str]:
    steps: list[list[StepOutcome]] = [[] for _ in range(texts)]
    errors: dict[int, str] = {}
    for made in rounds:
        for text, step in made.items():
            if isinstance(step, str):
                errors[text] = step
            else:
                steps[text].append(step)
    return [errors.get(text) or Outcome.of(own) for text, own in enumerate(steps)]


def _begun_late(begin: Callable[[], Iterator[Round]]) -> Generator[Round]:
    """The rounds of a batch, which begins with its first one and can be closed wherever it stands."""
    yield from begin()
