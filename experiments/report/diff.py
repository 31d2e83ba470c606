"""Compare two runs: the same methods on the same prompts, paired over prompts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import polars as pl
from pydantic import ValidationError
from rich.console import Console

from treespec.experiments.config.build import label_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.changes import differences, drafted
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.statistics import FEWEST_FOR_WINNER, Totals
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import NONE, Column, Table, interval
from treespec.experiments.report.terminal import print_table, say
from treespec.search.intervals import Interval

MOST_LISTED = 20


@dataclass(frozen=True)
class MethodDiff:
    """One method under one sampling setting, in both runs; ratios are B over A, prefill excluded.

    `prompts` counts those that both runs finished, `texts` the texts that can be equal (of prompts of the
    same length, no longer than both runs allow), `same_tokens` those that are, id by id, and `samples` the
    independent samples among the prompts.
    """

    sampling: str
    method: str
    prompts: int
    speed: Interval
    tokens_per_step: Interval
    same_tokens: int
    texts: int
    samples: int


@dataclass(frozen=True)
class RunDiff:
    """The comparison of two runs, and their differences, as `path: a -> b`.

    `warnings` are circumstances that can explain unexpected ratios, `not_compared` methods in both runs
    without a prompt that both finished, and `trees` how methods of the same name draft and decide.
    """

    a: str
    b: str
    warnings: tuple[str, ...]
    methods: tuple[MethodDiff, ...]
    not_compared: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    config: tuple[str, ...]
    trees: tuple[str, ...]


def compare_runs(a: RunRecords, b: RunRecords) -> RunDiff:
    """Compare the rows of two runs with the same method, sampling setting, prompt and repeat."""
    hashes = [run.manifest.get("prompts_hash") for run in (a, b)]
    same = hashes[0] is not None and hashes[0] == hashes[1]
    key = "prompt" if same else "prompt_id"
    limits = [run.manifest["config"].get("max_new_tokens") for run in (a, b)]
    shortest = min(limits) if None not in limits and limits[0] != limits[1] else None
    methods, not_compared = [], []
    cells_a, cells_b = (
        [(s["name"], m.name) for s in run.manifest["samplings"] for m in run.methods]
        for run in (a, b)
    )
    for cell in (cell for cell in cells_a if cell in cells_b):
        left, right = (run.prompts.filter(sampling=cell[0], method=cell[1]) for run in (a, b))
        paired = _paired(left, right, key)
        if len(paired[0]):
            methods.append(_method((a, b), cell, paired, key, shortest))
        else:
            errors = [len(rows) - rows["error"].null_count() for rows in (left, right)]
            not_compared.append(
                f"{': '.join(cell)}: no prompt that both finished "
                f"({errors[0]} errors in A, {errors[1]} errors in B)"
            )
    if not methods:
        example = f" ({not_compared[0]})" if not_compared else ""
        raise RunFolderError(
            f"{a.folder} and {b.folder} share nothing that both finished: no method with the same name, "
            f"under a sampling setting with the same name, on a prompt with the same id{example}"
        )
    return RunDiff(
        a=str(a.folder),
        b=str(b.folder),
        warnings=tuple(_warnings(a, b, same)),
        methods=tuple(methods),
        not_compared=tuple(not_compared),
        only_a=tuple(": ".join(cell) for cell in cells_a if cell not in cells_b),
        only_b=tuple(": ".join(cell) for cell in cells_b if cell not in cells_a),
        config=tuple(_config(a, b)),
        trees=tuple(differences(*_trees(a, b))),
    )


def _warnings(a: RunRecords, b: RunRecords, same_prompts: bool) -> Iterator[str]:
    if not same_prompts:
        yield (
            "the runs measured different prompts, or tokenized them differently: prompts with the same id "
            "are compared, although their texts may differ"
        )
    targets = [run.manifest["models"]["target"]["name"] for run in (a, b)]
    lengths, seeds = (
        [run.manifest["config"].get(name) for run in (a, b)] for name in ("max_new_tokens", "seed")
    )
    if lengths[0] != lengths[1]:
        yield (
            f"texts end after {lengths[0]} tokens in A and after {lengths[1]} in B: only texts that end "
            "before can be equal"
        )
    if targets[0] != targets[1]:
        yield f"the targets are different models ({targets[0]} and {targets[1]}): their texts are different"
    if seeds[0] != seeds[1] and any(s.get("temperature") for s in a.manifest["samplings"]):
        yield (
            f"the seeds are different ({seeds[0]} and {seeds[1]}): above temperature 0 texts are drawn anew"
        )
    for run in (a, b):
        if not run.finished:
            yield f"{run.folder} is not finished: only its prompts so far are compared"
    if hardware := differences(a.manifest["hardware"], b.manifest["hardware"]):
        yield f"the hardware differs: {'; '.join(hardware)}"
    if versions := differences(_versions(a), _versions(b)):
        yield f"the versions differ: {'; '.join(versions)}"


def _config(a: RunRecords, b: RunRecords) -> list[str]:
    configs = [dict(run.manifest["config"]) for run in (a, b)]
    left, right = (_named(config.pop("methods", ())) for config in configs)
    return [
        *differences(configs[0], configs[1]),
        *(f"methods: {name} -> none" for name in left if name not in right),
        *(f"methods: none -> {name}" for name in right if name not in left),
        *(
            line
            for name in left
            if name in right
            for line in differences(left[name], right[name], name)
        ),
    ]


def _named(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The methods of a config by name; methods that this version cannot name go by kind and position."""
    named = {}
    for i, method in enumerate(methods):
        name = method.get("name")
        if not name and method["kind"] == "tree":
            with suppress(ValidationError, KeyError):
                name = label_of(TreeMethod.model_validate(method))
        named[name or f"{method['kind']} ({i + 1})"] = method
    return named


