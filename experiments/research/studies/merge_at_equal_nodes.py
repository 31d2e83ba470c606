"""Compare merges with the best single source at as many nodes, on longer texts than `sources_by_size`.

    python -m treespec.experiments.research.studies.merge_at_equal_nodes [FOLDER] [--tokens 96]

`studies.sources_by_size` decodes 32 tokens of each text: 5 to 14 steps, so that one step more or less
decides. This study reads its FOLDER, with what the sources learned from other texts, and continues with
every single source that keeps the most tokens per step on some kind of text, or nearly as many, and with
the merges of at least one of them. Merges are compared by tokens per step only, which do not depend on the
machine's load. Models in merges draft as deep as the tree, alone at most six levels deep in trees, and as
deep as the merge in chains of 8 and 16. A stopped run continues.

The committed result is of 192 tokens (`--tokens 192`). The one before it, of 96 tokens, had wider
intervals: one of twelve lower bounds, on code at 8 nodes, was 0.96 and missed the goal of 0.97.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.config.file import load_config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.categories import by_category
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.table import Column, Table, interval, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.research.benchmarks.results_file import write
from treespec.experiments.research.studies import sources_by_size
from treespec.experiments.research.studies.sources_by_size import MERGE, SAMPLING, merged
from treespec.experiments.research.studies.studies import study_of_run
from treespec.search.intervals import Interval

NAME = "merge_at_equal_nodes"

LEAST_SHARE_OF_BEST = 0.9
"""Single sources that keep at least this share of the tokens per step of the best one are compared, too."""

FOLDER = Path("runs") / sources_by_size.NAME


def contenders(
    kept: Iterable[Mapping[str, float]], methods: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The single sources that were best, or nearly, at their size on some kind of text, and merges of
    at least one of them.

    `kept` holds, for each kind of text, new tokens per step by name of the method.
    """
    best: set[str] = set()
    for by_name in kept:
        singles = {
            name: tokens
            for name, tokens in by_name.items()
            if _size(name) and not name.startswith(MERGE)
        }
        for size in set(map(_size, singles)):
            of_size = [name for name in singles if _size(name) == size]
            least = LEAST_SHARE_OF_BEST * max(singles[name] for name in of_size)
            best |= {name for name in of_size if singles[name] >= least}
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
    """The size in the name of a method; empty for plain decoding."""
    _, of, size = name.rpartition(" of ")
    return size if of else ""


def _finished(folder: Path) -> Run:
    """The finished run of all sources."""
    try:
        before = load_run(folder)
    except TreespecError as error:
        raise typer.BadParameter(f"{error}; run studies.sources_by_size first") from None
    if not before.finished:
        raise typer.BadParameter(
            f"the run in {folder} is not finished: continue studies.sources_by_size first"
        )
    return before


def _kept_in_run(before: Run) -> list[dict[str, float]]:
    """New tokens per step in a run, by kind of text and method."""
    parts = by_category(before, before.measurements[SAMPLING]).values()
    return [{m.name: part.rate(m.name, "steps") for m in part.methods} for part in parts]


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of `sources_by_size`.")] = FOLDER,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = 96,
) -> None:
    """Choose the methods, run them, and save the ratios."""
    console = Console(width=140, soft_wrap=True)
    kept = _kept_in_run(_finished(folder / "run"))
    written = yaml.safe_load((folder / f"{sources_by_size.NAME}.yaml").read_text("utf-8"))
    methods = contenders(kept, written["methods"])
    written |= {"name": NAME, "max_new_tokens": tokens, "methods": methods}
    file = folder / f"{NAME}.yaml"
    if file.exists() and yaml.safe_load(file.read_text("utf-8")) != written:
        raise typer.BadParameter(
            f"{file} has other methods or another number of tokens: delete it and {folder / NAME} to begin "
            "anew"
        )
    file.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
    config = load_config(file)
    loaded = load_run(run(config, folder=folder / NAME, source=file, console=console).folder)
    study = study_of_run(loaded)
    study["figures"]["merges"] = [
        {key: row[key] for key in ("category", "prompts", "size", "merge", "tokens of all")}
        for row in merged(loaded)
    ]
    columns = [
        Column("texts", lambda row: f"{row['category']} ({row['prompts']})", left=True),
        Column("at most", lambda row: f"{row['size']} nodes"),
        keyed("merge of", "merge", left=True),
        Column("best single source", lambda row: row["tokens of all"]["best"], left=True),
        Column("merge over it", lambda row: interval(Interval(**row["tokens of all"]["ratio"]))),
    ]
    print_table(Table("new tokens per step", columns, study["figures"]["merges"]), console)
    say(console, f"written: {write(f'study-{NAME}', study)}")


if __name__ == "__main__":
    typer.run(main)
