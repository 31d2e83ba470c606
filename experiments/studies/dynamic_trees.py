"""Dynamic trees at an equal number of nodes: against the best static trees and chains, calibrated and not.

    python -m treespec.experiments.studies.dynamic_trees [KEY=VALUE ...]

Runs `experiments/configs/dynamic_trees.yaml`, and OPT-Tree with two planted maps beside it: one takes the
draft to be far too sure of itself (its log-odds are divided by 3), one far too unsure (multiplied by 3). No
step verifies more than 16 nodes. Tokens per step are compared, because these, and not times, are what a
growth policy decides about. Trees that choose among candidates are decided by `onehot` above temperature
0; so there are two static optima, one decided by `rrsw` and one by `onehot`: over the second, growth alone
counts. Intervals are 95 %, paired over prompts. Where the best of several is named it was chosen on the
other half of the prompts (`treespec.experiments.report.verdict`).
"""

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.shapes import OptTreeGrowth
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.statistics import Bootstrap, Interval
from treespec.experiments.report.verdict import Comparison, compare
from treespec.experiments.search_then_run.run import run
from treespec.search.rates.calibration import Calibration

PLANTED = {"taken for too sure": 3.0, "taken for too unsure": 1 / 3}
STATIC = "optimal 16"
ALIKE = f"{STATIC} (deterministic)"


@dataclass(frozen=True)
class Row:
    """A method under one sampling setting.

    Args:
        method: its name.
        tokens: per step.
        over_alike: over the static optimum that is decided by the same rule as trees of chosen children.
        over_static: over the static optimum under the usual rule.
    """

    method: str
    tokens: Interval
    over_alike: Interval
    over_static: Interval


def rows_of(data: Measurements) -> list[Row]:
    """The methods that are meant for this setting, the most tokens per step first."""
    totals, at = data.totals, data.sampling
    found = [
        Row(
            name,
            totals.ratio([(name, "new_tokens")], [(name, "steps")]),
            _over(totals, name, f"{ALIKE} for {at}"),
            _over(totals, name, f"{STATIC} for {at}"),
        )
        for name in _drafting(data)
    ]
    return sorted(found, key=lambda row: -row.tokens.estimate)


def duels(data: Measurements) -> list[Comparison]:
    """The best dynamic tree against static trees and chains; miscalibrated ones against chains."""
    names = _drafting(data)
    static = [name for name in names if name.startswith(STATIC)]
    chains = [name for name in names if name.startswith("chain")]
    dynamic = ("dynamic", [n for n in names if n not in (*static, *chains) and "taken" not in n])
    alike = [name for name in static if name.startswith(ALIKE)]
    choosing = ("dynamic", [n for n in dynamic[1] if not n.startswith("DySpec")])  # it draws: rrsw
    rivals = [("static", static), ("chain", chains)]
    planted = [(name, [name]) for name in names if "taken" in name]
    pairs = [
        (choosing, ("static of the same rule", alike)),
        *((dynamic, rival) for rival in rivals),
        *((own, ("chain", chains)) for own in planted),
    ]
    return [found for own, rival in pairs if (found := compare(data, own, rival, "steps"))]


def calibrations(data: Measurements) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Tokens per step over the same policy's as it is: calibrated, and OPT-Tree with planted maps."""
    totals, names = data.totals, _drafting(data)
    pairs = [(n, n.partition(", calibrated")[0]) for n in names if ", calibrated" in n]
    own = {name: _over(totals, name, plain) for name, plain in pairs}
    planted = {n: _over(totals, n, "OPT-Tree 16") for n in names if "taken" in n}
    return own, planted


def _drafting(data: Measurements) -> list[str]:
    """Trees and chains, but those that were searched or calibrated for another setting."""
    names = [m.name for m in data.methods if m.kind == "tree"]
    return [n for n in names if " for T=" not in n or n.endswith(f" for {data.sampling}")]


def _over(totals: Bootstrap, name: str, other: str) -> Interval:
    if name == other:
        return Interval(1.0, 1.0, 1.0)
    return totals.ratio(
        [(name, "new_tokens"), (other, "steps")], [(name, "steps"), (other, "new_tokens")]
    )


def printed(sampling: str, rows: list[Row]) -> Table:
    """The table of a setting."""
    table = Table("tree", "tokens/step", "over static, same rule", "over static, usual rule")
    table.title = f"16 nodes a step, {sampling}"
    for row in rows:
        table.add_row(row.method, *map(_text, (row.tokens, row.over_alike, row.over_static)))
    return table


def said(data: Measurements) -> str:
    """Two sentences: what dynamic trees are worth here, and what calibration is."""
    found = duels(data)
    ratios = [
        f"{_text(d.ratio)} of the best {d.right.family}"
        for d in found
        if d.left.family == "dynamic"
    ]
    against = [d.ratio.estimate for d in found if d.left.family != "dynamic"]
    own, planted = calibrations(data)
    gains, costs = ([x.estimate - 1 for x in found.values()] for found in (own, planted))
    decided = sum(not ratio.contains(1.0) for ratio in own.values())
    return (
        f"{data.sampling}: in tokens per step the best dynamic tree reaches {', '.join(ratios)}. "
        f"Calibrating the draft changes dynamic trees by {min(gains):+.1%} to {max(gains):+.1%} ({decided} "
        f"of {len(own)} distinguishable from no change), and planted miscalibration changes OPT-Tree by "
        f"{min(costs):+.1%} to {max(costs):+.1%}: {min(against):.2f}-{max(against):.2f} of the best chain."
    )


def _text(value: Interval) -> str:
    if not value.bounded or value.exact:
        return f"{value.estimate:.3f}"
    return f"{value.estimate:.3f} ({value.low:.3f}-{value.high:.3f})"


def figures_of(loaded: Run) -> dict[str, Any]:
    """Everything that is printed, as data."""
    found = {}
    for sampling, data in loaded.measurements.items():
        own, planted = calibrations(data)
        found[sampling] = {
            "rows": [asdict(row) for row in rows_of(data)],
            "duels": [asdict(duel) for duel in duels(data)],
            "calibrated_over_not": {name: asdict(ratio) for name, ratio in own.items()},
            "planted_over_not": {name: asdict(ratio) for name, ratio in planted.items()},
            "said": said(data),
        }
    return found


def main() -> None:
    """Run, print, save."""
    console = Console(width=120)
    config = load_config("dynamic_trees", sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        methods = list(config.methods)
        for name, temperature in PLANTED.items():
            path = Path(folder) / f"{len(methods)}.json"
            path.write_text(Calibration("temperature", temperature=temperature).to_json())
            shape = OptTreeGrowth(kind="opt_tree", size=16, depth=15, calibration=str(path))
            methods.append(TreeMethod(kind="tree", shape=shape, name=f"OPT-Tree 16, {name}"))
        planted = config.model_copy(update={"methods": tuple(methods)})
        result = run(planted, folder=Path(folder) / "run", console=Console(stderr=True))
        loaded = load_run(result.folder)
        for sampling, data in loaded.measurements.items():
            console.print(printed(sampling, rows_of(data)))
            console.print(said(data))
        console.print(f"written: {save('dynamic_trees', figures_of(loaded))}")


if __name__ == "__main__":
    main()
