"""Compare advice with live runs: predicted tokens per step, and the chosen shape among the others."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import mean, median
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import track

from treespec import Sampling, TreeShape
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import ModelsConfig, Prompts
from treespec.experiments.report.run import load_run
from treespec.experiments.report.terminal import say
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import clock
from treespec.experiments.run.prompts import Prompt, encode, following, read_prompts
from treespec.experiments.run.unit import seed_of
from treespec.experiments.search_then_run.run import dry_run, run
from treespec.experiments.studies.advice_unseen import first_drafted, law_of
from treespec.experiments.studies.replay import live_steps
from treespec.models.load import Pair
from treespec.search import LatencyModel, Ranking, Trace, best_tree
from treespec.tree import Law
from treespec.verify import RULES, usual_rule

__all__ = ["PAIRS", "chosen_among", "live"]

TARGET = files("treespec") / "embedded" / "target"

PAIRS = {
    "9M": ("models={target: embedded, dtype: float32, passes: auto, draft_passes: auto}",),
    "50M": (
        "models={target: embedded, dtype: bfloat16, enlarge: 50M, passes: auto, draft_passes: auto}",
    ),
    "100M": (
        "models={target: embedded, dtype: bfloat16, enlarge: 100M, passes: auto, draft_passes: auto}",
    ),
    "9M-itself": (
        f'models={{target: embedded, draft: "{TARGET}", dtype: float32, passes: eager, '
        "draft_passes: eager}",
    ),
}
"""Overrides of the config `search_then_run`: targets of three sizes, and a target that drafts for itself.

For the last one plain decoding is the fastest: every draft is accepted, and a level costs as much as a
pass.
"""


def live(
    trace: Trace, latency: LatencyModel, shapes: Mapping[str, TreeShape], texts: int | None = None
) -> dict[str, Any]:
    """Compare predicted tokens per step with live runs, on the trace's own texts and on later ones.

    On the trace's own texts the difference is that between replay and decoding (steps begin elsewhere at
    temperature 1; a run's last step is cut). The texts that follow in the same files are other texts, so
    the second figure also contains their difference from the trace's texts.

    Enlarging a target changes no token, so the live runs use the smallest target.

    Args:
        trace: a trace whose `about` says what it was recorded on.
        latency: times for the search.
        shapes: shapes besides the advised one, by name.
        texts: number of texts to decode; by default as many as the trace has.
    """
    prompts: Prompts = TypeAdapter(Prompts).validate_python(trace.about["prompts"])
    pair = load_models(ModelsConfig.model_validate({**trace.about["models"], "enlarge": None}))
    ranking = best_tree(trace, latency)
    first = first_drafted(ranking)
    compared = {
        "advised": (first.shape, first.law),
        **{name: (tree, law_of(tree, trace, latency)) for name, tree in shapes.items()},
    }
    count = prompts.count if texts is None else texts
    after = following(prompts, int(trace.about["max_new_tokens"]))
    return {
        where: _errors(
            trace, ranking, compared, pair, encode(read_prompts(part)[:count], part, pair.tokenizer)
        )
        for where, part in (("the trace's own texts", prompts), ("what follows them", after))
    }


def _errors(
    trace: Trace,
    ranking: Ranking,
    shapes: Mapping[str, tuple[TreeShape, str]],
    pair: Pair,
    texts: Sequence[Prompt],
) -> dict[str, Any]:
    """Predicted and live tokens per step of each shape; the median error and the worst."""
    sampling = Sampling(**trace.sampling)
    errors: dict[str, dict[str, float]] = {}
    for name, (shape, drawn) in track(shapes.items(), description="live"):
        law = Law.of(drawn)
        rule = RULES[trace.rule] if drawn == trace.law else usual_rule(law, sampling)
        setting = (sampling, law, rule, int(trace.about["max_new_tokens"]))
        emitted = [
            step.verdict.emitted
            for i, prompt in enumerate(texts)
            for step in live_steps(pair, shape, prompt.ids, *setting, seed_of("advice", i))
        ]
        value, live_value = ranking.speed(shape, drawn).tokens, mean(emitted)
        errors[name] = {
            "predicted": value,
            "live": live_value,
            "error": value / live_value - 1,
        }
    worst = max(errors, key=lambda name: abs(errors[name]["error"]))
    return {
        "texts": len(texts),
        "shapes": errors,
        "median error": median(abs(error["error"]) for error in errors.values()),
        "worst": [errors[worst]["error"], worst],
    }


def chosen_among(pair: str, runs: Path, texts: int | None = None) -> dict[str, Any]:
    """The speed of `search_then_run`'s choice over the fastest of its run, by the run's adjusted times.

    An interrupted run continues. The expected duration is printed before the run starts, and the time left
    while it decodes.

    Args:
        pair: one of `PAIRS`.
        runs: folder of the run folders.
        texts: number of prompts for a trial, in a folder of its own; by default that of the config.
    """
    fewer = [] if texts is None else [f"prompts.count={texts}"]
    config = load_config("search_then_run", [*PAIRS[pair], *fewer])
    folder = runs / "-".join(["search_advice", pair, *map(str, filter(None, [texts]))])
    console = Console(stderr=True)
    plan = dry_run(config, folder=folder, console=console)
    if plan.seconds is not None:
        say(
            console,
            f"target of {pair}: about {clock(round(plan.seconds))} of decoding, besides the search",
        )
    loaded = load_run(run(config, folder=folder, console=console).folder)
    return {
        setting: {
            "chosen": choice.method,
            "fastest": choice.fastest,
            "over": list(choice.over),
            "fastest_by_other_half": choice.fair and choice.fair.right.label,
            "over_by_other_half": choice.fair and list(choice.fair.ratio),
            "advice": choice.advice,
        }
        for setting, choice in loaded.choices.items()
        if choice is not None
    }
