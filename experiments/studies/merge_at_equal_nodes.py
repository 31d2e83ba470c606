"""Compare merges with the best single source at as many nodes, on longer texts than `sources_by_size`.

    python -m treespec.experiments.studies.merge_at_equal_nodes [FOLDER] [--tokens 96]

`studies.sources_by_size` decodes 32 tokens of each text: 5 to 14 steps, so that one step more or less
decides. This study reads its FOLDER, with what the sources learned from other texts, and continues with the
methods that could be best: the merges that keep the most tokens per step on some kind of text, and every
single source that keeps nearly as many as the best one there. Merges are compared by tokens per
step only, which do not depend on the machine's load. A stopped run continues.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from treespec.experiments.benchmarks.results_file import write
from treespec.experiments.config.file import load_config
from treespec.experiments.report.categories import by_category
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.terminal import say
from treespec.experiments.search_then_run.run import run
from treespec.experiments.studies import sources_by_size
from treespec.experiments.studies.sources_by_size import MERGE, SAMPLING, merged
from treespec.experiments.studies.studies import study_of_run

NAME = "merge_at_equal_nodes"

NEARLY = 0.9
"""Single sources that keep at least this share of the tokens per step of the best one are compared, too."""

FOLDER = Path("runs") / sources_by_size.NAME


def contenders(loaded: Run) -> Iterator[str]:
    """Yield the methods that are best, or nearly, among merges or among single sources of their size."""
    for part in by_category(loaded, loaded.measurements[SAMPLING]).values():
        kept = {
            method.name: part.totals.ratio([(method.name, "new_tokens")], [(method.name, "steps")])
            for method in part.methods
            if method.group != "plain"
        }
        for size in dict.fromkeys(name.rpartition(" of ")[2] for name in kept):
            of_size = [name for name in kept if name.endswith(f" of {size}")]
            merges = [name for name in of_size if name.startswith(MERGE)]
            singles = [name for name in of_size if not name.startswith(MERGE)]
            yield max(merges, key=lambda name: kept[name].estimate)
            best = max(kept[name].estimate for name in singles)
            yield from (name for name in singles if kept[name].estimate >= NEARLY * best)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of `sources_by_size`.")] = FOLDER,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = 96,
) -> None:
    """Choose the methods, run them, and save the ratios."""
    console = Console(width=140, soft_wrap=True)
    file = folder / f"{NAME}.yaml"
    if not file.exists():
        before = load_run(folder / "run")
        chosen = set(contenders(before))
        config = yaml.safe_load((folder / f"{sources_by_size.NAME}.yaml").read_text("utf-8"))
        methods = [method for method in config["methods"] if method.get("name") in chosen]
        config |= {"name": NAME, "max_new_tokens": tokens, "methods": methods}
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    finished = run(load_config(file), folder=folder / NAME, source=file, console=console)
    loaded = load_run(finished.folder)
    study = study_of_run(loaded)
    study["figures"]["merges"] = [
        {key: row[key] for key in ("category", "size", "merge", "tokens of all")}
        for row in merged(loaded)
    ]
    say(console, f"written: {write(f'study-{NAME}', study)}")


if __name__ == "__main__":
    typer.run(main)
