"""Measure what processors cost at each node that a rule visits, against transformers' own code.

    python -m treespec.experiments.research.benchmarks.processor_cost [TOKENS]

A row of 49,152 logits after a text of 2,048 tokens is processed, then sampled. Goal: at most 100 us for a
repetition penalty. Both sides are timed in turns; columns are medians.
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import GenerationConfig, LogitsProcessorList

from treespec import Sampling
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.sampling.processing.built import further, generation_fields, theirs_of
from treespec.sampling.processing.text import ProcessedText
from treespec.sampling.processors import Processors

VOCABULARY, ROUNDS = 49_152, 300

PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.1},
    "frequency_penalty": {"frequency_penalty": 0.3},
    "min_new_tokens": {"min_new_tokens": 4000},
    "suppress_tokens": {"suppress_tokens": tuple(range(100))},
    "sequence_bias": {"sequence_bias": (((5,), 1.0), ((6, 7), -1.0))},
    "bad_words_ids": {"bad_words_ids": ((5,), (6, 7))},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
}
TRUNCATIONS: dict[str, dict[str, float]] = {
    "temperature alone": {}, "top_k": {"top_k": 50}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.9}, "epsilon_cutoff": {"epsilon_cutoff": 1e-4},
    "eta_cutoff": {"eta_cutoff": 1e-3},
}  # fmt: skip

COLUMNS = (
    keyed("setting", "setting", left=True),
    keyed("us a node", "us", ".0f"),
    keyed("transformers' own: us", "theirs_us", ".0f"),
    keyed("ratio", "ratio", ".2f"),
)


def medians(*sides: Callable[[], object]) -> list[float]:
    """Median microseconds of each function, called in turns."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, times in zip(sides, taken, strict=True):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
    return [float(np.median(times)) * 1e6 for times in taken]


def measured(settings: dict[str, Any], ids: list[int], logits: torch.Tensor) -> dict[str, float]:
    """The cost of one row, and that of the list which `generate` calls."""
    processors, prompt = Processors(**settings).ending({0}, 8000), len(ids) // 2
    text = ProcessedText(processors, prompt, logits.device)
    text.extend(ids[:-4])
    config = GenerationConfig(**generation_fields(processors), max_length=prompt + 8000)
    made = theirs_of(
        config, [0], prompt, LogitsProcessorList(further(processors, prompt)), logits.device
    )
    rows, all_ids = logits[None], torch.LongTensor([ids])
    assert torch.equal(text.row(logits, ids[-4:], 0), made(all_ids, rows.clone())[0])
    ours, theirs = medians(
        lambda: text.row(logits, ids[-4:], 0),
        lambda: made(all_ids, rows.to(torch.float32, copy=True)),
    )
    return {"us": ours, "theirs_us": theirs, "ratio": ours / theirs}


def main(tokens: Annotated[int, typer.Argument(help="Tokens of the text.")] = 2048) -> None:
    """Measure, print and save the figures."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (tokens,), generator=generator).tolist()
    logits = 3 * torch.randn(VOCABULARY, generator=generator)
    rows: list[dict[str, Any]] = [
        {"setting": name, **measured(settings, ids, logits)}
        for name, settings in PROCESSORS.items()
    ]
    for name, settings in TRUNCATIONS.items():
        sampling = Sampling(0.7, **settings)  # pyrefly: ignore[bad-argument-type]
        (us,) = medians(lambda sampling=sampling: sampling(logits))
        rows.append({"setting": name, "us": us, "theirs_us": None, "ratio": None})
    figures = {"vocabulary": VOCABULARY, "tokens": tokens, "settings": rows}
    print_and_save("processor_cost", figures, Table("processors", COLUMNS, rows))


if __name__ == "__main__":
    typer.run(main)
