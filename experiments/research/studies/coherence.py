"""Does causality within a block make branches of a tree coherent? Two-way and causal heads side by side.

    python -m treespec.experiments.research.studies.coherence FOLDER [FOLDER ...]

Each FOLDER is a finished `treespec train` with one two-way and one causal block head; several are several
seeds of training. The target answers prompts greedily, once; both heads draft at every position of the same
answers, and the same trees are replayed on what they drafted. A row of either head depends on the depth
alone once the tree is rooted, so what differs is how the rows were trained: after an accepted sibling, is
the next token right less often than a *fresh* draft, rooted at the same node, says? Each quantity stands
beside the difference, causal less two-way, with its interval over the same answers (for several seeds, over
their sums). The intervals do not hold the spread of training: seeds are shown one by one as well.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.draft import BlockDraft, ModelDrafter
from treespec.draft.trained.block_files import load_block
from treespec.errors import TreespecError
from treespec.experiments.config.schema import ChatPrompts, ModelsConfig, Prompts
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.right_shares import BELOW, SIBLING, SPINE, NextRight
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import Column, Table, interval
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.experiments.training.held_out_answers import TargetSays, answered
from treespec.experiments.training.metric import STATIC, recorded
from treespec.experiments.training.settings import TrainingConfig, load_training
from treespec.experiments.training.trained import Trained
from treespec.models.load import Pair
from treespec.protocols import Growth
from treespec.sampling.distributions import Sampling
from treespec.search.traces.next_right import accepted_nodes
from treespec.search.traces.replay import replay
from treespec.stopping import stop_at_tokens
from treespec.tree import Law, TreeShape

TREES = {
    "static tree of 16": STATIC,
    "binary tree of 15": TreeShape.kary(2, 3),
}
KINDS = {True: "causal", False: "two-way"}
ALL = "all seeds"

QUANTITIES: Mapping[str, tuple[tuple[float, Any, Any], ...]] = {
    "tokens per step": ((1.0, "emitted", "steps"),),
    "next right on the spine": ((1.0, (SPINE, "right"), (SPINE, "rows")),),
    "next right after a sibling": ((1.0, (SIBLING, "right"), (SIBLING, "rows")),),
    "fresh draft at the siblings' nodes": ((1.0, (SIBLING, "fresh"), (SIBLING, "compared")),),
    "sibling less spine": (
        (1.0, (SIBLING, "right"), (SIBLING, "rows")),
        (-1.0, (SPINE, "right"), (SPINE, "rows")),
    ),
    "sibling less fresh": (
        (1.0, (SIBLING, "right compared"), (SIBLING, "compared")),
        (-1.0, (SIBLING, "fresh"), (SIBLING, "compared")),
    ),
}
"""What is compared, as sums of shares below the root: factor, part and whole of each."""


def block_heads(folder: Path) -> dict[bool, str]:
    """The folders of the causal and of the two-way head of a training.

    Raises:
        ConfigError: if it has not just one of each.
    """
    found: dict[bool, str] = {}
    for path in sorted(folder.glob("*/result.json")):
        trained = Trained.read(path.parent)
        if trained is not None and trained.family == "block":
            causal = bool(trained.settings["causal"])
            if causal in found:
                raise ConfigError(
                    f"{folder} holds several {KINDS[causal]} block heads: train each seed into a folder of "
                    "its own, and name all folders"
                )
            found[causal] = str(path.parent / "head")
    if len(found) < 2:
        raise ConfigError(f"{folder} holds no two finished block heads, a causal and a two-way one")
    return found


def measured(says: TargetSays, head: str) -> dict[tuple[str, Any], Any]:
    """Counts of each answer, by tree and kind."""
    loaded = load_block(head, says.target)

    def make(tree: Growth | TreeShape) -> ModelDrafter:
        return BlockDraft(loaded, tree, Law.DETERMINISTIC, Sampling(0.0))

    trace = recorded(says, make).trace
    columns: dict[tuple[str, Any], Any] = {}
    for name, tree in TREES.items():
        found = replay(trace, tree)
        nodes = accepted_nodes(trace, found)
        assert nodes is not None, "answers are greedy"
        columns |= {(name, "emitted"): found.emitted, (name, "steps"): found.steps}
        totals = NextRight(nodes, trace.texts).totals.columns
        kinds = ("right", "rows", "fresh", "compared", "right compared")
        columns |= {
            (name, (place, kind)): totals[place, BELOW, kind]
            for place in (SPINE, SIBLING)
            for kind in kinds
        }
    return columns


def side_by_side(columns: Mapping[tuple[str, bool], Mapping[Any, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each tree, quantity and seed: both heads, and the causal one less the two-way one.

    Args:
        columns: of each seed and kind of head, counts of each answer as `measured` returns them.
    """
    seeds = list(dict.fromkeys(seed for seed, _ in columns))
    for shown in [*seeds, *([ALL] if len(seeds) > 1 else [])]:
        summed = {
            (causal, key): sum(columns[seed, causal][key] for seed in seeds if shown in (ALL, seed))
            for causal in KINDS
            for key in columns[seeds[0], causal]
        }
        totals = Totals.of(summed)
        for tree in TREES:
            for quantity, terms in QUANTITIES.items():
                of = {
                    causal: [(f, (causal, (tree, a)), (causal, (tree, b))) for f, a, b in terms]
                    for causal in KINDS
                }
                less = [(-factor, part, whole) for factor, part, whole in of[False]]
                values = {KINDS[causal]: totals.combined(of[causal]) for causal in KINDS}
                yield {
                    "seed": shown,
                    "tree": tree,
                    "quantity": quantity,
                    **values,
                    "difference": totals.combined([*of[True], *less]),
                    "nodes": sum(totals.observed[of[causal][0][2]] for causal in KINDS),
                }