def _trees(a: RunRecords, b: RunRecords) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trees, laws and rules of the methods in both runs: searched trees may differ under one name."""
    in_a, in_b = ({m["name"]: m for m in run.manifest["methods"]} for run in (a, b))
    tuned = [run.manifest.get("tuning", {}).get("assisted", {}) for run in (a, b)]
    left, right = (
        {
            f"{name}, tuned": {s: t["chosen"] for s, t in of_run[name].items()}
            for name in tuned[0]
            if name in tuned[1]
        }
        for of_run in tuned
    )
    shared = [name for name in in_a if name in in_b]
    for name in shared:
        one, other = in_a[name], in_b[name]
        left[name], right[name] = drafted(one, other), drafted(other, one)
    return left, right


def _paired(left: pl.DataFrame, right: pl.DataFrame, key: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows whose prompt and repeat are in both runs, for prompts on which none of these rows failed.

    Prompt ids that stand for several prompts are left out.
    """
    left, right = (
        rows.filter(pl.col("prompt").n_unique().over(key) == 1) for rows in (left, right)
    )
    a, b = (
        rows.join(other_run, on=[key, "repeat"], how="semi").filter(
            pl.col("error").is_null().all().over(key)
        )
        for rows, other_run in ((left, right), (right, left))
    )
    return a.join(b, on=key, how="semi"), b.join(a, on=key, how="semi")


def _method(
    runs: tuple[RunRecords, RunRecords],
    cell: tuple[str, str],
    rows: tuple[pl.DataFrame, pl.DataFrame],
    key: str,
    shortest: int | None,
) -> MethodDiff:
    """Compare the rows of one method on the same prompts, which the column `key` pairs.

    `shortest` is the smaller limit on new tokens, if the limits of the runs differ.
    """
    summed = ("new_tokens", "decode_s", "steps")
    sums = [
        of_run.group_by(key).agg(pl.col(*summed).sum(), number=pl.col("prompt").first()).sort(key)
        for of_run in rows
    ]
    columns = {
        (side, name): of_run[name]
        for side, of_run in zip("ab", sums, strict=True)
        for name in summed
    }
    files = [run.files_of(of_run["number"]) for run, of_run in zip(runs, sums, strict=True)]
    totals = Totals.of(columns, files=files[0] or files[1])
    left, right = (of_run.select(key, "repeat", "tokens", "prompt_tokens") for of_run in rows)
    texts = left.join(right, on=[key, "repeat"], suffix="_b")
    texts = texts.filter(pl.col("prompt_tokens") == pl.col("prompt_tokens_b"))
    if shortest is not None:
        longer = pl.max_horizontal(pl.col("tokens").list.len(), pl.col("tokens_b").list.len())
        texts = texts.filter(longer <= shortest)
    return MethodDiff(
        sampling=cell[0],
        method=cell[1],
        prompts=len(sums[0]),
        speed=speed_ratio(totals, "b", "a"),
        tokens_per_step=speed_ratio(totals, "b", "a", "steps"),
        same_tokens=int(texts["tokens"].eq(texts["tokens_b"]).sum()),
        texts=len(texts),
        samples=totals.samples,
    )


def _versions(run: RunRecords) -> dict[str, Any]:
    keys = ("schema_version", "treespec_version", "git_hash")
    return {key: run.manifest.get(key) for key in keys} | (run.manifest.get("versions") or {})


def _decided(entry: MethodDiff) -> str:
    if entry.samples < FEWEST_FOR_WINNER:
        return f"fewer than {FEWEST_FOR_WINNER} prompts"
    if entry.speed.contains(1.0):
        return "not decided"
    return "B is faster" if entry.speed.estimate > 1 else "A is faster"


COLUMNS = (
    Column[MethodDiff]("method", lambda entry: f"{entry.sampling}: {entry.method}", left=True),
    Column[MethodDiff]("prompts", lambda entry: str(entry.prompts)),
    Column[MethodDiff]("tok/s, B over A", lambda entry: interval(entry.speed)),
    Column[MethodDiff]("tok/step, B over A", lambda entry: interval(entry.tokens_per_step)),
    Column[MethodDiff](
        "same text",
        lambda entry: f"{entry.same_tokens}/{entry.texts}" if entry.texts else NONE,
    ),
    Column[MethodDiff]("", _decided, left=True),
)


def print_diff(diff: RunDiff, console: Console) -> None:
    say(console, f"A: {diff.a}")
    say(console, f"B: {diff.b}")
    for warning in diff.warnings:
        say(console, f"WARNING: {warning}", "bold yellow")
    print_table(Table("", COLUMNS, diff.methods, group=lambda entry: entry.sampling), console)
    for title, lines in (
        ("Not compared", diff.not_compared),
        ("Config, A -> B", diff.config),
        ("Trees and rules of methods with the same name, A -> B", diff.trees),
        ("Only in A", diff.only_a),
        ("Only in B", diff.only_b),
    ):
        if lines:
            say(console, f"\n{title}:")
            for line in lines[:MOST_LISTED]:
                say(console, f"  {line}")
            if len(lines) > MOST_LISTED:
                say(console, f"  ... and {len(lines) - MOST_LISTED} more")
    if not diff.config:
        say(console, "\nThe configs are the same.")
    say(
        console,
        "\nRatios are of totals over the common prompts, prefill excluded, with 95 % intervals, "
        "paired over prompts. They cover how prompts differ, but not how the machine differed "
        "between the runs: methods of one run take turns on the same machine, two runs do not.",
        "dim",
    )
