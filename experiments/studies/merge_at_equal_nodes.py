"""Compare merges with the best single source at as many nodes, on longer texts than `sources_by_size`.

    python -m treespec.experiments.studies.merge_at_equal_nodes [FOLDER] [--tokens 96]

`studies.sources_by_size` decodes 32 tokens of each text: 5 to 14 steps, so that one step more or less
decides. This study reads its FOLDER, with what the sources learned from other texts, and continues with
every single source that keeps the most tokens per step on some kind of text, or nearly as many, and with
the merges of such sources. For these merges it measures `joint_rates` too, on held-out files that no
source learned from. Merges are compared by tokens per step only, which do not depend on the machine's
load. A stopped run continues.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from treespec.draft import joint_rates
from treespec.experiments.benchmarks.results_file import write
from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config
from treespec.experiments.report.categories import by_category
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.table import Column, Table, interval
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.run.models import load_models, load_own_drafts
from treespec.experiments.run.prompts import embedded_prompts
from treespec.experiments.search_then_run.run import run
from treespec.experiments.studies import sources_by_size
from treespec.experiments.studies.sources_by_size import (
    DEPTHS,
    FEWEST_TRIES,
    MERGE,
    OTHERS,
    SAMPLING,
    TOKENS,
    merged,
    rounded,
    steps,
)
from treespec.experiments.studies.studies import study_of_run
from treespec.search.intervals import Interval

NAME = "merge_at_equal_nodes"

NEARLY = 0.9
"""Single sources that keep at least this share of the tokens per step of the best one are compared, too."""

LEARNED_TOKENS = 192
"""New tokens after each held-out file from which joint rates are learned."""

FOLDER = Path("runs") / sources_by_size.NAME


def contenders(before: Run, methods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The single sources that were best, or nearly, at their size on some kind of text, and their merges.

    Args:
        before: the run of all sources.
        methods: the methods of its config.
    """
    best: set[str] = set()
    for part in by_category(before, before.measurements[SAMPLING]).values():
        kept = {
            method.name: part.totals.ratio(
                [(method.name, "new_tokens")], [(method.name, "steps")]
            ).estimate
            for method in part.methods
            if method.group != "plain" and not method.name.startswith(MERGE)
        }
        for size in {_size(name) for name in kept}:
            of_size = [name for name in kept if _size(name) == size]
            least = NEARLY * max(kept[name] for name in of_size)
            best |= {name for name in of_size if kept[name] >= least}
    sources = {(name.rpartition(", ")[0], _size(name)) for name in best}

    def merges_one(name: str) -> bool:
        merge = name.removeprefix(MERGE).rpartition(", ")[0]
        return any((source, _size(name)) in sources for source in merge.split(", "))

    return [
        method
        for method in methods
        if (name := method.get("name", "")) in best or (name.startswith(MERGE) and merges_one(name))
    ]


def _size(name: str) -> str:
    return name.rpartition(" of ")[2]


def with_joint_rates(config: dict[str, Any], texts: int = OTHERS) -> dict[str, Any]:
    """The config with `joint_rates` in each merge, measured with the merge itself on other texts.

    Args:
        config: a config whose methods are trees.
        texts: number of held-out files, after those that sources learned from.
    """
    built = build(Config.model_validate(config))
    pair = load_own_drafts(built.config.models, load_models(built.config.models), built.methods)
    prompts = embedded_prompts(pair.tokenizer, OTHERS + texts, TOKENS)[OTHERS:]
    ids = [list(prompt.ids) for prompt in prompts]
    for method, one in zip(config["methods"], built.methods, strict=True):
        if not one.name.startswith(MERGE):
            continue
        proposals = (
            (step, drafter.origins, drafter.ranks)
            for step, drafter in steps(
                pair, ids, lambda last, one=one: one.drafter(pair, SAMPLING), LEARNED_TOKENS
            )
        )
        rates = joint_rates(proposals, least=FEWEST_TRIES, depths=DEPTHS)
        by_sources = {sources: rounded(rows) for sources, rows in rates.items()}
        method["draft"]["joint_rates"] = {SAMPLING: by_sources}
    return config


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of `sources_by_size`.")] = FOLDER,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = 96,
) -> None:
    """Choose the methods, run them, and save the ratios."""
    console = Console(width=140, soft_wrap=True)
    file = folder / f"{NAME}.yaml"
    if not file.exists():
        written = yaml.safe_load((folder / f"{sources_by_size.NAME}.yaml").read_text("utf-8"))
        methods = contenders(load_run(folder / "run"), written["methods"])
        written |= {"name": NAME, "max_new_tokens": tokens, "methods": methods}
        written = json.loads(json.dumps(with_joint_rates(written)))  # without anchors in YAML
        file.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
    config = load_config(file)
    if config.max_new_tokens != tokens:
        raise typer.BadParameter(
            f"{file} is of {config.max_new_tokens} tokens; delete it and {folder / NAME} to begin anew",
            param_hint="--tokens",
        )
    finished = run(config, folder=folder / NAME, source=file, console=console)
    loaded = load_run(finished.folder)
    study = study_of_run(loaded)
    study["figures"]["merges"] = [
        {key: row[key] for key in ("category", "size", "merge", "tokens of all")}
        for row in merged(loaded)
    ]
    columns = [
        Column("texts", lambda row: row["category"], left=True),
        Column("at most", lambda row: f"{row['size']} nodes"),
        Column("merge of", lambda row: row["merge"], left=True),
        Column("best single source", lambda row: row["tokens of all"]["best"], left=True),
        Column("merge over it", lambda row: interval(Interval(**row["tokens of all"]["ratio"]))),
    ]
    print_table(Table("new tokens per step", columns, study["figures"]["merges"]), console)
    say(console, f"written: {write(f'study-{NAME}', study)}")


if __name__ == "__main__":
    typer.run(main)
