"""Dynamic trees at an equal number of nodes: against the best static tree and chains, calibrated and not.

    python -m experiments.benchmarks.dynamic_trees [KEY=VALUE ...]

Runs `experiments/configs/dynamic_trees.yaml`, and OPT-Tree with two planted maps beside it: one takes the
draft to be far too sure of itself (its log-odds are divided by 3), one far too unsure (multiplied by 3). No
step verifies more than 16 nodes. Tokens per step are compared, because these, and not times, are what a
growth policy decides about. Intervals are 95 %, paired over prompts. The best chain is named by its own
tokens per step on the same prompts, which flatters it.
"""

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.benchmarks.results_file import save
from experiments.config import TreeMethod
from experiments.config_file import load_config
from experiments.config_shapes import OptTreeGrowth
from experiments.loading import Run, load_run
from experiments.measurements import measure, samplings_of
from experiments.runner import run
from experiments.statistics import Bootstrap, Interval
from search.calibration import Calibration

PLANTED = {"taken for too sure": 3.0, "taken for too unsure": 1 / 3}
STATIC = "optimal 16 for"


@dataclass(frozen=True)
class Row:
    """A method under one sampling setting: tokens per step, and over the best static tree and chain."""

    method: str
    tokens: Interval
    over_static: Interval
    over_chain: Interval


def rows_of(loaded: Run, sampling: str) -> list[Row]:
    """The methods that are meant for this setting, the most tokens per step first."""
    data = measure(loaded, sampling)
    totals = data.bootstrap()
    names = [m.name for m in data.methods if m.kind == "tree" and _meant_for(m.name, sampling)]
    chains = [m.name for m in data.methods if m.group == "chain" and STATIC not in m.name]
    best = max(chains, key=lambda name: _tokens(totals, name).estimate)
    static = f"{STATIC} {sampling}"
    found = [
        Row(name, _tokens(totals, name), _over(totals, name, static), _over(totals, name, best))
        for name in names
    ]
    return sorted(found, key=lambda row: -row.tokens.estimate)


def _meant_for(name: str, sampling: str) -> bool:
    return " for T=" not in name or name.endswith(f" for {sampling}")


def _tokens(totals: Bootstrap, name: str) -> Interval:
    return totals.ratio([(name, "new_tokens")], [(name, "steps")])


def _over(totals: Bootstrap, name: str, other: str) -> Interval:
    if name == other:
        return Interval(1.0, 1.0, 1.0)
    return totals.ratio(
        [(name, "new_tokens"), (other, "steps")], [(name, "steps"), (other, "new_tokens")]
    )


def printed(sampling: str, rows: list[Row]) -> Table:
    """The table of a setting."""
    table = Table("tree", "tokens/step", "over the static optimum", "over the best chain")
    table.title = f"16 nodes a step, {sampling}"
    for row in rows:
        table.add_row(row.method, *map(_text, (row.tokens, row.over_static, row.over_chain)))
    return table


def said(rows: list[Row]) -> str:
    """Two sentences: what dynamic trees are worth here, and what calibration is."""
    fixed = ("optimal", "chain")
    dynamic = [row for row in rows if not row.method.startswith(fixed)]
    own = [r for r in dynamic if "taken for" not in r.method and "calibrated" not in r.method]
    best = own[0]
    pairs = [
        (row, after)
        for row in own
        for after in dynamic
        if after.method.startswith(f"{row.method}, calibrated")
    ]
    gains = [after.tokens.estimate / before.tokens.estimate - 1 for before, after in pairs]
    planted = [row for row in dynamic if "taken for" in row.method]
    plain = next(row for row in own if row.method.startswith("OPT-Tree"))
    costs = [1 - row.tokens.estimate / plain.tokens.estimate for row in planted]
    return (
        f"The best dynamic tree ({best.method}) brings {_text(best.over_static)} times the tokens per "
        f"step of the static optimum and {_text(best.over_chain)} times those of the best chain. "
        f"Calibrating the draft changes dynamic trees by {min(gains):+.1%} to {max(gains):+.1%}, and "
        f"planted miscalibration costs OPT-Tree {min(costs):.1%} to {max(costs):.1%}."
    )


def _text(value: Interval) -> str:
    if not value.bounded or value.exact:
        return f"{value.estimate:.3f}"
    return f"{value.estimate:.3f} ({value.low:.3f}-{value.high:.3f})"


def main() -> None:
    """Run, print, save."""
    console = Console(width=120)
    config = load_config("dynamic_trees", sys.argv[1:])
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        methods = list(config.methods)
        for name, temperature in PLANTED.items():
            path = Path(folder) / f"{len(methods)}.json"
            path.write_text(Calibration("temperature", temperature=temperature).to_json())
            shape = OptTreeGrowth(kind="opt_tree", size=16, depth=8, calibration=str(path))
            methods.append(TreeMethod(kind="tree", shape=shape, name=f"OPT-Tree 16, {name}"))
        planted = config.model_copy(update={"methods": tuple(methods)})
        result = run(planted, folder=Path(folder) / "run", console=Console(stderr=True))
        loaded = load_run(result.folder)
        for sampling in samplings_of(loaded):
            rows = rows_of(loaded, sampling)
            console.print(printed(sampling, rows))
            console.print(said(rows))
            figures[sampling] = {
                "rows": [asdict(row) for row in rows],
                "said": said(rows),
            }
    console.print(f"written: {save('dynamic_trees', figures)}")


if __name__ == "__main__":
    main()
