"""Measure how often `check-lossless` notices a planted bias, and how often it raises a false alarm.

    python -m treespec.experiments.research.studies.lossless_power [SEEDS] [SAMPLES]

A bias of total variation 0.05 is planted at the first root of the embedded pair, in the direction that is
hardest to notice (`treespec.testing.planted`). For each of 20 seeds, 10,000 samples of the biased rule and
10,000 of the honest one are drawn by the real `decode`, drafter and rule, and tested against the exact law
of plain decoding, as the command does. Every sample is drawn afresh and used once.

400,000 samples are affordable because a sample is the first token of one step, where the bias is: only the
rows of the roots matter. Each model is replaced by a table of these rows, which the model computes once.
The result is the power of rule and test; caches and tree attention play no part in it.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated

import torch
import typer
from jaxtyping import Float
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import ModelDrafter
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.tabular import TabularModel
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget
from treespec.testing.compare import LawComparison, compare_laws
from treespec.testing.planted import planted

PROMPTS, PROMPT_TOKENS = 2, 16
SHAPE, LAW, RULE = TreeShape.expansion([3]), Law.WITHOUT_REPLACEMENT, verify.rrsw
TOTAL_VARIATION, SAMPLING = 0.05, Sampling(1.0)
FALSE_ALARM, TOKENS = 1e-3, 3
LEVEL = FALSE_ALARM / TOKENS
"""The command splits its false-alarm rate over the tokens of a text; only the first is drawn here."""


Rows = dict[tuple[int, ...], Float[Tensor, "V"]]


def rows_of(model: TransformersModel, prompts: Sequence[tuple[int, ...]]) -> Rows:
    """The model's logits after each prompt."""
    runner, rows = model.fresh(), {}
    for prompt in prompts:
        ids = torch.tensor(prompt)
        runner.prefill(ids[:-1])
        rows[prompt] = runner.run(ids[-1:], (-1,))[0].clone()
    return rows


def tabulated(rows: Rows) -> TabularModel:
    """A model that looks up these rows. All others are flat: they only matter after the first token."""
    flat = torch.zeros_like(next(iter(rows.values())))
    return TabularModel(lambda context: rows.get(context, flat), len(flat))


def compare(target: Rows, draft: Rows, biased: bool, samples: int, seed: int) -> LawComparison:
    """Draw first tokens after each prompt and test them against the target's law."""
    torch.set_num_threads(1)
    prompts = list(target)
    scorer = ModelTarget(tabulated(target))
    drafter = ModelDrafter(tabulated(draft), SHAPE, LAW, SAMPLING)
    coins, texts = TorchCoins(seed), []
    for i, ids in enumerate(prompts):
        rule = planted(RULE, TOTAL_VARIATION, root=ids[-1]) if biased else RULE
        prompt = torch.tensor(ids)
        for _ in range(samples // len(prompts)):
            steps = decode(
                scorer, drafter, rule, prompt, sampling=SAMPLING, coins=coins, max_new_tokens=1
            )
            texts.append((i, next(iter(steps)).tokens[0]))
    return compare_laws(
        texts, lambda prefix: SAMPLING(target[prompts[prefix[0]]]), given=1, false_alarm=LEVEL,
        seed=seed,
    )  # fmt: skip


def main(
    seeds: Annotated[int, typer.Argument(min=1, help="Tests of each rule.")] = 20,
    samples: Annotated[int, typer.Argument(min=PROMPTS, help="Samples of each test.")] = 10_000,
) -> None:
    """Test a biased and an honest rule with each seed; print and save how often a bias was noticed."""
    console = Console(width=120)
    with console.status("loading the embedded pair ..."):
        pair = load_pair("embedded", dtype="float32")
    prompts = [p.ids for p in embedded_prompts(pair.tokenizer, PROMPTS, PROMPT_TOKENS)]
    rows = rows_of(pair.target, prompts), rows_of(pair.draft, prompts)
    start = time.perf_counter()
    tests: dict[bool, list[LawComparison]] = {True: [], False: []}
    spawn = get_context("spawn")
    with Progress(console=console) as progress, ProcessPoolExecutor(mp_context=spawn) as pool:
        task = progress.add_task("sampling", total=2 * seeds)
        jobs = [
            (biased, pool.submit(compare, *rows, biased, samples, 2 * seed + biased))
            for seed in range(seeds)
            for biased in tests
        ]
        for biased, job in jobs:
            tests[biased].append(job.result())
            progress.advance(task)
    noticed = {biased: sum(not c.passed for c in row) for biased, row in tests.items()}
    first = tests[True][0]
    figures = {
        "setting": {
            "total_variation": TOTAL_VARIATION,
            "samples": samples,
            "seeds": seeds,
            "prompts": PROMPTS,
            "prompt_tokens": PROMPT_TOKENS,
            "tree": list(SHAPE.parents),
            "law": str(LAW),
            "rule": str(RULE),
            "temperature": SAMPLING.temperature,
            "level": LEVEL,
            "degrees": first.degrees,
            "noticed_from_at_90_percent": first.detectable,
        },
        "power": noticed[True] / seeds,
        "false_alarms": noticed[False] / seeds,
        "p_values": {
            "biased": [c.p_value for c in tests[True]],
            "honest": [c.p_value for c in tests[False]],
        },
        "seconds": round(time.perf_counter() - start, 1),
    }
    print_and_save(
        "lossless_power",
        figures,
        f"power: the bias of total variation {TOTAL_VARIATION:g} was noticed with {noticed[True]} of "
        f"{seeds} seeds; false alarms: {noticed[False]} of {seeds}, at a rate of {LEVEL:.2g} for the "
        f"first token; {samples:,} samples each, {first.degrees} degrees of freedom",
        width=120,
    )


if __name__ == "__main__":
    typer.run(main)
