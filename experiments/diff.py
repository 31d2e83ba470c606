"""Two runs compared: the same methods on the same prompts, with the paired bootstrap."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.errors import RunFolderError
from experiments.loading import Run
from experiments.manifest import differences
from experiments.statistics import Interval, bootstrap

if TYPE_CHECKING:
    import polars as pl

__all__ = ["MethodDiff", "RunDiff", "compare_runs"]


@dataclass(frozen=True)
class MethodDiff:
    """One method under one sampling setting, in both runs.

    Args:
        sampling: name of the setting.
        method: name of the method.
        prompts: that both runs finished.
        speed: tokens per second of B over those of A, prefill excluded.
        tokens_per_step: of B over that of A.
        same_tokens: texts that are equal, id by id.
        texts: that there are two of.
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
    """What two runs have in common, and what they do not.

    Args:
        a: folder of the first run.
        b: folder of the second.
        same_prompts: the measured prompts are the same, token by token; otherwise those with the same id
            are compared, whose text may differ.
        methods: present in both.
        only_a: sampling and method that only the first has.
        only_b: likewise.
        config: keys that differ, as `path: a -> b`.
        trees: methods of one name whose trees, laws, rules or tuned settings differ, in the same form.
        versions: packages, code and schema that differ.
        hardware: what differs of the machine.
        unfinished: the runs, of `a` and `b`, that have not come to their end.
    """

    a: str
    b: str
    same_prompts: bool
    methods: tuple[MethodDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    config: tuple[str, ...]
    trees: tuple[str, ...]
    versions: tuple[str, ...]
    hardware: tuple[str, ...]
    unfinished: tuple[str, ...]


def compare_runs(a: Run, b: Run) -> RunDiff:
    """Compare two runs.

    Args:
        a: the denominator of all ratios.
        b: the numerator.

    Raises:
        RunFolderError: if no method of theirs has a prompt in common.
    """
    import polars as pl

    hashes = [run.manifest.get("prompts_hash") for run in (a, b)]
    same = hashes[0] is not None and hashes[0] == hashes[1]
    key = "prompt" if same else "prompt_id"
    found, only = [], ([], [])
    pairs = [
        [(s["name"], m.name) for s in run.manifest["samplings"] for m in run.methods]
        for run in (a, b)
    ]
    for place in dict.fromkeys([*pairs[0], *pairs[1]]):
        rows = [_rows(run, place) for run in (a, b)]
        there = [len(frame) > 0 for frame in rows]
        if all(there):
            common = set(rows[0][key]) & set(rows[1][key])
            kept = [frame.filter(pl.col(key).is_in(list(common))) for frame in rows]
            kept = [_finished(frame, key) for frame in kept]
            common = set(kept[0][key]) & set(kept[1][key])
            if common:
                left, right = (frame.filter(pl.col(key).is_in(list(common))) for frame in kept)
                found.append(_method(place, left, right, key))
        elif any(there):
            only[there.index(True)].append(f"{place[0]}: {place[1]}")
    if not found:
        raise RunFolderError(
            f"{a.folder} and {b.folder} have nothing in common that both finished: no method of the same "
            "name, under a sampling setting of the same name, on a prompt of the same id"
        )
    return RunDiff(
        a=str(a.folder),
        b=str(b.folder),
        same_prompts=same,
        methods=tuple(found),
        only_a=tuple(only[0]),
        only_b=tuple(only[1]),
        config=tuple(differences(a.manifest["config"], b.manifest["config"])),
        trees=tuple(differences(*_trees(a, b))),
        versions=tuple(differences(_versions(a), _versions(b))),
        hardware=tuple(differences(_hardware(a), _hardware(b))),
        unfinished=tuple(str(run.folder) for run in (a, b) if not run.finished),
    )


def _trees(a: Run, b: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """What methods of both runs drafted and decided by: searched trees may differ under one name."""
    keys = ("parents", "growth", "law", "rule")
    methods = [
        {m["name"]: {k: m.get(k) for k in keys} for m in run.manifest["methods"]} for run in (a, b)
    ]
    both = [name for name in methods[0] if name in methods[1]]
    tuned = [run.manifest.get("tuning", {}).get("assisted", {}) for run in (a, b)]
    chosen = [
        {name: {s: t["chosen"] for s, t in found.items()} for name, found in one.items()}
        for one in tuned
    ]
    shared = [name for name in chosen[0] if name in chosen[1]]
    left, right = (
        {n: own[n] for n in both} | {f"{n}, tuned": picked[n] for n in shared}
        for own, picked in zip(methods, chosen, strict=True)
    )
    return left, right


def _rows(run: Run, place: tuple[str, str]) -> "pl.DataFrame":
    import polars as pl

    return run.prompts.filter(pl.col("sampling") == place[0], pl.col("method") == place[1])


def _finished(rows: "pl.DataFrame", key: str) -> "pl.DataFrame":
    """The rows of prompts on which nothing failed; a prompt id that stands for several prompts is none."""
    import polars as pl

    return rows.filter(
        pl.col("error").is_null().all().over(key), pl.col("prompt").n_unique().over(key) == 1
    )


def _method(
    place: tuple[str, str], left: "pl.DataFrame", right: "pl.DataFrame", key: str
) -> MethodDiff:
    """Compare the rows of one method, on the same prompts."""
    import polars as pl

    columns = {}
    for side, rows in (("a", left), ("b", right)):
        sums = (
            rows.group_by(key)
            .agg(pl.col("new_tokens").sum(), pl.col("decode_s").sum(), pl.col("steps").sum())
            .sort(key)
        )
        columns |= {
            (side, name): sums[name].to_numpy().astype(np.float64)
            for name in ("new_tokens", "decode_s", "steps")
        }
    totals = bootstrap(columns)

    def ratio(column: str) -> Interval:
        over = [("b", "new_tokens"), ("a", column)]
        return totals.ratio(over, [("b", column), ("a", "new_tokens")])

    texts = left.select(key, "repeat", "tokens").join(
        right.select(key, "repeat", "tokens"), on=[key, "repeat"], suffix="_b"
    )
    same = sum(
        x == y for x, y in zip(texts["tokens"].to_list(), texts["tokens_b"].to_list(), strict=True)
    )
    return MethodDiff(
        sampling=place[0],
        method=place[1],
        prompts=totals.prompts,
        speed=ratio("decode_s"),
        tokens_per_step=ratio("steps"),
        same_tokens=same,
        texts=len(texts),
    )


def _versions(run: Run) -> dict[str, Any]:
    keys = ("schema_version", "treespec_version", "git_hash")
    return {key: run.manifest.get(key) for key in keys} | (run.manifest.get("versions") or {})


def _hardware(run: Run) -> dict[str, Any]:
    return run.manifest.get("hardware") or {}
