"""Compute and write all teaching figures for this machine.

python -m treespec.experiments.teaching --out figures [--enlarge 100M] [--dtype float32]
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from treespec import TreeShape, load_pair
from treespec.experiments.benchmarks.gpu.roofline import peak_of
from treespec.experiments.report.figure_style import drawing, save
from treespec.experiments.run.models import calm_transformers
from treespec.experiments.teaching.batch_speedup import (
    LLAMA_1B,
    LLAMA_8B,
    largest_batch,
    measured_latency,
    roofline_latency,
    speedup_by_batch,
)
from treespec.experiments.teaching.figures import batch_figure, guessing_figure, wall_figure
from treespec.experiments.teaching.memory_wall import measure_passes, measure_peaks
from treespec.experiments.teaching.parallel_guessing import guessing
from treespec.experiments.teaching.timeline import watch
from treespec.experiments.teaching.timeline_figure import timeline_figure

PROMPT = "def main(argv=None):\n    "
METHODS = {
    "plain decoding": TreeShape.chain(0),
    "chain of 4": TreeShape.chain(4),
    "tree 3 x 2 x 1 x 1": TreeShape.expansion([3, 2, 1, 1]),
}
RATES = (0.6, 0.15, 0.08, 0.04)
"""Assumed acceptance rates of the k-th child for the figure of batch sizes; not measured."""

H200_BYTES = 141e9


def main(
    out: Annotated[Path, typer.Option(help="folder for the figures")] = Path("figures"),
    enlarge: Annotated[str, typer.Option(help="parameters of the enlarged target")] = "100M",
    dtype: Annotated[str, typer.Option(help="dtype of both models")] = "float32",
) -> None:
    """Compute and write all teaching figures for this machine."""
    calm_transformers()
    pair = load_pair("embedded", enlarge=enlarge, dtype=dtype)
    prompt = torch.tensor(pair.tokenizer.encode(PROMPT))
    peak = measure_peaks(getattr(torch, dtype), pair.target.device)
    nodes = (1, 2, 4, 8, 16, 32, 64)
    target, draft = (measure_passes(m, nodes, peak=peak) for m in (pair.target, pair.draft))
    fixed = "tree 3 x 2 x 1 x 1"
    batches = {"this machine, measured passes": measured_latency(target, draft, (1, 2, 4, 8, 16))}
    card = peak_of("NVIDIA H200")
    assert card is not None
    for prefix in (256, 32768):
        largest = largest_batch(LLAMA_8B, LLAMA_1B, H200_BYTES, prefix)
        sizes = [2**i for i in range(11) if 2**i <= largest]
        batches[f"H200 roofline, texts of {prefix:,}"] = roofline_latency(
            LLAMA_8B, LLAMA_1B, card, batches=sizes, prefix=prefix
        )
    speedups = {
        name: speedup_by_batch(RATES, model, METHODS[fixed]) for name, model in batches.items()
    }
    figures = {
        "timeline": timeline_figure(watch(pair, prompt, METHODS)),
        "guessing": guessing_figure(guessing((2, 3, 4), [i / 8 for i in range(9)])),
        "memory_wall": wall_figure(target),
        "batch": batch_figure(speedups, fixed),
    }
    with drawing():
        for name, figure in figures.items():
            print(save(figure, out, name))


if __name__ == "__main__":
    typer.run(main)
