"""Compare a searched skip set with random ones of the same size: acceptance and speed.

    python -m treespec.experiments.research.studies.skip_sets [SIZE] [RANDOM]

SIZE sublayers (4) of the embedded target are left out. The target is enlarged in width only, so that a pass
costs what it costs in larger models. The set is searched on the second parts of some held-out files. It is
judged on the first parts of other files, like RANDOM sets (50) drawn uniformly:

- *acceptance*: mean over positions of the sum of min(target, draft) at temperature 1, without drafting;
- *tokens per step* and *tokens per second* of greedy decoding with a chain of 4.

Times need a quiet machine; the sets take turns text by text, so that any slowdown affects all of them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from treespec import Law, Sampling, Step, TorchCoins, TreeShape, decode
from treespec.draft import LayerSkip
from treespec.draft.skip_set import SkipSets, random_skip_sets
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.models.load import Pair, load_pair
from treespec.models.variants.sublayers import Sublayer
from treespec.protocols import Drafter
from treespec.target import make_target
from treespec.verify import greedy

SEARCHED, JUDGED = 8, 8
"""Number of files for the search, and for the judgement."""

FROM, TOKENS = 1024, 128
"""Token at which the texts of the search begin, and tokens of every text."""

DECODED, NEW = 3, 32
"""Number of texts that every set decodes, and new tokens of each."""

WIDE = {"hidden_size": 1536, "intermediate_size": 1920}

GREEDY = Sampling(0.0)

COLUMNS = (
    keyed("set", "set", left=True),
    keyed("acceptance", "acceptance", ".3f"),
    keyed("tokens a step", "tokens_per_step", ".2f"),
    keyed("tokens a second", "tokens_per_second", ".1f"),
)


def texts(pair: Pair, start: int, files: slice) -> list[list[int]]:
    """One part of some held-out files that are long enough for both parts."""
    least = 4 * (FROM + TOKENS)
    config = EmbeddedPrompts(kind="embedded", start=start, tokens=TOKENS, least_characters=least)
    return [
        list(prompt.ids) for prompt in encode(read_prompts(config)[files], config, pair.tokenizer)
    ]


def greedy_steps(pair: Pair, drafter: Drafter, text: Sequence[int], tokens: int) -> Iterator[Step]:
    """Decode a text greedily with the drafter, and yield every step."""
    return decode(
        make_target(pair.target), drafter, greedy, torch.tensor(text), sampling=GREEDY,
        coins=TorchCoins(0), max_new_tokens=tokens,
    )  # fmt: skip


def speeds(
    pair: Pair, sets: Sequence[frozenset[Sublayer]], prompts: Sequence[Sequence[int]]
) -> list[dict[str, float]]:
    """Tokens per step and per second of each set, over all texts."""
    steps, seconds = [0] * len(sets), [0.0] * len(sets)
    for text in track(prompts, description="decoding"):
        for i, skip in enumerate(sets):
            drafter = LayerSkip(pair.target, skip, TreeShape.chain(4), Law.DETERMINISTIC, GREEDY)
            start = time.perf_counter()
            steps[i] += sum(1 for _ in greedy_steps(pair, drafter, text, NEW))
            seconds[i] += time.perf_counter() - start
    tokens = NEW * len(prompts)
    return [
        {"tokens_per_step": tokens / n, "tokens_per_second": tokens / s}
        for n, s in zip(steps, seconds, strict=True)
    ]


def compared(pair: Pair, size: int, count: int) -> dict[str, Any]:
    """The searched set and random ones, each with its measurements."""
    best = SkipSets(pair.target, texts(pair, FROM, slice(SEARCHED))).search(size)
    judge = SkipSets(pair.target, texts(pair, 0, slice(SEARCHED, SEARCHED + JUDGED)))
    sets = [
        frozenset(map(Sublayer.of, best.skip)),
        *random_skip_sets(pair.target.layer_count, size, count),
    ]
    measured = speeds(pair, sets, texts(pair, 0, slice(SEARCHED, SEARCHED + DECODED)))
    rows = [
        {"set": ", ".join(map(str, sorted(skip))), "acceptance": judge.acceptance(skip), **speed}
        for skip, speed in zip(sets, measured, strict=True)
    ]
    return {"search": best.model_dump(), "searched": rows[0], "random": rows[1:]}


def summary(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows for the searched set, and for the best and the median of the random sets in each column."""
    keys = ("acceptance", "tokens_per_step", "tokens_per_second")
    random = comparison["random"]
    return [
        comparison["searched"] | {"set": f"searched: {comparison['searched']['set']}"},
        {"set": f"best of {len(random)} random ones, by column"}
        | {key: max(row[key] for row in random) for key in keys},
        {"set": "their median"} | {key: median(row[key] for row in random) for key in keys},
    ]


def main(
    size: Annotated[int, typer.Argument(help="Sublayers to leave out.")] = 4,
    random: Annotated[int, typer.Argument(help="Number of random sets.")] = 50,
) -> None:
    """Search, compare with random sets, print and save the figures."""
    comparison = compared(
        load_pair("embedded", "none", dtype="bfloat16", enlarge=WIDE), size, random
    )
    table = Table(f"{size} sublayers left out", COLUMNS, summary(comparison))
    print_and_save("skip_sets", comparison, table)


if __name__ == "__main__":
    typer.run(main)
