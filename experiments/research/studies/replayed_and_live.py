"""Compare replayed trees with live runs of them.

    python -m treespec.experiments.research.studies.replayed_and_live [--prompts 24] [--tokens 48] \\
        [--seeds 120] [--live 40]

On the embedded pair in float32:

- *temperature 0*: every step of every tree, live and replayed from one trace; all steps must be equal.
- *temperature 1*: one trace per seed, compared with the live tokens per step of the same prompts. The live
  value is pooled over `--live` runs of each prompt with independent coins, so that its noise is small
  compared with that of a trace. A trace and a live run of the same prompts have the same law, so they
  differ by chance only. The 95 % interval of one trace covers the live value for about 95 % of the seeds,
  slightly fewer because of the noise of the live value; with 120 seeds and a true coverage of 94.5 %, one
  tree in 65 would miss 108. Coverage is insensitive to a small bias. The last column is not: the difference
  of the means over all seeds, in standard errors over seeds and runs, must stay below 3.
"""

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from math import sqrt
from multiprocessing import get_context
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from treespec import Law, Sampling, Step, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.experiments.measure.recording import record
from treespec.experiments.records.machine_load import allowed_cores
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import embedded_prompts
from treespec.experiments.run.unit import seed_of
from treespec.models.load import Pair
from treespec.protocols import Growth
from treespec.search.intervals import Interval
from treespec.search.traces.replay import replay
from treespec.search.traces.trace import Trace
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.verify import Rule

SHAPES = {
    "chain 1": TreeShape.chain(1),
    "chain 2": TreeShape.chain(2),
    "chain 4": TreeShape.chain(4),
    "chain 8": TreeShape.chain(8),
    "2-ary 3": TreeShape.kary(2, 3),
    "4 wide": TreeShape.expansion([4]),
    "2 chains x 4": TreeShape.independent_chains(2, 4),
    "3 chains x 4": TreeShape.independent_chains(3, 4),
    "2x2x1x1": TreeShape.expansion([2, 2, 1, 1]),
    "3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "4x2x1": TreeShape.expansion([4, 2, 1]),
    "1x3x1": TreeShape.expansion([1, 3, 1]),
}
WARM_SHAPES = ("chain 4", "2-ary 3", "3x2x1x1")
WIDTH, PROMPT_TOKENS = 4, 48
COLD, WARM = Sampling(temperature=0.0), Sampling()
GOAL_SEEDS, GOAL_Z = 18 / 20, 3.0


def live_steps(
    pair: Pair, shape: TreeShape | Growth, prompt: Sequence[int], sampling: Sampling, law: Law,
    rule: Rule, tokens: int, seed: int,
) -> list[Step]:  # fmt: skip
    """The steps of a live run of one text, whose trees have a shape or grow."""
    steps = decode(
        ModelTarget(pair.target), ModelDrafter(pair.draft, shape, law, sampling), rule,
        torch.tensor(prompt), sampling=sampling, coins=TorchCoins(seed), max_new_tokens=tokens,
        stop=stop_at_tokens(pair.end_tokens),
    )  # fmt: skip
    return list(steps)


def traced(
    pair: Pair, prompts: Sequence[Sequence[int]], sampling: Sampling, law: Law, rule: Rule, tokens: int,
    seed: int,
) -> Trace:  # fmt: skip
    """Record a trace of these prompts."""
    return record(
        pair, prompts, sampling=sampling, law=law, rule=rule, width=WIDTH, max_new_tokens=tokens,
        stop=stop_at_tokens(pair.end_tokens), seed=seed, beyond=8,
    )  # fmt: skip


@cache
def embedded() -> Pair:
    """The embedded pair, loaded once per process with one thread: processes scale better than threads."""
    torch.set_num_threads(1)
    return load_pair("embedded", dtype="float32")


