"""Compare the losses that a draft can be trained with, at equal tokens: what its trees keep live.

    treespec train distillation
    python -m treespec.experiments.research.studies.distillation [FOLDER]

Every draft of the training in FOLDER (`trained/distillation`) decodes the same held-out texts, as a chain
and as a tree, at temperatures 0 and 1; there the tree's children are drawn. The study writes the config
`runs/distillation/distillation.yaml` and runs it; a stopped run continues. Tokens per step are pooled over
prompts and seeds. The ratio of each loss to `forward_kl` is paired: both drafts of a seed begin with the
same weights and read the same batches, and all decode the same prompts.

The interval of a ratio covers other prompts and other seeds. Its variance is that over prompts, with the
seeds summed, plus that over seeds, with the prompts summed; each holds the chance of the draws at
temperature 1, so this counts twice, and the interval is rather too wide. Three seeds have two degrees of
freedom; those of the sum are Satterthwaite's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from jaxtyping import Float
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.cli.common import complain
from treespec.experiments.config.file import load_config
from treespec.experiments.errors import TrainingError
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.run import load_run
from treespec.experiments.report.statistics import LogRatio
from treespec.experiments.report.table import Column, Table, interval, keyed
from treespec.experiments.research.benchmarks.results_file import (
    of_manifest,
    path_of,
    print_parts,
    write,
)
from treespec.experiments.training.curves import OVERLAP, PANELS, save_curves
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.trained import Trained, by_draft
from treespec.files import write_whole
from treespec.search.intervals import Interval

NAME, BASE = "distillation", "forward_kl"
SHAPES = {
    "chain": {"kind": "chain", "depth": 4},
    "tree": {"kind": "expansion", "branching": [2, 2, 1, 1]},
}
SETTINGS = {
    # Only tokens and steps are compared, and a batch decodes them in a fraction of the time.
    "models": {"draft": "none", "dtype": "float32", "passes": "eager", "draft_passes": "eager"},
    "prompts": {"kind": "embedded", "count": 24, "tokens": 48},
    "max_new_tokens": 48,
    "samplings": [{"temperature": 0}, {"temperature": 1}],
    "batch": 24,
    "together": 1,
    "warmup": 0,
    "alone": 0,
    "trees": 0,
    "meters": [],
}

Counts = Float[np.ndarray, "seeds prompts"]


@dataclass(frozen=True)
class Kept:
    """What one draft keeps in one shape: new tokens and steps, by seed and prompt."""

    tokens: Counts
    steps: Counts

    @classmethod
    def of(cls, data: Measurements, group: Sequence[Trained], shape: str) -> "Kept":
        """Of a draft's seeds in a run of this study."""
        columns = (
            np.stack([data.values[method(one, shape), column] for one in group])
            for column in ("new_tokens", "steps")
        )
        return cls(*columns)

    def per_step(self) -> Interval:
        """Tokens per step."""
        return over_seeds([self.tokens], [self.steps])

    def over(self, other: "Kept") -> Interval:
        """Tokens per step, over those of another draft with the same seeds and prompts."""
        return over_seeds([self.tokens, other.steps], [self.steps, other.tokens])


def over_seeds(over: Sequence[Counts], under: Sequence[Counts]) -> Interval:
    """The product of the totals `over`, divided by that of the totals `under`, with a 95 % interval.

    Its two variances are those that the study's docstring names.
    """
    from scipy.special import stdtrit

    signed = [*((1, table) for table in over), *((-1, table) for table in under)]
    value = float(sum(sign * np.log(table.sum()) for sign, table in signed))
    shares = sum(sign * table.sum(0) / table.sum() for sign, table in signed)
    by_seed = sum(sign * np.log(table.sum(1)) for sign, table in signed)
    seeds, prompts = over[0].shape
    of_prompts = LogRatio.of(value, np.asarray(shares)).error ** 2
    of_seeds = float(np.var(by_seed, ddof=1)) / seeds
    error = of_prompts + of_seeds
    freedom = error**2 / (of_prompts**2 / (prompts - 1) + of_seeds**2 / (seeds - 1)) if error else 1
    width = float(stdtrit(freedom, 0.975)) * np.sqrt(error)
    return Interval(*(float(np.exp(value + sign * width)) for sign in (0, -1, 1)))


def method(one: Trained, shape: str) -> str:
    """Name of the method that decodes with a draft."""
    return f"{one.label}, {shape}"


