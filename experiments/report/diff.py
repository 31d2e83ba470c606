"""Compare two runs: the same methods on the same prompts, with the paired bootstrap."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from pydantic import ValidationError
from rich.console import Console

from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.trees import label_of
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.changes import differences, drafted
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.statistics import bootstrap
from treespec.experiments.report.table import NONE, Column, Table, interval
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.report.verdict import LEAST_PROMPTS
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

__all__ = ["MethodDiff", "RunDiff", "compare_runs", "print_diff"]

MOST_LISTED = 20
"""Maximum number of listed differences between configs or methods; further ones are only counted."""


@dataclass(frozen=True)
class MethodDiff:
    """One method under one sampling setting, in both runs.

    Args:
        sampling: name of the setting.
        method: name of the method.
        prompts: number of prompts that both runs finished, counting the repeats that both have.
        speed: tokens per second of B over those of A, prefill excluded.
        tokens_per_step: tokens per step of B over those of A.
        same_tokens: number of texts that are equal, id by id.
        texts: number of texts that can be equal: both runs have one, their prompts have the same number of
            tokens, and neither text is longer than both runs allow.
    """

    sampling: str
    method: str
    prompts: int
    speed: Interval
    tokens_per_step: Interval
    same_tokens: int
    texts: int


@dataclass(frozen=True)
class RunDiff:
    """The comparison of two runs, and their differences.

    Args:
        a: folder of the first run.
        b: folder of the second run.
        same_prompts: whether the measured prompts are the same, token by token; if not, prompts with the
            same id are compared, whose text may differ.
        unequal: reasons why texts cannot be equal: other lengths, models, seeds or prompts.
        methods: methods present in both runs.
        not_compared: methods present in both runs without a prompt that both finished, each with the
            reason.
        only_a: sampling settings and methods that only the first run has.
        only_b: sampling settings and methods that only the second run has.
        config: config keys that differ, as `path: a -> b`; methods are identified by name.
        trees: methods of the same name whose trees, laws, rules or settings differ, as `path: a -> b`.
        versions: packages, code and schema that differ.
        hardware: differences between the machines.
        unfinished: folders of the runs that are not finished.
    """

    a: str
    b: str
    same_prompts: bool
    unequal: tuple[str, ...]
    methods: tuple[MethodDiff, ...]
    not_compared: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    config: tuple[str, ...]
    trees: tuple[str, ...]
    versions: tuple[str, ...]
    hardware: tuple[str, ...]
    unfinished: tuple[str, ...]


def compare_runs(a: RunRecords, b: RunRecords) -> RunDiff:
    """Compare the rows of two runs with the same method, sampling setting, prompt and repeat.

    Args:
        a: the first run, in the denominator of all ratios.
        b: the second run, in the numerator.

    Raises:
        RunFolderError: if no method has a prompt in common.
    """
    hashes = [run.manifest.get("prompts_hash") for run in (a, b)]
    same = hashes[0] is not None and hashes[0] == hashes[1]
    key = "prompt" if same else "prompt_id"
    limits = [run.manifest["config"].get("max_new_tokens") for run in (a, b)]
    shortest = min(limits) if None not in limits and limits[0] != limits[1] else None
    methods, only, not_compared = [], ([], []), []
    cells = [
        [(s["name"], m.name) for s in run.manifest["samplings"] for m in run.methods]
        for run in (a, b)
    ]
    for cell in dict.fromkeys([*cells[0], *cells[1]]):
        label, present = f"{cell[0]}: {cell[1]}", [cell in cells_of_run for cells_of_run in cells]
        if not all(present):
            only[present.index(True)].append(label)
            continue
        rows = _rows(a, cell), _rows(b, cell)
        left, right = _paired(*rows, key)
        if len(left):
            files = _files(a, left, key) or _files(b, right, key)
            methods.append(_method(cell, left, right, key, shortest, files))
        else:
            not_compared.append(f"{label}: {_why_not(*rows, key)}")
    if not methods:
        example = f" ({not_compared[0]})" if not_compared else ""
        raise RunFolderError(
            f"{a.folder} and {b.folder} share nothing that both finished: no method with the same name, "
            f"under a sampling setting with the same name, on a prompt with the same id{example}"
        )
    return RunDiff(
        a=str(a.folder),
        b=str(b.folder),
        same_prompts=same,
        unequal=tuple(_unequal(a, b, key)),
        methods=tuple(methods),
        not_compared=tuple(not_compared),
        only_a=tuple(only[0]),
        only_b=tuple(only[1]),
        config=tuple(_config(a, b)),
        trees=tuple(differences(*_trees(a, b))),
        versions=tuple(differences(_versions(a), _versions(b))),
        hardware=tuple(differences(_hardware(a), _hardware(b))),
        unfinished=tuple(str(run.folder) for run in (a, b) if not run.finished),
    )


def _unequal(a: RunRecords, b: RunRecords, key: str) -> list[str]:
    """Reasons why texts of these runs cannot be equal, whatever the methods do."""
    reasons = []
    targets = [run.manifest["models"]["target"]["name"] for run in (a, b)]
    lengths, seeds = (
        [run.manifest["config"].get(name) for run in (a, b)] for name in ("max_new_tokens", "seed")
    )
    if lengths[0] != lengths[1]:
        reasons.append(
            f"texts end after {lengths[0]} tokens in A and after {lengths[1]} in B: only texts that end "
            "before can be equal"
        )
    if targets[0] != targets[1]:
        reasons.append(
            f"the targets are different models ({targets[0]} and {targets[1]}): their texts are different"
        )
    if seeds[0] != seeds[1] and any(s.get("temperature") for s in a.manifest["samplings"]):
        reasons.append(
            f"the seeds are different ({seeds[0]} and {seeds[1]}): above temperature 0 texts are drawn anew"
        )
    if key == "prompt_id":
        sizes = [
            run.prompts.select(key, tokens="prompt_tokens").unique().unique(key, keep="none")
            for run in (a, b)
        ]
        shared = sizes[0].join(sizes[1], on=key)
        changed = shared.filter(pl.col("tokens") != pl.col("tokens_right")).height
        if changed:
            reasons.append(
                f"{changed} of {shared.height} prompts with the same id have different numbers of tokens "
                "in A and B: they are different prompts, and their texts cannot be equal"
            )
    return reasons


def _config(a: RunRecords, b: RunRecords) -> list[str]:
    """The differences between the configs; methods are matched by name, whatever their order."""
    configs = [dict(run.manifest["config"]) for run in (a, b)]
    left, right = (_named(config.pop("methods", ())) for config in configs)
    lines = differences(configs[0], configs[1])
    lines += [f"methods: {name} -> none" for name in left if name not in right]
    lines += [f"methods: none -> {name}" for name in right if name not in left]
    for name in left:
        if name in right:
            lines += differences(left[name], right[name], name)
    return lines


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


def _in_words(parents: Sequence[int]) -> str:
    """Describe a tree by its size and the sizes of its levels."""
    shape = TreeShape(tuple(parents))
    levels = "+".join(str(shape.depths.count(depth + 1)) for depth in range(shape.depth))
    return f"{shape.size - 1} draft tokens, by depth {levels}"


def _trees_in_words(
    left: dict[str, Any], right: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two methods of the same name, with their trees in words if the words differ."""
    trees = left.get("parents"), right.get("parents")
    if trees[0] is None or trees[1] is None or trees[0] == trees[1]:
        return left, right
    left_words, right_words = _in_words(trees[0]), _in_words(trees[1])
    if left_words == right_words:
        return left, right

    def described(method: dict[str, Any], words: str) -> dict[str, Any]:
        return {"tree": words} | {key: value for key, value in method.items() if key != "parents"}

    return described(left, left_words), described(right, right_words)


