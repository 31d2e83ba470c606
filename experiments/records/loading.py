"""Read the folder of a run (SCHEMA.md), finished or still running: its manifest and its rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import BaseModel

from treespec.experiments.config.base import mark_of
from treespec.experiments.errors import NoFinishedPrompt, RunFolderError
from treespec.experiments.records.outcome import STAGED
from treespec.experiments.records.rows import (
    DamagedTable,
    PromptRow,
    Row,
    StepRow,
    TreeRow,
    read_lines,
    read_table,
    require_version,
    to_frame,
)
from treespec.reading_models import read_form, with_new_names
from treespec.tree import TreeShape

PLAIN_KINDS = ("generate", "plain")
"""Kinds of plain decoding; greedy texts are compared with those of the first kind that a run has."""


@dataclass(frozen=True)
class Method:
    """A method, as the manifest describes it.

    Args:
        kind: `generate`, `plain`, `assisted` or `tree`.
        parents: parent array of its tree, if the tree is fixed.
        law: how children are drawn, by sampling setting.
        rule: the acceptance rule, by sampling setting.
        searched: whether a search chose it. Plain decoding that a search chose is not a baseline: with a
            third copy of the same loop, the fastest baseline would be faster by chance.
        label: the name as tables and figures show it: with counts for lists of settings, and files without
            their folders, unless two methods would look alike.
        straight: whether its trees are chains that a source drafts within a budget.
        by_pair: whether the draft model of the run's `models` drafts.
        source: its draft source; None for plain decoding.
        growth: how its trees grow, or their budget, as configs write it; None for a fixed tree.
        size, depth: nodes of its trees, root included, and their depth, at most; None if unknown.
        files: SHA-256 of the files that it reads, by the key that names them.
    """

    name: str
    kind: str
    parents: tuple[int, ...] | None
    law: Mapping[str, str]
    rule: Mapping[str, str]
    lossless: bool
    label: str
    searched: bool = False
    straight: bool = False
    by_pair: bool = True
    source: str | None = None
    growth: Mapping[str, Any] | None = None
    size: int | None = None
    depth: int | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """What its name is followed by in tables, unless it says so itself."""
        return mark_of(self.name, lossless=self.lossless, synthetic=self.synthetic)

    @property
    def synthetic(self) -> bool:
        """Whether given rates decided what was accepted, so that its texts are meaningless."""
        return self.source == "synthetic"

    @property
    def group(self) -> str:
        if self.kind in PLAIN_KINDS:
            return "undrafted" if self.searched else "plain"
        if self.kind != "tree":
            return self.kind
        fixed = self.parents is not None and len(set(self.parents)) == len(self.parents)
        return "chain" if fixed or self.straight else "tree"

    @property
    def draft_tokens(self) -> int | None:
        if self.kind in PLAIN_KINDS:
            return 0
        return None if self.parents is None else len(self.parents) - 1


@dataclass(frozen=True, eq=False)
class RunRecords:
    """The records of a run.

    Args:
        all_prompts: one row per prompt, sampling setting, repeat and method, including twins.
        all_steps: one row per step, including those of twins.
    """

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    all_prompts: pl.DataFrame = field(repr=False)
    all_steps: pl.DataFrame = field(repr=False)

    @property
    def twins(self) -> Mapping[str, str]:
        """Second copies of a method that ran beside the first: twin's name to method's name."""
        return self.manifest.get("twins") or {}

    def group_of(self, name: str) -> int:
        """Index of the group that this method or twin took turns in; 0 if unknown."""
        groups = enumerate(self.manifest.get("groups") or ())
        return next((number for number, names in groups if name in names), 0)

    @property
    def batch(self) -> int:
        """Number of prompts that were decoded side by side."""
        return self.manifest["config"].get("batch") or 1

    @cached_property
    def all_rounds(self) -> pl.DataFrame:
        """One row per round of a batch, of its first prompt: sizes and times of its texts' steps, added up.

        `texts` counts them; `depth` is that of the deepest tree. Without `batch`, the steps themselves.
        """
        steps = self.all_steps
        if self.batch == 1:
            return steps.with_columns(texts=pl.lit(1, pl.Int64))
        times = ("step_s", *STAGED)
        return (
            steps.with_columns(prompt=pl.col("prompt") // self.batch * self.batch)
            .group_by("prompt", "sampling", "method", "repeat", "step", maintain_order=True)
            .agg(
                pl.col("size", *times).sum(),
                pl.col("depth").max(),
                pl.col("at_s").min(),
                pl.len().cast(pl.Int64).alias("texts"),
            )
        )

    @cached_property
    def prompts(self) -> pl.DataFrame:
        return self._without_twins(self.all_prompts)

    @cached_property
    def steps(self) -> pl.DataFrame:
        return self._without_twins(self.all_steps)

    def _without_twins(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.filter(~rows["method"].is_in(list(self.twins))) if self.twins else rows

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest and all rows of a run, ready to be reported.

        A run that is not finished is read from its JSONL logs; a truncated last line is ignored.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        prompts = _rows(folder, manifest, "prompts", PromptRow)
        steps = _rows(folder, manifest, "steps", StepRow)
        if not len(prompts):
            raise NoFinishedPrompt(
                f"{folder} has no finished prompt yet, so there is nothing to report; "
                "let the run get further (the same `treespec run` command resumes it)"
            )
        if prompts["error"].null_count() == 0:
            raise NoFinishedPrompt(
                f"{folder} has no finished prompt: all {len(prompts)} rows hold an error, the first: "
                f"{prompts['error'][0]}"
            )
        return cls(folder, manifest, prompts, steps)

    def prompt_text(self, prompt: int) -> str:
        texts = self.manifest.get("prompt_texts") or ()
        return texts[prompt] if prompt < len(texts) else ""

    @cached_property
    def files(self) -> "Mapping[int, int] | None":
        """For each prompt, the number of its independent sample; None if each prompt is one.

        Excerpts of one file are alike, and equal prompts are the same: they are one sample, not several.
        """
        if "samples" in self.manifest:
            samples = self.manifest["samples"]
            if samples is not None and len(samples) <= max(self.prompts["prompt"]):
                raise RunFolderError(
                    f"{self.folder / 'manifest.json'}: samples has {len(samples)} entries, fewer than the "
                    "run has prompts: repair it, or run its config again in another folder"
                )
            return None if samples is None else dict(enumerate(samples))
        if self.counted != "files":
            return None
        rows = self.prompts.select("prompt", "prompt_id", "category").unique().sort("prompt")
        names = {
            prompt: name.removesuffix(f", {category}")
            for prompt, name, category in rows.iter_rows()
        }
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
        return {prompt: numbers[name] for prompt, name in names.items()}

    @property
    def counted(self) -> str:
        """What independent samples are called: files if prompts are excerpts, batches if there are any."""
        if self.batch > 1:
            return "batches"
        config = self.manifest["config"].get("prompts")
        excerpts = isinstance(config, dict) and config.get("excerpts")
        return "files" if excerpts else "prompts"

    def files_of(self, prompts: Iterable[int]) -> tuple[int, ...] | None:
        return None if self.files is None else tuple(self.files[prompt] for prompt in prompts)

    @property
    def finished(self) -> bool:
        return self.manifest.get("finished") is not None

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        configs, listed = self.manifest["config"].get("methods"), self.manifest["methods"]
        labels = [_label(m) for m in listed]
        named = None if configs is None else {m.get("name") or m["kind"] for m in configs}
        return tuple(
            Method(
                name=m["name"],
                kind=m["kind"],
                parents=None if m.get("parents") is None else tuple(m["parents"]),
                law=m.get("law") or {},
                rule=m.get("rule") or {},
                lossless=m.get("lossless", True),
                label=label if labels.count(label) == 1 else m["name"],
                straight=(m.get("growth") or {}).get("kind") == "budget"
                and m["growth"].get("branching") == 1,
                by_pair=(m.get("draft") or {}).get("source", "model") == "model"
                and (m.get("draft") or {}).get("model") is None,
                source=None
                if m["kind"] in PLAIN_KINDS
                else (m.get("draft") or {}).get("source", "model"),
                searched=named is not None and m["kind"] == "plain" and m["name"] not in named,
                growth=m.get("growth"),
                size=m.get("size"),
                depth=m.get("depth"),
                files=m.get("files") or {},
            )
            for m, label in zip(listed, labels, strict=True)
        )

    @cached_property
    def _labels(self) -> dict[str, str]:
        """Labels that are not names; the longest name first, as it may begin with another one."""
        longest = sorted(self.methods, key=lambda m: -len(m.name))
        return {m.name: m.label for m in longest if m.label != m.name}

    def short(self, text: str) -> str:
        """The text with the labels of methods in place of their names."""
        for name, label in self._labels.items():
            text = text.replace(name, label)
        return text

    @cached_property
    def samplings(self) -> tuple[str, ...]:
        present = set(self.prompts["sampling"])
        return tuple(s["name"] for s in self.manifest["samplings"] if s["name"] in present)

    @cached_property
    def trees(self) -> pl.DataFrame:
        """The drafted trees that the run kept, with their tokens, one per step; may be empty."""
        return self._without_twins(_rows(self.folder, self.manifest, "trees", TreeRow))

    @property
    def target_dtype(self) -> str:
        return str(self.manifest["models"]["target"]["dtype"]).removeprefix("torch.")


def _label(method: Mapping[str, Any]) -> str:
    """A method's name, shortened where it spells out settings of its source or growth."""
    label = method["name"]
    for key, value in {**(method.get("growth") or {}), **(method.get("draft") or {})}.items():
        if isinstance(value, list):
            things = ("sublayers" if key == "skip" else key)[: -1 if len(value) == 1 else None]
            label = label.replace(f"{key}={tuple(value)}", f"({len(value)} {things})")
        elif isinstance(value, str) and "/" in value:
            label = label.replace(f"{key}={value}", f"{key}={value.rsplit('/', 1)[-1]}")
    return label