def finished(folder: Path) -> dict[str, list[Trained]]:
    """The drafts of a training all of whose seeds are trained.

    Raises:
        TreespecError: if there is no training with several seeds, or `BASE` is not among its drafts.
    """
    config = load_training(folder / "config.yaml")
    groups: dict[str, list[Trained]] = {}
    for draft in config.trainings:
        if (one := Trained.read(folder / draft.label)) is not None:
            groups.setdefault(one.draft, []).append(one)
    whole = {name: group for name, group in groups.items() if len(group) == config.seeds > 1}
    if BASE not in whole:
        raise TrainingError(
            f"{folder} holds no draft {BASE!r} with all of several seeds: train it first, "
            f"`treespec train {NAME} --out {folder}`"
        )
    return whole


def config_of(groups: Mapping[str, Sequence[Trained]], folder: Path) -> str:
    """The config of the run, as YAML: every draft and seed in every shape."""
    methods = [
        {
            "kind": "tree",
            "name": method(one, shape),
            "draft": {"source": one.family, "model": str((folder / one.label / "head").resolve())},
            "shape": settings,
        }
        for group in groups.values()
        for one in group
        for shape, settings in SHAPES.items()
    ]
    # through JSON, for YAML writes what appears twice as an anchor
    plain = json.loads(json.dumps({"name": NAME, **SETTINGS, "methods": methods}))
    return yaml.safe_dump(plain, sort_keys=False)


def rows_of(
    measured: Mapping[str, Measurements], groups: Mapping[str, Sequence[Trained]]
) -> list[dict[str, Any]]:
    """One row for each draft, setting and shape: tokens per step, and their ratio to those of `BASE`."""
    rows = []
    for sampling, data in measured.items():
        for shape in SHAPES:
            base = Kept.of(data, groups[BASE], shape)
            for name, group in groups.items():
                kept = Kept.of(data, group, shape)
                rows.append(
                    {"sampling": sampling, "shape": shape, "draft": name}
                    | {"tokens": kept.per_step()}
                    | {"over": kept.over(base) if name != BASE else None}
                )
    return rows


def trained_of(groups: Mapping[str, Sequence[Trained]]) -> list[dict[str, Any]]:
    """The curves: what was measured on the way, by draft and seed."""
    keys = ("tokens", "loss", *PANELS, *OVERLAP)
    return [
        {"draft": one.draft, "seed": one.seed, "seconds": one.seconds}
        | {"curve": [{key: row[key] for key in keys} for row in one.curve]}
        for group in groups.values()
        for one in group
    ]


COLUMNS = (
    keyed("sampling", "sampling", left=True),
    keyed("shape", "shape", left=True),
    keyed("loss", "draft", left=True),
    Column[Mapping[str, Any]]("tokens/step", lambda row: interval(row["tokens"], 3)),
    Column[Mapping[str, Any]](f"over {BASE}", lambda row: interval(row["over"], 3)),
)


def said(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ratio of each loss to `BASE`, by setting and shape."""
    parts = []
    for sampling in dict.fromkeys(row["sampling"] for row in rows):
        for shape in SHAPES:
            ratios = [
                f"{row['draft']} {row['over'].text(3)}"
                for row in rows
                if (row["sampling"], row["shape"]) == (sampling, shape) and row["over"]
            ]
            parts.append(f"{sampling}, {shape}: {', '.join(ratios)}.")
    return f"Tokens per step over those of {BASE}. " + " ".join(parts)


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the training.")] = Path("trained")
    / NAME,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("runs") / NAME,
) -> None:
    """Decode with every trained draft; print and save tables, curves and the figure."""
    try:
        groups = finished(folder)
        file = out / f"{NAME}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, config_of(groups, folder))
        console = Console(width=140, soft_wrap=True)
        result = run(load_config(file), folder=out / "run", source=file, console=console)
        loaded = load_run(result.folder)
    except TreespecError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    rows = rows_of(loaded.measurements, groups)
    figures = {
        "inputs": groups[BASE][0].inputs,
        "settings": groups[BASE][0].settings,
        "trained": trained_of(groups),
        "rows": rows,
    }
    path = write(NAME, {**of_manifest(loaded.manifest), "figures": figures})
    curves = by_draft([one for group in groups.values() for one in group])
    save_curves(curves, path_of(NAME).with_suffix(".png"))
    print_parts(Table("live", COLUMNS, rows), said(rows), f"written: {path}", width=120)


if __name__ == "__main__":
    typer.run(main)