def _trees(a: RunRecords, b: RunRecords) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trees, laws and rules of the methods in both runs: searched trees may differ under one name."""
    methods = [{m["name"]: m for m in run.manifest["methods"]} for run in (a, b)]
    shared = [name for name in methods[0] if name in methods[1]]
    tuned = [run.manifest.get("tuning", {}).get("assisted", {}) for run in (a, b)]
    chosen = [
        {name: {s: t["chosen"] for s, t in settings.items()} for name, settings in of_run.items()}
        for of_run in tuned
    ]
    tuned_in_both = [name for name in chosen[0] if name in chosen[1]]
    left, right = ({f"{n}, tuned": of_run[n] for n in tuned_in_both} for of_run in chosen)
    for name in shared:
        in_a, in_b = methods[0][name], methods[1][name]
        left[name], right[name] = _trees_in_words(drafted(in_a, in_b), drafted(in_b, in_a))
    return left, right


def _rows(run: RunRecords, cell: tuple[str, str]) -> pl.DataFrame:
    return run.prompts.filter(pl.col("sampling") == cell[0], pl.col("method") == cell[1])


def _paired(left: pl.DataFrame, right: pl.DataFrame, key: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows whose prompt and repeat are in both runs, for prompts on which none of these rows failed.

    Prompt ids that stand for several prompts are left out.
    """
    left, right = (
        rows.filter(pl.col("prompt").n_unique().over(key) == 1) for rows in (left, right)
    )

    def finished(rows: pl.DataFrame, other_run: pl.DataFrame) -> pl.DataFrame:
        shared = rows.join(other_run, on=[key, "repeat"], how="semi")
        return shared.filter(pl.col("error").is_null().all().over(key))

    a, b = finished(left, right), finished(right, left)
    return a.join(b, on=key, how="semi"), b.join(a, on=key, how="semi")


def _why_not(left: pl.DataFrame, right: pl.DataFrame, key: str) -> str:
    """The reason why no prompt of a method is compared."""
    reasons = []
    for side, rows in (("A", left), ("B", right)):
        failed = len(rows) - rows["error"].null_count()
        if not len(rows):
            reasons.append(f"{side} has no rows for it")
        elif failed:
            reasons.append(f"in {side} {failed} of {len(rows)} rows hold an error")
    if len(left) and len(right) and not set(left[key]) & set(right[key]):
        reasons.append("no prompt is in both")
    return "no prompt that both finished" + (f" ({', '.join(reasons)})" if reasons else "")