def accepted_nodes(run: RunRecords, method: Method, sampling: str) -> list[tuple[int, int]]:
    """For each step of a method with a fixed tree, in order: its prompt, and the last accepted node."""
    assert method.parents is not None
    shape, steps = TreeShape(method.parents), []
    rows = run.steps.filter(pl.col("method") == method.name, pl.col("sampling") == sampling)
    for prompt, ranks in rows.sort("prompt", "step").select("prompt", "path_ranks").iter_rows():
        try:
            steps.append((prompt, node_at(shape, ranks)))
        except IndexError:
            raise RunFolderError(
                f"{run.folder}: a step of {method.name!r} accepted the ranks {list(ranks)}, which its tree "
                "does not have"
            ) from None
    return steps


def node_at(shape: TreeShape, ranks: Iterable[int]) -> int:
    node = 0
    for rank in ranks:
        if rank < 0:
            raise IndexError(rank)
        node = shape.children[node][rank]
    return node


class _Named(BaseModel):
    name: str


class _ListedMethod(_Named):
    kind: str
    parents: list[int] | None = None
    size: int | None = None
    depth: int | None = None
    draft: dict[str, Any] | None = None
    growth: dict[str, Any] | None = None
    files: dict[str, str | None] | None = None
    law: dict[str, str] | None = None
    rule: dict[str, str] | None = None
    lossless: bool = True


