"""One unit of a run: a prompt under one sampling setting, decoded by all methods in turns, as rows."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from treespec.errors import InvalidPlugin, in_words
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import Config
from treespec.experiments.records.loading import PLAIN_KINDS
from treespec.experiments.records.outcome import Outcome
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
from treespec.experiments.run.turns import Decoding, finish, take_turns
from treespec.experiments.run.unit_rows import (
    failed_row,
    metrics_of,
    prompt_row,
    step_row,
    tree_rows,
)
from treespec.stopping import Stop, any_of, stop_at_strings, stop_at_tokens

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Bench", "run_unit", "runs_alone", "seed_of"]


def seed_of(*parts: object) -> int:
    """A seed in 0 .. 2^62 - 1 that depends on these parts alone, not on the order of events."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big") >> 2


@dataclass(frozen=True)
class Bench:
    """What methods run on.

    Args:
        experiment: the methods and settings.
        pair: the models.
        stop: when a text is over.
        groups: the methods that take turns with each other.
        tuned: length and threshold of assisted generation, by (method, sampling).
        meters: of memory and energy, read where a method decodes a prompt by itself.
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
        """The bench of an experiment, with the stop conditions of its config, and nothing tuned."""
        stop, strings = stop_at_tokens(pair.end_tokens), experiment.config.stop_strings
        if strings:
            stop = any_of(stop, stop_at_strings(strings, pair.tokenizer))
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
        """Begin to decode a prompt by a method.

        Args:
            method: one of the experiment's.
            prompt: what to continue.
            sampling: name of the setting.
            seed: of the coins.
            tuned: length and threshold, instead of those chosen.
            max_new_tokens: instead of the config's.
        """
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
        arguments |= {"length": length, "threshold": threshold}
        return generate_assisted(self.pair, ids, settings, **arguments)


def run_unit(
    bench: Bench,
    prompt: Prompt,
    sampling: str,
    started: Callable[[str, int], None] = lambda what, texts: None,
    *,
    repeat: int = 0,
) -> tuple[list[PromptRow], list[StepRow], list[TreeRow]]:
    """Decode one prompt by all methods in turns, and make rows of what came out.

    A method that fails leaves a row with its error; the others run all the same.

    Args:
        bench: models, methods and settings.
        prompt: what to continue.
        sampling: name of the setting.
        started: told of each group of methods before it runs, and of each method that runs by itself, with
            how many texts it decodes.
        repeat: of the prompt; each has its own order of methods, and its own coins.
    """
    config = bench.experiment.config
    place = (config.seed, prompt.index, sampling)
    again = (repeat,) if repeat else ()  # the first one keeps the seeds of runs without repeats
    seeds = {m.name: seed_of(*place, m.name, *again) for m in bench.experiment.methods}

    def begin(method: BuiltMethod) -> Callable[[], Decoding]:
        return lambda: bench.decode(method, prompt, sampling, seed=seeds[method.name])

    outcomes: dict[str, Outcome | str] = {}
    order: list[tuple[str, BuiltMethod]] = []
    shuffle = random.Random(seed_of(*place, *again))
    for group in _in_turn(bench, prompt.index + repeat, sampling):
        started(together_in_words(group), len(group))
        seats = list(group.items())
        shuffle.shuffle(seats)
        order += seats
        turns = {name: begin(method) for name, method in seats}
        outcomes |= take_turns(turns, seed=shuffle.getrandbits(32))
    alone: dict[str, dict[str, Any]] = {}
    if runs_alone(config, prompt, repeat):
        for name, method in order:
            if name == method.name and isinstance(outcomes[name], Outcome):
                started(f"{name} by itself", 1)
                alone[name] = _by_itself(bench, begin(method))
    reference = _reference(bench, outcomes, sampling)
    kept = repeat == 0 and prompt.index < config.trees
    prompts, steps, trees = [], [], []
    piece_of = _pieces(bench)
    for number, (name, method) in enumerate(order):
        outcome = outcomes[name]
        key = {"prompt": prompt.index, "sampling": sampling, "method": name, "repeat": repeat}
        more = {
            **key,
            "prompt_id": prompt.id,
            "category": prompt.category,
            "order": number,
            "prompt_tokens": len(prompt.ids),
            "seed": seeds[method.name],
            "state": method.state,
        }
        if isinstance(outcome, str):
            prompts.append(failed_row(more, outcome))
            continue
        text = str(bench.pair.tokenizer.decode(list(outcome.tokens), skip_special_tokens=True))
        try:
            compared = _compare(bench, prompt, outcome, reference)
        except Exception as error:
            prompts.append(
                failed_row(more, f"comparing with `generate`: {in_words(error, 'the comparison')}")
            )
            continue
        try:
            metrics = metrics_of(outcome)
        except InvalidPlugin as error:
            prompts.append(failed_row(more, str(error)))
            continue
        prompts.append(prompt_row(more | alone.get(name, {}), outcome, text, compared, metrics))
        steps += [step_row(key, i, step) for i, step in enumerate(outcome.steps)]
        trees += tree_rows(key, outcome, piece_of) if kept else []
    return prompts, steps, trees


def runs_alone(config: Config, prompt: Prompt, repeat: int) -> bool:
    """Whether every method also decodes this prompt by itself, under the meters."""
    return repeat == 0 and prompt.index < config.alone


def _in_turn(bench: Bench, number: int, sampling: str) -> list[Group]:
    """The groups, each of which is the first one in some units, so that none has its place in all."""
    first = number + list(bench.experiment.samplings).index(sampling)
    first %= max(1, len(bench.groups))
    return [*bench.groups[first:], *bench.groups[:first]]


def _by_itself(bench: Bench, begin: Callable[[], Decoding]) -> dict[str, Any]:
    """What meters read while a method decodes a prompt by itself, and the time that it took then.

    If it fails, why: it has decoded the prompt in turns, and that is what counts.
    """
    bench.meters.start()
    try:
        outcome = finish(begin())
    except (Exception, SystemExit) as error:
        return {"alone_error": in_words(error, "the decoding")}
    finally:
        read = bench.meters.stop()
    return {**read, "alone_s": outcome.total_s - outcome.prefill_s}


def _pieces(bench: Bench) -> Callable[[int], str]:
    """The text of a token by itself; a part of a character is shown as U+FFFD."""
    return lru_cache(maxsize=None)(lambda token: str(bench.pair.tokenizer.decode([token])))


def _reference(
    bench: Bench, outcomes: Mapping[str, Outcome | str], sampling: str
) -> tuple[int, ...] | None:
    """The ids of `generate`, without it those of our own plain loop, if decoding was greedy."""
    if not bench.experiment.samplings[sampling].greedy:
        return None
    for kind in PLAIN_KINDS:
        for method in bench.experiment.methods:
            outcome = outcomes[method.name]
            if method.kind == kind and isinstance(outcome, Outcome):
                return outcome.tokens
    return None


def _compare(
    bench: Bench, prompt: Prompt, outcome: Outcome, reference: tuple[int, ...] | None
) -> dict[str, Any]:
    nothing = {"equal_to_plain": None, "first_divergence": None, "divergence_margin": None}
    if reference is None:
        return nothing
    if outcome.tokens == reference:
        return nothing | {"equal_to_plain": True}
    at, margin = first_difference(outcome.tokens, reference), None
    # Where one text is longer no token differs, so no rounding explains it.
    if at < min(len(outcome.tokens), len(reference)):
        context = [*prompt.ids, *reference[:at]]
        margin = preference(bench.pair, context, reference[at], outcome.tokens[at])
    return {"equal_to_plain": False, "first_divergence": at, "divergence_margin": margin}