def _method(
    cell: tuple[str, str],
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: str,
    shortest: int | None,
    files: Mapping[Any, int] | None,
) -> MethodDiff:
    """Compare the rows of one method on the same prompts.

    Args:
        cell: sampling setting and method.
        left: rows of the first run.
        right: rows of the second run.
        key: column that pairs prompts.
        shortest: the smaller limit on new tokens, if the limits of the runs differ.
        files: file that each prompt is an excerpt of, by `key`; None if the prompts are independent
            samples.
    """
    columns, keys = {}, list[Any]()
    for side, rows in (("a", left), ("b", right)):
        sums = (
            rows.group_by(key)
            .agg(pl.col("new_tokens").sum(), pl.col("decode_s").sum(), pl.col("steps").sum())
            .sort(key)
        )
        keys = sums[key].to_list()
        columns |= {
            (side, name): sums[name].to_numpy().astype(np.float64)
            for name in ("new_tokens", "decode_s", "steps")
        }
    totals = bootstrap(columns, files=None if files is None else [files[k] for k in keys])

    def ratio(column: str) -> Interval:
        over = [("b", "new_tokens"), ("a", column)]
        return totals.ratio(over, [("b", column), ("a", "new_tokens")])

    columns_of_text = key, "repeat", "tokens", "prompt_tokens"
    texts = left.select(columns_of_text).join(
        right.select(columns_of_text), on=[key, "repeat"], suffix="_b"
    )
    texts = texts.filter(pl.col("prompt_tokens") == pl.col("prompt_tokens_b"))
    if shortest is not None:
        longer = pl.max_horizontal(pl.col("tokens").list.len(), pl.col("tokens_b").list.len())
        texts = texts.filter(longer <= shortest)
    same = sum(
        x == y for x, y in zip(texts["tokens"].to_list(), texts["tokens_b"].to_list(), strict=True)
    )
    return MethodDiff(
        sampling=cell[0],
        method=cell[1],
        prompts=len(keys),
        speed=ratio("decode_s"),
        tokens_per_step=ratio("steps"),
        same_tokens=same,
        texts=len(texts),
    )


def _files(run: RunRecords, rows: pl.DataFrame, key: str) -> dict[Any, int] | None:
    """The file that each prompt is an excerpt of, by the column that pairs prompts; None without files."""
    if run.files is None:
        return None
    pairs = rows.select(pl.col(key).alias("key"), "prompt").unique().iter_rows()
    return {name: run.files[prompt] for name, prompt in pairs}


def _versions(run: RunRecords) -> dict[str, Any]:
    keys = ("schema_version", "treespec_version", "git_hash")
    return {key: run.manifest.get(key) for key in keys} | (run.manifest.get("versions") or {})


def _hardware(run: RunRecords) -> dict[str, Any]:
    return run.manifest.get("hardware") or {}


def _decided(entry: MethodDiff) -> str:
    ratio = entry.speed
    if entry.prompts < LEAST_PROMPTS:
        return f"fewer than {LEAST_PROMPTS} prompts"
    if ratio.contains(1.0):
        return "not decided"
    return "B is faster" if ratio.estimate > 1 else "A is faster"


def _same_text(entry: MethodDiff) -> str:
    return f"{entry.same_tokens}/{entry.texts}" if entry.texts else NONE


COLUMNS = (
    Column[MethodDiff]("method", lambda entry: f"{entry.sampling}: {entry.method}", left=True),
    Column[MethodDiff]("prompts", lambda entry: str(entry.prompts)),
    Column[MethodDiff]("tok/s, B over A", lambda entry: interval(entry.speed)),
    Column[MethodDiff]("tok/step, B over A", lambda entry: interval(entry.tokens_per_step)),
    Column[MethodDiff]("same text", _same_text),
    Column[MethodDiff]("", _decided, left=True),
)


def print_diff(diff: RunDiff, console: Console) -> None:
    """Print warnings, ratios and differences.

    Args:
        diff: comparison of two runs.
        console: console to print to.
    """
    say(console, f"A: {diff.a}")
    say(console, f"B: {diff.b}")
    for warning in _warnings(diff):
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
        "\nRatios are of totals over the common prompts, prefill excluded, with 95 % intervals of the "
        "paired bootstrap over prompts. They cover how prompts differ, but not how the machine differed "
        "between the runs: methods of one run take turns on the same machine, two runs do not.",
        "dim",
    )


def _warnings(diff: RunDiff) -> list[str]:
    """Circumstances that can explain unexpected ratios."""
    warnings = []
    if not diff.same_prompts:
        warnings.append(
            "the runs measured different prompts, or tokenized them differently: prompts with the same id "
            "are compared, although their texts may differ"
        )
    warnings += diff.unequal
    warnings += [
        f"{folder} is not finished: only its prompts so far are compared"
        for folder in diff.unfinished
    ]
    if diff.hardware:
        warnings.append(f"the hardware differs: {'; '.join(diff.hardware)}")
    if diff.versions:
        warnings.append(f"the versions differ: {'; '.join(diff.versions)}")
    return warnings
