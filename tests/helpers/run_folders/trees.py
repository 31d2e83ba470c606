"""Kept trees for the run folders of `run_folders.folders`, in agreement with their steps."""

import json
from collections.abc import Sequence
from pathlib import Path

from treespec.experiments.records.rows import TreeRow, to_frame, write_lines
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape

PIECES = (
    *("def", " walk", "(", "tree", "):", "\n", "    ", "for", " node", " in", " children", "\t"),
    *("</script>", "<b>", "&amp;", "’", "日本語", " internationalisation", "\u2028", ""),
)
"""Texts of tokens, hostile ones among them; the id of a token is its place."""


def write_trees(folder: Path, prompts: int = 2, pieces: Sequence[str] = PIECES) -> None:
    """Add `trees.jsonl`, and `trees.parquet` to a finished run, for the first prompts.

    Args:
        folder: as `write_run` made it.
        prompts: how many.
        pieces: texts of the tokens.
    """
    run = load_run(folder)
    methods = {m.name: m for m in run.methods}
    rows = []
    for row in run.steps.iter_rows(named=True):
        if row["prompt"] >= prompts:
            continue
        shape = TreeShape(methods[row["method"]].parents or (-1,))
        path = [0]
        for rank in row["path_ranks"]:
            path.append(shape.children[path[-1]][rank])
        tokens = [(7 * row["step"] + 3 * node) % len(pieces) for node in range(shape.size)]
        bonus = (row["step"] + 5) % len(pieces)
        rows.append(
            TreeRow(
                prompt=row["prompt"],
                sampling=row["sampling"],
                method=row["method"],
                repeat=0,
                step=row["step"],
                parents=list(shape.parents),
                tokens=tokens,
                pieces=[pieces[token] for token in tokens],
                path=path,
                bonus=bonus,
                bonus_piece=pieces[bonus],
            )
        )
    write_lines(folder / "trees.jsonl", rows)
    if json.loads((folder / "manifest.json").read_text())["finished"]:
        to_frame(rows, TreeRow).write_parquet(folder / "trees.parquet")
