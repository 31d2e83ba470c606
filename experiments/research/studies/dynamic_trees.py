"""Compare dynamic trees, calibrated and not, with the best static trees and chains of as many nodes.

    python -m treespec.experiments.research.studies.dynamic_trees [KEY=VALUE ...]

Run `experiments/configs/dynamic_trees.yaml`, plus OPT-Tree with two planted calibration maps: one treats
the draft as far too sure of itself (its log-odds are divided by 3), the other as far too unsure (multiplied
by 3). No step verifies more than 16 nodes. The study compares tokens per step, since a growth policy
decides about these and not about times. Above temperature 0, trees that choose among candidates are decided
by `onehot`. So there are two static optima, one decided by `rrsw` and one by `onehot`; a comparison with
the second isolates the growth. Intervals are 95 %, paired over prompts. Where the best of several methods
is named, it was chosen on the other half of the prompts (`treespec.experiments.report.verdict`).
"""

import tempfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.measure.searched_run import brief_run
from treespec.experiments.report.budgets import meant_for
from treespec.experiments.report.comparisons import Comparison, between, compare
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table, interval, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.search.growth.opt_tree import OptTreeGrowth
from treespec.search.traces.calibration import Calibration

PLANTED = {"taken for too sure": 3.0, "taken for too unsure": 1 / 3}
STATIC = "optimal 16"
ALIKE = f"{STATIC} (deterministic)"


Row = Mapping[str, Any]


def rows_of(data: Measurements) -> list[Row]:
    """The methods that are meant for this setting, sorted by tokens per step, largest first.

    Each row has the name of the `method`, its `tokens` per step, and these over the static optimum with the
    rule for trees of chosen children (`over_alike`), and with the usual rule (`over_static`).
    """
    totals, setting = data.totals, data.sampling
    rows = [
        {
            "method": name,
            "tokens": totals.ratio([(name, "new_tokens")], [(name, "steps")]),
            "over_alike": speed_ratio(totals, name, f"{ALIKE} for {setting}", "steps"),
            "over_static": speed_ratio(totals, name, f"{STATIC} for {setting}", "steps"),
        }
        for name in _drafting(data)
    ]
    return sorted(rows, key=lambda row: -row["tokens"].estimate)


def duels(data: Measurements) -> list[Comparison]:
    """Compare the best dynamic tree with static trees and chains, and miscalibrated trees with chains."""
    names = _drafting(data)
    static = [name for name in names if name.startswith(STATIC)]
    chains = [name for name in names if name.startswith("chain")]
    dynamic = ("dynamic", [n for n in names if n not in (*static, *chains) and "taken" not in n])
    same_rule = [name for name in static if name.startswith(ALIKE)]
    # DySpec draws its children, so rrsw decides about them.
    choosing = ("dynamic", [n for n in dynamic[1] if not n.startswith("DySpec")])
    pairs = [
        (choosing, ("static of the same rule", same_rule)),
        (dynamic, ("static", static)),
        (dynamic, ("chain", chains)),
        *(((name, [name]), ("chain", chains)) for name in names if "taken" in name),
    ]
    return [duel for left, right in pairs if (duel := compare(data, between(left, right), "steps"))]


def _drafting(data: Measurements) -> list[str]:
    """Names of trees and chains, except those searched or calibrated for another setting."""
    return [m.name for m in data.methods if m.kind == "tree" and meant_for(m, data.sampling)]


COLUMNS = (
    keyed("tree", "method", left=True),
    Column[Row]("tokens/step", lambda row: interval(row["tokens"], 3)),
    Column[Row]("over static,\nsame rule", lambda row: interval(row["over_alike"], 3)),
    Column[Row]("over static,\nusual rule", lambda row: interval(row["over_static"], 3)),
)


def figures_of(data: Measurements) -> dict[str, Any]:
    """The findings under one setting.

    `calibrated_over_not` holds the tokens per step of calibrated policies over the plain policy, and
    `planted_over_not` those of OPT-Tree with planted maps.
    """
    totals, names = data.totals, _drafting(data)
    calibrated = {
        n: speed_ratio(totals, n, n.partition(", calibrated")[0], "steps")
        for n in names
        if ", calibrated" in n
    }
    planted = {n: speed_ratio(totals, n, "OPT-Tree 16", "steps") for n in names if "taken" in n}
    return {
        "rows": rows_of(data),
        "duels": duels(data),
        "calibrated_over_not": calibrated,
        "planted_over_not": planted,
    }


def said(figure: Mapping[str, Any]) -> str:
    """The best dynamic trees over static ones and chains, and what calibration changes."""
    ratios = [f"{d.left.label} over {d.right.label}: {d.ratio.text(3)}" for d in figure["duels"]]
    maps = figure["calibrated_over_not"] | figure["planted_over_not"]
    return "; ".join([*ratios, *(f"{name} over none: {r.text(3)}" for name, r in maps.items())])


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
) -> None:
    """Run the config `dynamic_trees` plus planted calibrations; print and save the findings."""
    config = load_config("dynamic_trees", overrides or [])
    with tempfile.TemporaryDirectory() as folder:
        methods = list(config.methods)
        for name, temperature in PLANTED.items():
            path = Path(folder) / f"{len(methods)}.json"
            path.write_text(Calibration("temperature", temperature=temperature).to_json())
            shape = OptTreeGrowth(kind="opt_tree", size=16, depth=15, calibration=str(path))
            methods.append(TreeMethod(kind="tree", shape=shape, name=f"OPT-Tree 16, {name}"))
        planted = config.model_copy(update={"methods": tuple(methods)})
        with brief_run(planted, console=Console(stderr=True)) as loaded:
            figures = {sampling: figures_of(data) for sampling, data in loaded.measurements.items()}
    shown = [
        (Table(f"16 nodes a step, {sampling}", COLUMNS, figure["rows"]), said(figure))
        for sampling, figure in figures.items()
    ]
    print_and_save("dynamic_trees", figures, *chain.from_iterable(shown), width=120)


if __name__ == "__main__":
    typer.run(main)
