"""Compare replayed growths with live runs of them, step by step at temperature 0.

    python -m treespec.experiments.research.studies.growth_replay [--prompts 24] [--tokens 48]

The embedded pair runs in float32, and the trace holds the draft's eight best children on eight levels. A
step is *sure* if it is proved to be the live run's (`treespec.search.traces.growth_replay`). Live rows come
from passes of other shapes, so their last digits may differ; this study would show steps that differ for
that reason, and unsure steps that differ. After a step that differs, the comparison resumes where both runs
begin a step at the same position.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated, Any

import typer
from rich.progress import track

from treespec import Law, Sampling, load_pair, verify
from treespec.experiments.measure.recording import record
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.research.studies.replayed_and_live import live_steps
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair
from treespec.protocols import Growth
from treespec.search import LatencyModel, Trace
from treespec.search.growth import CostAware, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.search.traces.growth_replay import replay_growth
from treespec.search.traces.replay import Replay
from treespec.stopping import stop_at_tokens

GREEDY = Sampling(temperature=0.0)
TIMES = LatencyModel.from_tables(
    verify={1: 0.020, 8: 0.022, 64: 0.060}, draft={1: 0.002, 64: 0.004}
)
"""Times of a made-up machine, for growths that take time into account."""
GROWTHS: dict[str, Growth] = {
    "EAGLE-2, 4 children": Eagle2(4, 6, 16),
    "EAGLE-2, 8 children": Eagle2(8, 6, 16),
    "SpecExec": SpecExec(16, 8, 8),
    "OPT-Tree": OptTree(16, 0.0, 8, 8),
    "equal growth": EqualGrowth(4, 6, 16),
    "cost-aware": CostAware(TIMES, 16, 8, 8),
}
PROMPTS, TOKENS, PROMPT_TOKENS = 24, 48, 48
BEAM, LEVELS = 8, 8

Place = tuple[int, int, int, int]
"""The position where a step begins, its accepted tokens, its kept tokens, and its nodes."""


def live_places(pair: Pair, growth: Growth, prompt: Sequence[int], tokens: int) -> list[Place]:
    """The steps of a live run of one text."""
    setting = (GREEDY, Law.DETERMINISTIC, verify.greedy, tokens, 0)
    steps = live_steps(pair, growth, prompt, *setting)
    starts = accumulate((step.verdict.emitted for step in steps), initial=0)
    return [
        (start, step.verdict.accepted, len(step.tokens), step.tree.shape.size)
        for start, step in zip(starts, steps, strict=False)
    ]


def replayed_steps(replayed: Replay, text: int) -> list[tuple[Place, bool]]:
    """The replayed steps of one text, each with whether it is sure."""
    steps = range(*replayed.offsets[text : text + 2])
    starts = accumulate((int(replayed.accepted[step]) + 1 for step in steps), initial=0)
    return [
        (
            (
                start,
                int(replayed.accepted[step]),
                int(replayed.kept[step]),
                int(replayed.sizes[step]),
            ),
            bool(replayed.sure[step]),
        )
        for start, step in zip(starts, steps, strict=False)
    ]


def compared(replayed: Replay, texts: int, live: Callable[[int], list[Place]]) -> dict[str, Any]:
    """Count the replayed steps that are sure, and those that differ from the live run's.

    Args:
        replayed: replay of one growth.
        texts: number of texts.
        live: returns the steps of a live run of one text.
    """
    counts = {"steps": 0, "sure": 0, "sure and differ": 0, "unsure and differ": 0}
    for text in range(texts):
        live_at = {place[0]: place for place in live(text)}
        for place, sure in replayed_steps(replayed, text):
            counts["steps"] += 1
            counts["sure"] += sure
            if live_at.get(place[0]) != place:
                counts["sure and differ" if sure else "unsure and differ"] += 1
    return counts | {"tokens_per_step": replayed.tokens_per_step}


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = PROMPTS,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = TOKENS,
) -> None:
    """Compare replayed growths with live runs, print the results, and save them for the default sizes."""
    pair = load_pair("embedded", dtype="float32")
    ids = [prompt.ids for prompt in embedded_prompts(pair.tokenizer, prompts, PROMPT_TOKENS)]
    trace: Trace = record(
        pair, ids, sampling=GREEDY, law=Law.DETERMINISTIC, rule=verify.greedy, width=BEAM,
        max_new_tokens=tokens, stop=stop_at_tokens(pair.end_tokens), beyond=LEVELS, beam=BEAM,
        beam_depth=LEVELS,
    )  # fmt: skip
    rows = {
        name: compared(
            replay_growth(trace, growth),
            trace.texts,
            lambda text, growth=growth: live_places(pair, growth, ids[text], tokens),
        )
        for name, growth in track(GROWTHS.items(), description="growths")
    }
    columns = (
        keyed("growth", "growth", left=True),
        *(keyed(name, name) for name in ("steps", "sure", "sure and differ", "unsure and differ")),
        keyed("tokens/step", "tokens_per_step", ".3f"),
    )
    print_and_save(
        "growth_replay",
        {"prompts": prompts, "tokens": tokens, "beam": BEAM, "levels": LEVELS, "growths": rows},
        Table("temperature 0", columns, [{"growth": name, **row} for name, row in rows.items()]),
        width=120,
        saved=(prompts, tokens) == (PROMPTS, TOKENS),
    )


if __name__ == "__main__":
    typer.run(main)