def cold(pair: Pair, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
    """By tree, the number of steps and of those that are equal live and replayed."""
    setting = (COLD, Law.DETERMINISTIC, verify.greedy, tokens, 0)
    trace, rows = traced(pair, prompts, *setting), {}
    for name, shape in track(SHAPES.items(), description="temperature 0"):
        again, equal, steps = replay(trace, shape), 0, 0
        for i, prompt in enumerate(prompts):
            live = [s.verdict.accepted for s in live_steps(pair, shape, prompt, *setting)]
            replayed = again.of_text(i).tolist()
            steps += max(len(live), len(replayed))
            equal += sum(a == b for a, b in zip(live, replayed, strict=False))
        rows[name] = {"steps": steps, "equal": equal, "tokens_per_step": again.tokens_per_step}
    return rows


WARM_RULE = (WARM, Law.WITHOUT_REPLACEMENT, verify.rrsw)


def trace_of_seed(prompts: Sequence[Sequence[int]], tokens: int, seed: int) -> Trace:
    """One trace at temperature 1."""
    return traced(embedded(), prompts, *WARM_RULE, tokens, seed)


def live_value(prompts: Sequence[Sequence[int]], tokens: int, name: str, run: int) -> float:
    """Tokens per step of one live run of every prompt, pooled."""
    steps = [
        step
        for i, prompt in enumerate(prompts)
        for step in live_steps(
            embedded(), SHAPES[name], prompt, *WARM_RULE, tokens, seed_of("live", run, i)
        )
    ]
    return statistics.mean(step.verdict.emitted for step in steps)


def warm(
    prompts: Sequence[Sequence[int]], tokens: int, seeds: int, runs: int, jobs: int
) -> dict[str, Any]:
    """By tree, compare the replay of one trace per seed with live runs."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        trace_jobs = [pool.submit(trace_of_seed, prompts, tokens, seed) for seed in range(seeds)]
        live_jobs = {
            name: [pool.submit(live_value, prompts, tokens, name, run) for run in range(runs)]
            for name in WARM_SHAPES
        }
        traces = [job.result() for job in track(trace_jobs, description="temperature 1: traces")]
        return {
            name: _compared(SHAPES[name], traces, [job.result() for job in jobs_of_tree])
            for name, jobs_of_tree in track(
                live_jobs.items(), description="temperature 1: live runs"
            )
        }


def _compared(shape: TreeShape, traces: Sequence[Trace], live: Sequence[float]) -> dict[str, Any]:
    """Compare the replays of all traces with live runs of one tree."""
    value, runs, seeds = statistics.mean(live), len(live), len(traces)
    intervals = [replay(trace, shape).interval() for trace in traces]
    estimates = [interval.estimate for interval in intervals]
    replayed, spread = statistics.mean(estimates), statistics.stdev(estimates)
    error = statistics.stdev(live) / sqrt(runs)
    noise = sqrt(spread**2 / seeds + error**2)
    return {
        "live": value,
        "live_error": error,
        "live_runs": list(live),
        "replayed": replayed,
        "spread": spread,
        "half_width": statistics.mean(interval.half_width for interval in intervals),
        "intervals": intervals,
        "covered": sum(interval.contains(value) for interval in intervals),
        "of": seeds,
        "z": (replayed - value) / noise,
    }


def _around(name: str, error: str, row: Mapping[str, Any]) -> str:
    """An estimate ± 1.96 of its standard errors."""
    return Interval.around(row[name], 1.96 * row[error]).plus_minus(3)


COLD_COLUMNS = (
    keyed("tree", "tree", left=True),
    keyed("steps", "steps"),
    keyed("equal", "equal"),
    keyed("tokens/step", "tokens_per_step", ".3f"),
)
WARM_COLUMNS = (
    keyed("tree", "tree", left=True),
    Column[Mapping[str, Any]]("live", partial(_around, "live", "live_error")),
    Column[Mapping[str, Any]]("replayed", partial(_around, "replayed", "spread")),
    Column[Mapping[str, Any]]("interval", lambda row: f"±{row['half_width']:.3f}"),
    Column[Mapping[str, Any]]("covered", lambda row: f"{row['covered']} of {row['of']}"),
    keyed("z", "z", "+.1f"),
)

PROMPTS, TOKENS, SEEDS, LIVE = 24, 48, 120, 40


def main(
    prompts: Annotated[int, typer.Option(min=1, help="Number of texts.")] = PROMPTS,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = TOKENS,
    seeds: Annotated[int, typer.Option(min=2, help="Number of traces at temperature 1.")] = SEEDS,
    live: Annotated[
        int, typer.Option(min=2, help="Live runs of each prompt at temperature 1.")
    ] = LIVE,
    jobs: Annotated[
        int | None, typer.Option(help="Parallel processes; one per core by default.")
    ] = None,
) -> None:
    """Compare replayed trees with live runs, print the results, and save them for the default sizes."""
    pair = embedded()
    ids = [prompt.ids for prompt in embedded_prompts(pair.tokenizer, prompts, PROMPT_TOKENS)]
    figures = {
        "prompts": prompts,
        "tokens": tokens,
        "temperature 0": cold(pair, ids, tokens),
        "temperature 1": warm(ids, tokens, seeds, live, jobs or len(allowed_cores())),
    }
    default = (prompts, tokens, seeds, live) == (PROMPTS, TOKENS, SEEDS, LIVE)
    print_and_save("replay", figures, *shown(figures), width=120, saved=default)


def shown(figures: dict[str, Any]) -> list[Table | str]:
    """Tables of the results, and whether the goals are met."""
    tables = [
        Table(title, columns, [{"tree": name, **row} for name, row in figures[title].items()])
        for title, columns in (("temperature 0", COLD_COLUMNS), ("temperature 1", WARM_COLUMNS))
    ]
    same = all(row["equal"] == row["steps"] for row in figures["temperature 0"].values())
    covered = all(
        row["covered"] >= GOAL_SEEDS * row["of"] and abs(row["z"]) < GOAL_Z
        for row in figures["temperature 1"].values()
    )
    return [*tables, "all goals are met" if same and covered else "A GOAL IS NOT MET"]


if __name__ == "__main__":
    typer.run(main)