class _Manifest(BaseModel):
    samples: list[int] | None = None
    config: dict[str, Any]
    config_hash: str
    finished: str | None
    methods: list[_ListedMethod]
    twins: dict[str, str] = {}


class Resumed(_Manifest):
    git_hash: str | None
    prompts_hash: str
    sessions: list[dict[str, Any]]
    together: int
    tuning: dict[str, dict[str, Any]]


class Reported(_Manifest):
    name: str
    created: str
    seed: int
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    models: dict[str, dict[str, Any]]
    samplings: list[_Named]
    sessions: list[dict[str, Any]] = []
    together: int = 1
    groups: list[list[str]] = []


def checked_manifest(
    path: Path, way_out: str, other: str, form: type[_Manifest] = Reported
) -> dict[str, Any]:
    """Read a manifest; keys of its config that have been renamed get their new names."""
    data = read_form(path, RunFolderError, way_out)
    if isinstance(data, dict) and "schema_version" in data:
        require_version(path, data["schema_version"], other)
        if data.get("config_hash", "") is None:
            raise NoFinishedPrompt(
                f"{path.parent} has no finished prompt yet: the run has not begun to decode"
            )
    data = read_form(path, RunFolderError, f"it is not the manifest of a run; {way_out}", form)
    data["config"] = with_new_names(data["config"])
    return data


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.exists():
        raise RunFolderError(f"{folder} is not a run folder: it has no manifest.json")
    return checked_manifest(
        path,
        "repair it, or run its config again in another folder",
        "report it with the treespec that wrote it",
    )


def _rows(folder: Path, manifest: Mapping[str, Any], name: str, kind: type[Row]) -> pl.DataFrame:
    parquet, log = folder / f"{name}.parquet", folder / f"{name}.jsonl"
    if manifest.get("finished") is not None and parquet.is_file():
        try:
            rows = read_table(parquet, kind)
        except DamagedTable as error:
            instead = f"; remove it to read the same rows from {log.name} instead"
            raise RunFolderError(f"{error}{instead if log.is_file() else ''}") from None
    else:
        rows = to_frame(read_lines(log, kind), kind)
    named = {*(method["name"] for method in manifest["methods"]), *(manifest.get("twins") or ())}
    if unknown := sorted({*rows["method"]} - named):
        path = folder / "manifest.json"
        raise RunFolderError(
            f"{path} is damaged: it lacks the method {unknown[0]!r}, which has {name}"
        )
    return rows
