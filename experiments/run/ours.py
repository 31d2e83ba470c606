"""Decode by our own loop, with a tree or plainly, and time every step; a batch of texts by rounds.

In a batch, every text makes its step in each round, and passes are joined (`treespec.batch`). What a round
takes is shared equally by the texts that made a step in it, so that sums over texts are the time of the
batch. A single text is decoded without the driver of batches.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxtyping import Int
from torch import Tensor

from treespec.batch import Failed, Text, decode_rounds
from treespec.decoding import decode
from treespec.errors import in_words
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.model_draft import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.records.outcome import STAGES, Round, StepOutcome
from treespec.experiments.run.observers import StageTimer, now
from treespec.experiments.run.right_marks import next_right
from treespec.experiments.run.round_timer import RoundTimer
from treespec.plugins import Budget
from treespec.protocols import Drafter
from treespec.sampling.coins import TorchCoins
from treespec.step import Step
from treespec.stopping import Stop
from treespec.target import make_target
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair


def decode_ours(
    pair: "Pair",
    method: BuiltMethod,
    sampling: str,
    prompt: Int[Tensor, "T"],
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
) -> Iterator[StepOutcome]:
    """Decode a prompt by `treespec.decode`. Nothing between two steps is timed."""
    choice, timer = method.choices[sampling], StageTimer(prompt.device)
    drafter = method.drafter(pair, sampling)
    steps = decode(
        make_target(pair.target),
        drafter,
        verifier_for(choice.rule, pair.target),
        prompt,
        sampling=choice.sampling,
        coins=TorchCoins(seed),
        max_new_tokens=max_new_tokens,
        stop=stop,
        observer=timer,
    )
    timer.clock.settle()
    at, start = now(), time.perf_counter()
    for step in steps:
        seconds = {stage: times.pop() for stage, times in timer.seconds.items() if times}
        took, prefill = time.perf_counter() - start, seconds.pop("prefill", 0.0)
        yield _outcome(
            step,
            method,
            sampling,
            drafter,
            seconds={stage: seconds[stage] for stage in STAGES},
            at=at + prefill,
            took=took - prefill,
            prefill_s=prefill,
        )
        at, start = now(), time.perf_counter()


def decode_ours_together(
    pairs: Sequence["Pair"],
    method: BuiltMethod,
    sampling: str,
    prompts: Sequence[Int[Tensor, "_"]],
    *,
    max_new_tokens: int,
    stop: Stop,
    seeds: Sequence[int],
) -> Iterator[Round]:
    """Decode a batch of prompts by `treespec.batch`, one round at a time.

    `pairs`: for each prompt the models, which encoder-decoders have behind each source. Nothing between two
    rounds is timed. A text that fails ends with its error; the others go on.
    """
    choice, timer = method.choices[sampling], RoundTimer(prompts[0].device)
    rule = verifier_for(choice.rule, pairs[0].target)
    drafters = [method.drafter(pair, sampling) for pair in pairs]
    texts = [
        Text(
            make_target(pair.target),
            drafter,
            rule,
            prompt,
            choice.sampling,
            TorchCoins(seed),
            max_new_tokens,
            stop,
            timer.of_text(i),
        )
        for i, (pair, prompt, drafter, seed) in enumerate(
            zip(pairs, prompts, drafters, seeds, strict=True)
        )
    ]
    rounds = decode_rounds(texts, watch=timer)
    timer.begin()
    at, start = now(), time.perf_counter()
    for made in rounds:
        times = timer.end()
        took = time.perf_counter() - start
        prefills = [0.0] * len(texts)
        seconds = dict.fromkeys(STAGES, 0.0)
        for (stage, of), spent in times.items():
            if stage in seconds:
                seconds[stage] += spent
            elif stage == "prefill":
                for i in of:
                    prefills[i] += spent / len(of)
        stepped = [i for i, step in made if not isinstance(step, Failed)]
        share = 1 / max(1, len(stepped))
        yield {
            i: in_words(step.error, "the decoding")
            if isinstance(step, Failed)
            else _outcome(
                step,
                method,
                sampling,
                drafters[i],
                seconds={stage: spent * share for stage, spent in seconds.items()},
                at=at + sum(prefills),
                took=(took - sum(prefills)) * share,
                prefill_s=prefills[i],
                texts=len(stepped),
            )
            for i, step in made
        }
        timer.begin()
        at, start = now(), time.perf_counter()


def _outcome(
    step: Step,
    method: BuiltMethod,
    sampling: str,
    drafter: Drafter,
    *,
    seconds: dict[str, float],
    at: float,
    took: float,
    prefill_s: float,
    texts: int = 1,
) -> StepOutcome:
    """What the records need of a step; its scores are large."""
    choice, off_target = method.choices[sampling], None
    if not choice.rule.lossless and step.rows is not None:
        off_target = choice.rule.off_target(step.tree, step.rows, step.verdict)
    ranked = next_right(drafter, step) if method.ranks_tokens else None
    return StepOutcome(
        shape=step.tree.shape,
        tokens=step.tree.token_ids,
        verdict=step.verdict,
        kept=len(step.tokens),
        seconds=seconds,
        at=at,
        took=took,
        prefill_s=prefill_s,
        origins=_origins(drafter, method, step.tree.shape.size),
        off_target=off_target,
        texts=texts,
        spine=None if ranked is None else ranked.spine,
        right=None if ranked is None else ranked.right,
    )


def _origins(drafter: Drafter, method: BuiltMethod, size: int) -> tuple[tuple[str, ...], ...]:
    """For each node of the latest tree, the sources that drafted it.

    A drafter with several (`treespec.draft.Merge`, and `Cascade` by its levels) has an attribute `origins`:
    a tuple of names for each node. Otherwise all nodes are of the method's one source; if it drafts a given
    shape or growth, the method says so, and the result is empty.
    """
    origins = tuple(tuple(names) for names in getattr(drafter, "origins", ()))
    if len(origins) == size:
        return origins
    if isinstance(method.tree, Budget) and isinstance(method.config, TreeMethod):
        return ((), *[(source_of(method.config.draft).name,)] * (size - 1))
    return ()
