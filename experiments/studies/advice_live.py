"""Advice against live runs: predicted tokens per step on other texts, and the chosen shape among others."""

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import track

from treespec import Sampling, TorchCoins, TreeShape, decode
from treespec.draft import ModelDrafter
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import ModelsConfig, Prompts
from treespec.experiments.report.prediction import chosen
from treespec.experiments.report.run import load_run
from treespec.experiments.report.terminal import say
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import clock
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.experiments.run.unit import seed_of
from treespec.experiments.search_then_run.run import dry_run, run
from treespec.search import Ranking, Trace
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.tree import Law
from treespec.verify import RULES

__all__ = ["PAIRS", "chosen_among", "live"]

PAIRS = {
    "9M": ("models={target: embedded, dtype: float32, passes: auto, draft_passes: auto}",),
    "50M": (
        "models={target: embedded, dtype: bfloat16, grow: 50M, passes: auto, draft_passes: auto}",
    ),
    "100M": (
        "models={target: embedded, dtype: bfloat16, grow: 100M, passes: auto, draft_passes: auto}",
    ),
}
"""Targets of three sizes, by what they override in the config `search_then_run`."""


def live(
    trace: Trace, ranking: Ranking, shapes: Mapping[str, TreeShape], texts: int | None = None
) -> dict[str, Any]:
    """Predicted tokens per step over those of live runs on what follows the trace's texts in their files.

    How large a target was made changes no token, so that the runs are of the smallest one.

    Args:
        trace: with what it was recorded on in `about`.
        ranking: of a search on it.
        shapes: besides the advised one, by name.
        texts: how many are decoded; by default as many as the trace has.
    """
    models = ModelsConfig.model_validate({**trace.about["models"], "grow": None})
    prompts: Prompts = TypeAdapter(Prompts).validate_python(trace.about["prompts"])
    after = prompts.start + (prompts.tokens or 0) + int(trace.about["max_new_tokens"])
    prompts = prompts.model_copy(update={"start": after})
    pair = load_models(models)
    read = read_prompts(prompts)[: prompts.count if texts is None else texts]
    ids = [one.ids for one in encode(read, prompts, pair.tokenizer)]
    sampling, law = Sampling(**trace.sampling), Law.of(trace.law)
    first = next(row for row in ranking.rows if row.kind in ("tree", "chain"))
    found: dict[str, dict[str, float]] = {}
    for name, shape in track({"advised": first.shape, **shapes}.items(), description="live"):
        emitted = steps = 0
        for i, prompt in enumerate(ids):
            decoding = decode(
                ModelTarget(pair.target), ModelDrafter(pair.draft, shape, law, sampling),
                RULES[trace.rule], torch.tensor(prompt), sampling=sampling,
                coins=TorchCoins(seed_of("advice", i)), stop=stop_at_tokens(pair.end_tokens),
                max_new_tokens=int(trace.about["max_new_tokens"]),
            )  # fmt: skip
            for step in decoding:
                emitted, steps = emitted + step.verdict.emitted, steps + 1
        value = ranking.speed(shape, trace.law).tokens
        found[name] = {
            "predicted": value,
            "live": emitted / steps,
            "error": value * steps / emitted - 1,
        }
    worst = max(found, key=lambda name: abs(found[name]["error"]))
    return {
        "texts": len(ids),
        "shapes": found,
        "median error": median(abs(one["error"]) for one in found.values()),
        "worst": [found[worst]["error"], worst],
    }


def chosen_among(pair: str, runs: Path, texts: int | None = None) -> dict[str, Any]:
    """The speed of what `search_then_run` chose over the fastest of its run, by the run's adjusted times.

    A run that was interrupted goes on. How long it will take is said before it starts, and the time left
    while it decodes.

    Args:
        pair: one of `PAIRS`.
        runs: where its folder is.
        texts: prompts of the run, for a trial in a folder of its own; by default the config's.
    """
    fewer = [] if texts is None else [f"prompts.count={texts}"]
    config = load_config("search_then_run", [*PAIRS[pair], *fewer])
    folder = runs / "-".join(["search_advice", pair, *map(str, filter(None, [texts]))])
    console = Console(stderr=True)
    plan = dry_run(config, folder=folder, console=console)
    if plan.seconds is not None:
        left = clock(round(plan.seconds))
        say(console, f"target of {pair}: about {left} of decoding, besides the search")
    loaded = load_run(run(config, folder=folder, console=console).folder)
    told = {}
    for setting, data in loaded.measurements.items():
        choice = chosen(loaded, data)
        if choice is not None:
            fair = choice.fair
            told[setting] = {
                "chosen": choice.method,
                "fastest": choice.fastest,
                "over": list(astuple(choice.over)),
                "fastest_by_other_half": fair and fair.right.label,
                "over_by_other_half": fair and list(astuple(fair.ratio)),
                "advice": choice.advice,
            }
    return told
