"""Acceptance in real texts, recorded once and replayed step by step: timed trees keep what real ones keep.

    treespec run experiments/research/benchmarks/gpu/real_text.yaml --out runs/real_text
    python -m treespec.experiments.research.benchmarks.gpu.real_text runs/real_text

writes `real_text.json`: for each method, for each text, the ranks of the accepted children of each step.
The numbers of tokens of a replay are those of this pair and these texts; a model of another size accepts
others. What stays is that steps differ, as they do in a text, and do not in a loop of few tokens.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.checked import TargetRows
from treespec.verify.rule import Rule

TRACE = Path(__file__).with_suffix(".json")

Steps = Sequence[Sequence[int]]
"""The ranks of the accepted children of each step."""


class ReplayedAcceptance(Rule):
    """A rule that accepts what recorded steps accepted, one after another, and then from the first again.

    The tokens and the target's rows decide nothing but the bonus: texts are meaningless, times are not. It
    runs on the host, so each step waits once for the device.

    Args:
        steps: for trees of the shape that is drafted.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps: Iterator[Sequence[int]] = cycle(steps)
        super().__init__(
            self.replayed, laws=Law, mixes=Law, reference="a recorded text", lossless=False
        )

    def replayed(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Lossy: accept the children that the recorded step accepted. The texts are meaningless."""
        path = [0]
        for rank in next(self._steps):
            path.append(tree.shape.children[path[-1]][rank])
        rows = TargetRows.of(tree, target_probs)
        bonus = rows.greedy_token(path[-1])
        return Verdict(tuple(path), int(rows[path[-1]].argmax()) if bonus is None else bonus)


@cache
def _trace() -> dict[str, Any]:
    return json.loads(TRACE.read_text(encoding="utf-8"))


def replayed(method: str, text: int) -> ReplayedAcceptance:
    """Replays the steps of a method, beginning with those of one of the texts (counted from 0)."""
    texts: list[str] = _trace()["methods"][method]
    first = text % len(texts)
    steps = " ".join(texts[first:] + texts[:first]).split()
    return ReplayedAcceptance([[int(rank) for rank in step[1:]] for step in steps])


def origin() -> str:
    """What the trace was recorded from, in one sentence."""
    return _trace()["origin"]


def main(run: Annotated[Path, typer.Argument(help="folder of the run")]) -> None:
    """Record the accepted children of a run's steps."""
    import polars as pl

    config = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["config"]
    names = [method["name"] for method in config["methods"]]
    steps = pl.read_parquet(run / "steps.parquet").filter(pl.col("method").is_in(names))
    methods: dict[str, list[str]] = {}
    for (method, _), own in steps.group_by(["method", "prompt"], maintain_order=True):
        ranks = own.sort("step")["path_ranks"].to_list()
        # A dash begins each step, since many accept nothing.
        text = " ".join("-" + "".join(map(str, step)) for step in ranks)
        methods.setdefault(str(method), []).append(text)
    data = {
        "origin": f"{config['models']['target']}, {config['methods'][0]['draft']['model']}, greedy, "
        f"{len(next(iter(methods.values())))} chat prompts of {config['max_new_tokens']} new tokens",
        "methods": methods,
    }
    TRACE.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for name, texts in methods.items():
        every = " ".join(texts).split()
        print(f"{name}: {len(every)} steps, {sum(map(len, every)) / len(every):.3f} tokens a step")


if __name__ == "__main__":
    typer.run(main)