def answers(
    config: TrainingConfig, pair: Pair, count: int, tokens: int, reporter: Reporter
) -> TargetSays:
    """The target's greedy answers to prompts that no training was measured on, where there are such."""
    prompts: Prompts = config.held_out.model_copy(update={"count": count})
    if isinstance(prompts, ChatPrompts):
        prompts = prompts.model_copy(update={"skip": 0})
    ids = [prompt.ids for prompt in encode(read_prompts(prompts)[:count], prompts, pair.tokenizer)]
    with reporter.task(f"the target answers {len(ids)} prompts"):
        said = answered(
            pair.target, ids, positions=tokens * len(ids), stop=stop_at_tokens(pair.end_tokens)
        )
    return TargetSays(pair.target, said)


def _cell(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: interval(row[key], 3)


COLUMNS: tuple[Column[Any], ...] = (
    Column("quantity", lambda row: row["quantity"], left=True),
    Column("two-way", _cell("two-way")),
    Column("causal", _cell("causal")),
    Column("causal less two-way", _cell("difference")),
)


def main(
    folders: Annotated[list[Path], typer.Argument(help="Finished trainings, one for each seed.")],
    count: Annotated[int, typer.Option(min=4, help="Number of prompts.")] = 96,
    tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 64,
    saved: Annotated[bool, typer.Option(help="Write the result file.")] = True,
) -> None:
    """Compare the heads; print and save the figures."""
    reporter = Reporter(Console())
    try:
        heads = {folder: block_heads(folder) for folder in folders}
        config = load_training(folders[0] / "config.yaml")
        models = ModelsConfig(target=config.target, draft="none", dtype="float32", passes=None)
        says = answers(config, load_models(models), count, tokens, reporter)
        columns = {}
        for folder, of_folder in heads.items():
            for causal, head in of_folder.items():
                with reporter.task(f"{folder}: the {KINDS[causal]} head drafts everywhere"):
                    columns[str(folder), causal] = measured(says, head)
    except TreespecError as error:
        raise typer.BadParameter(str(error)) from None
    rows = [*side_by_side(columns)]
    tables = [
        Table(
            tree, COLUMNS, [row for row in rows if (row["seed"], row["tree"]) == (seed, tree)],
            title=f"{tree}, {seed}",
        )
        for seed in dict.fromkeys(row["seed"] for row in rows)
        for tree in TREES
    ]  # fmt: skip
    figures = {"answers": len(says.texts), "positions": says.held_out.positions, "rows": rows}
    print_and_save("coherence", figures, *tables, width=120, saved=saved)


if __name__ == "__main__":
    typer.run(main)
