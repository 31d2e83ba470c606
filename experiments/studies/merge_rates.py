"""Measure the acceptance rates that merges use, with each source alone on other texts, for configs.

    python -m treespec.experiments.studies.merge_rates [CONFIG] [key=value ...]

For each merge of the config (`merged`) and each of its sampling settings, every source alone decodes the
texts that follow those of the run: a model with a tree of 4, 3, 2 and 1 children per level, any other
source within the budget of the merge, with the law and the rule that it gets in a config of its own. How
often a child was accepted if its parent was, by depth and rank, is printed as the `rates` of the config.
Then the merge itself, with these rates, decodes the same texts: how often a deterministic child was
accepted, by the exact set of sources that drafted it, is printed as the `joint_rates`.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import track

from treespec import TorchCoins, decode
from treespec.draft import Merge, acceptance_rates, joint_rates
from treespec.draft.rates import Rates
from treespec.experiments.config.build import BuiltMethod, build
from treespec.experiments.config.combined import MergeDraft
from treespec.experiments.config.drafts import source_of
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config, SearchConfig, TreeMethod
from treespec.experiments.config.shapes import ExpansionShape
from treespec.experiments.report.terminal import say
from treespec.experiments.run.models import load_models, load_own_drafts
from treespec.experiments.run.prompts import encode, read_prompts, search_prompts
from treespec.experiments.run.unit import seed_of
from treespec.models.load import Pair
from treespec.plugins import Settings
from treespec.protocols import Drafter
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
    built: BuiltMethod, sampling: str, pair: Pair, texts: list[list[int]], config: Config
) -> Iterator[tuple[Step, Drafter]]:
    """Decode all texts and yield every step with its drafter."""
    choice = built.choices[sampling]
    for i, text in enumerate(track(texts, description=f"{built.name}, {sampling}")):
        drafter = built.drafter(pair, sampling)
        for step in decode(
            make_target(pair.target),
            drafter,
            choice.rule,
            torch.tensor(text),
            sampling=choice.sampling,
            coins=TorchCoins(seed_of(config.seed, "rates", i)),
            max_new_tokens=config.max_new_tokens,
            stop=stop_at_tokens(pair.end_tokens),
        ):
            yield step, drafter


class Measured(NamedTuple):
    """The rates of a merge, by sampling setting.

    Args:
        rates: the rates of each of its sources, in order.
        joint_rates: rates by sources that draft the same node; none without deterministic nodes.
    """

    rates: dict[str, list[Rates]]
    joint_rates: dict[str, dict[str, Rates]]


def measured(config: Config) -> dict[str, Measured]:
    """The rates of each merge of the config, by its name."""
    merges = [
        method
        for method in config.methods
        if isinstance(method, TreeMethod) and isinstance(method.draft, MergeDraft)
    ]
    drafts = {built.name: built for built in build(config).methods}
    pair = load_own_drafts(config.models, load_models(config.models), drafts.values())
    prompts = search_prompts(config.model_copy(update={"search": SearchConfig()}))
    raw = read_prompts(prompts)[: prompts.count]
    texts = [list(prompt.ids) for prompt in encode(raw, prompts, pair.tokenizer)]
    known: dict[tuple[str, str], Rates] = {}
    by_merge: dict[str, Measured] = {}
    for merge in merges:
        assert isinstance(merge.draft, MergeDraft)
        rates: dict[str, list[Rates]] = {}
        for source in merge.draft.sources:
            only = config.model_copy(update={"methods": (alone(merge, source),)})
            (built,) = build(only).methods
            for setting in config.samplings:
                key = built.name, setting.name
                if key not in known:
                    steps = steps_of(built, setting.name, pair, texts, only)
                    known[key] = acceptance_rates((step for step, _ in steps), least=FEWEST_TRIES)
                rates.setdefault(setting.name, []).append(known[key])
        shared = {"rates": rates, "joint_rates": None, "budgets": None}
        method = merge.model_copy(update={"draft": merge.draft.model_copy(update=shared)})
        only = config.model_copy(update={"methods": (method,)})
        (built,) = build(only).methods
        joint = {
            setting.name: joint_rates(
                (
                    (step, drafter.origins, drafter.ranks)
                    for step, drafter in steps_of(built, setting.name, pair, texts, only)
                    if isinstance(drafter, Merge)
                ),
                least=FEWEST_TRIES,
            )
            for setting in config.samplings
        }
        by_merge[merge.name or merge.draft.label] = Measured(
            rates, {setting: by_sources for setting, by_sources in joint.items() if by_sources}
        )
    return by_merge


def written(rates: Rates) -> str:
    """The rates as text for a config."""
    return "[" + ", ".join(f"[{', '.join(f'{x:.{DIGITS}g}' for x in row)}]" for row in rates) + "]"


def main(
    config: Annotated[str, typer.Argument(help="Name or file of a config.")] = "merged",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value")] = None,
) -> None:
    """Measure the rates, and print them as a config needs them."""
    console = Console(width=140, soft_wrap=True)
    for name, (rates, joint) in measured(load_config(config, overrides or ())).items():
        lines = [f"{name}:", "  rates:"]
        for setting, by_source in rates.items():
            lines += [f"    {setting}:", *(f"      - {written(rows)}" for rows in by_source)]
        lines += ["  joint_rates:"] if joint else []
        for setting, by_sources in joint.items():
            lines.append(f"    {setting}:")
            lines += [f"      {sources}: {written(rows)}" for sources, rows in by_sources.items()]
        say(console, "\n".join(lines))


if __name__ == "__main__":
    typer.run(main)
