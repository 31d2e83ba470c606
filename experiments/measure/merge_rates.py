"""Measure the acceptance rates that merges use, with each source alone on other texts, for configs.

    python -m treespec.experiments.measure.merge_rates [CONFIG] [key=value ...]

For each merge of the config (`merged`) and each of its sampling settings, every source alone decodes the
texts that follow those of the run: a model with a tree of 4, 3, 2 and 1 children per level, any other
source within the budget of the merge, with the law and the rule that it gets in a config of its own. How
often a child was accepted if its parent was, by depth and rank, is printed as the `rates` of the config.
"""

from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track

from treespec import TorchCoins, decode
from treespec.draft import acceptance_rates
from treespec.draft.rates import Rates
from treespec.experiments.config.build import BuiltMethod, build
from treespec.experiments.config.combined import MergeDraft
from treespec.experiments.config.file import load_config
from treespec.experiments.config.model_draft import source_of
from treespec.experiments.config.schema import Config, SearchConfig, TreeMethod
from treespec.experiments.config.shapes import ExpansionShape
from treespec.experiments.report.terminal import say
from treespec.experiments.run.inputs import read_by, require_readable
from treespec.experiments.run.models import load_models
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, behind, read_prompts, search_prompts
from treespec.experiments.run.seeds import seed_of
from treespec.models.load import Pair
from treespec.models.outline import PairOutline
from treespec.plugins import Settings
from treespec.step import Step
from treespec.stopping import stop_at_tokens
from treespec.target import make_target

WIDTHS = (4, 3, 2, 1)
"""Children per node on each level, for a source that drafts a given tree."""

FEWEST_TRIES = 20
"""A child needs to be drafted this often below an accepted node to have a rate."""

DIGITS = 2


def alone(method: TreeMethod, source: Settings) -> TreeMethod:
    """A method with one source of a merge alone."""
    shape = method.shape
    if source_of(source).trees == "any":
        depth = shape.depth  # pyrefly: ignore[missing-attribute]
        widths = (*WIDTHS[:depth], *[1] * (depth - len(WIDTHS)))
        shape = ExpansionShape(kind="expansion", branching=widths)
    return TreeMethod(kind="tree", draft=source, shape=shape)


def steps_of(
    built: BuiltMethod, sampling: str, pair: Pair, prompts: list[Prompt], config: Config
) -> Iterator[Step]:
    choice = built.choices[sampling]
    for prompt in track(prompts, description=f"{built.name}, {sampling}"):
        own = behind(pair, prompt)
        yield from decode(
            make_target(own.target),
            built.drafter(own, sampling),
            choice.rule,
            torch.tensor(prompt.ids),
            sampling=choice.sampling,
            coins=TorchCoins(seed_of(config.seed, "rates", prompt.key)),
            max_new_tokens=config.max_new_tokens,
            stop=stop_at_tokens(pair.end_tokens),
        )


def measured(config: Config) -> dict[str, dict[str, list[Rates]]]:
    """By merge and setting, the rates of each of its sources in order."""
    merges = [
        method
        for method in config.methods
        if isinstance(method, TreeMethod) and isinstance(method.draft, MergeDraft)
    ]
    reporter = Reporter(Console(stderr=True))
    prompts = search_prompts(config.model_copy(update={"search": SearchConfig()}))
    raw = read_prompts(prompts)[: prompts.count]
    methods = build(config).methods

    def inputs(models: Pair | PairOutline) -> list[Prompt]:
        texts = read_by(models, raw, prompts)
        for method in methods:
            if method.config in merges:
                require_readable(method, models, texts)
        return texts

    pair = load_with_passes(config.models, methods, load_models, reporter, check=inputs).pair
    texts = inputs(pair)
    known: dict[tuple[str, str], Rates] = {}
    by_merge: dict[str, dict[str, list[Rates]]] = {}
    for merge in merges:
        assert isinstance(merge.draft, MergeDraft)
        rates = by_merge[merge.name or merge.draft.label] = {}
        for source in merge.draft.sources:
            only = config.model_copy(update={"methods": (alone(merge, source),)})
            (built,) = build(only).ending(pair.end_tokens).methods
            for setting in config.samplings:
                key = built.name, setting.name
                if key not in known:
                    steps = steps_of(built, setting.name, pair, texts, only)
                    known[key] = acceptance_rates(steps, least=FEWEST_TRIES)
                rates.setdefault(setting.name, []).append(known[key])
    return by_merge


def written(rates: Rates) -> str:
    return "[" + ", ".join(f"[{', '.join(f'{x:.{DIGITS}g}' for x in row)}]" for row in rates) + "]"


def main(
    config: Annotated[str, typer.Argument(help="Name or file of a config.")] = "merged",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value")] = None,
) -> None:
    """Measure the rates, and print them as a config needs them."""
    console = Console(width=140, soft_wrap=True)
    for name, by_setting in measured(load_config(config, overrides or ())).items():
        say(console, f"{name}:\n  rates:")
        for setting, rates in by_setting.items():
            say(
                console,
                "\n".join(
                    [f"    {setting}:", *(f"      - {written(of_source)}" for of_source in rates)]
                ),
            )


if __name__ == "__main__":
    typer.run(main)
