"""Choose each draft source's best chain and best tree, by replay on prompts that are not measured.

A source is recorded once for each sampling setting, and timed once: the levels of a trained head or a draft
model, for text sources the target's pass alone. Shapes are ranked by predicted tokens per second. Above
temperature 0 children are the head's best tokens (`onehot`), since drawn trees of heads cannot be replayed.
Everything is kept in the study's folder, so that a stopped study goes on.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.experiments.config.model_draft import ModelDraft
from treespec.experiments.config.schema import (
    Config,
    ModelsConfig,
    PlainMethod,
    SearchConfig,
    TreeMethod,
)
from treespec.experiments.config.shapes import BudgetShape, ChainShape
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.measure.profile.profile import profile
from treespec.experiments.measure.source_recording import REASONS
from treespec.experiments.measure.traces import trace
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import search_prompts
from treespec.experiments.training.trained import Trained
from treespec.files import write_whole
from treespec.models.load import Pair
from treespec.search import LatencyModel, SearchError, Trace, best_tree
from treespec.search.choice.ranking import Ranking
from treespec.search.choice.rows import Choice

DETERMINISTIC = "deterministic"
WIDTH, DEPTH = 8, 8
"""Children of a node and levels that are recorded: no tree is wider or deeper."""
LIMITS = BudgetShape(kind="budget", depth=DEPTH, size=32, branching=4)
"""Limits within which text sources are recorded."""
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
PREFIX = 128
"""Tokens before the trees that are timed: about those of a chat prompt and half an answer."""
SAME_TIME = LatencyModel.from_tables(verify=1.0, draft=0.0, law=DETERMINISTIC)
"""Times with which the fastest tree of a size is the one that keeps the most tokens."""


@dataclass(frozen=True)
class Chosen:
    """A shape, with what is predicted for it on the prompts it was chosen on.

    Args:
        shape: the shape, as a config has it.
        nodes: nodes that a step verifies.
        tokens_per_step: predicted.
        tokens_per_second: predicted; None if it was chosen by tokens per step alone.
    """

    shape: dict[str, Any]
    nodes: float
    tokens_per_step: float
    tokens_per_second: float | None = None


def with_trained(config: Config, folders: list[Path]) -> Config:
    """The config whose trained heads and draft models are those of finished trainings.

    The names are those of the drafts; with several folders, these follow.
    """
    methods = [m for m in config.methods if not (isinstance(m, TreeMethod) and runs_a_model(m))]
    for folder in folders:
        for path in sorted(folder.glob("*/result.json")):
            found = Trained.read(path.parent)
            assert found is not None
            name = found.label if len(folders) == 1 else f"{found.label} {folder}"
            draft = {"source": found.family, "model": str(path.parent / "head")}
            methods += [
                TreeMethod.model_validate(
                    {"kind": "tree", "name": f"{name}, {form}", "draft": draft, "shape": shape}
                )
                for form, shape in (("chain", "chain:2"), ("tree", "expansion:3x2"))
            ]
    return config.model_copy(update={"methods": tuple(methods), "compare": ()})


def sources_of(config: Config) -> dict[str, TreeMethod]:
    """The first method of each source by the source's name, the part of a method's name before a comma."""
    found: dict[str, TreeMethod] = {}
    for method in config.methods:
        if isinstance(method, TreeMethod) and method.name is not None:
            found.setdefault(method.name.partition(",")[0], method)
    return found


def runs_a_model(method: TreeMethod) -> bool:
    """Whether a trained head or a draft model of its own drafts."""
    own = isinstance(method.draft, ModelDraft) and method.draft.model is not None
    return own or isinstance(method.draft, TrainedHead)


def can_be_recorded(method: TreeMethod) -> bool:
    """Whether one recording serves all its shapes."""
    return runs_a_model(method) or type(method.draft) not in REASONS


class Recordings:
    """What was recorded and timed for a config, made when first asked for and kept in a folder.

    Args:
        config: the study's config.
        folder: where recordings and times stand.
        beam: children of so many nodes of each level are recorded too, for trees that grow; 0 for none.
        console: shows progress.
    """

    def __init__(self, config: Config, folder: Path, beam: int, console: Console | None) -> None:
        self.asked, self.folder, self.beam, self.console = config, folder, beam, console
        folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def config(self) -> Config:
        """The config with the dtype and the passes that were chosen when the study began."""
        path = self.folder / "models.json"
        if not path.exists():
            models = self._loaded.models
            write_whole(path, models.model_dump_json())
        models = ModelsConfig.model_validate_json(path.read_text())
        return self.asked.model_copy(update={"models": models})

    @cached_property
    def pair(self) -> Pair:
        """The target, and draft models of sources."""
        return self._loaded.pair

    @cached_property
    def _loaded(self) -> Any:
        from treespec.experiments.config.build import build
        from treespec.experiments.run.models import load_models

        path = self.folder / "models.json"
        models = (
            ModelsConfig.model_validate_json(path.read_text())
            if path.exists()
            else self.asked.models
        )
        built = build(self.asked).methods
        return load_with_passes(models, built, load_models, Reporter(self.console))

    def trace(self, source: str, sampling: str) -> Trace:
        """What the target accepts of a source's drafts on the prompts for tuning."""
        path = self.folder / f"{_slug(source)}-{sampling}.npz"
        if not path.exists():
            self._note(f"recording {source}, {sampling}")
            method = sources_of(self.config)[source]
            options: dict[str, Any] = {}
            if runs_a_model(method):
                options = {"beam": self.beam, "beam_depth": DEPTH}
            recorded = trace(
                self._alone(source), method=source, sampling=sampling, width=WIDTH, beyond=DEPTH,
                console=self.console, load=self._load, **options,
            )  # fmt: skip
            write_whole(path, recorded.to_bytes())
        loaded = Trace.load(path)
        return loaded if self.beam else replace(loaded, draft_rows=None)

    def times(self, source: str) -> LatencyModel:
        """The times of a source's steps."""
        own = runs_a_model(sources_of(self.config)[source])
        path = self.folder / f"{_slug(source) if own else 'target'}.json"
        if not path.exists():
            self._note(f"timing {source if own else 'the target'}")
            first = {"samplings": self.config.samplings[:1]}
            measured = profile(
                self._alone(source).model_copy(update=first), method=source if own else None,
                sizes=SIZES, prefixes=[PREFIX], repeats=5, console=self.console, load=self._load,
            )  # fmt: skip
            for note in measured.notes:
                self._note(note)
            write_whole(path, measured.model.to_json())
        return LatencyModel.load(path)

    def _alone(self, source: str) -> Config:
        """The config with a source alone, on the prompts for tuning."""
        method = sources_of(self.config)[source]
        shape = ChainShape(kind="chain", depth=1) if runs_a_model(method) else LIMITS
        only = {"shape": shape, "name": source, "law": DETERMINISTIC, "rule": None}
        prompts = search_prompts(self.config.model_copy(update={"search": SearchConfig()}))
        methods = (PlainMethod(kind="plain"), method.model_copy(update=only))
        return self.config.model_copy(
            update={"methods": methods, "prompts": prompts, "compare": ()}
        )

    def _load(self, models: ModelsConfig) -> Pair:
        return self.pair

    def _note(self, text: str) -> None:
        Reporter(self.console).note(text)


def chain_and_tree(recordings: Recordings, source: str, sampling: str) -> dict[str, Chosen]:
    """The fastest chain and the fastest tree of a source, as predicted."""
    ranking = _ranked(recordings.trace(source, sampling), recordings.times(source), max_size=64)
    return {form: _best(ranking, form) for form in ("chain", "tree") if _rows(ranking, form)}


def of_size(recordings: Recordings, source: str, sampling: str, size: int) -> Chosen | None:
    """The shape of so many nodes that keeps the most tokens; None if the source drafts none."""
    try:
        ranking = _ranked(recordings.trace(source, sampling), SAME_TIME, sizes=[size])
    except SearchError:
        return None
    rows = [row for form in ("tree", "chain") for row in _rows(ranking, form)]
    rows = [row for row in rows if round(_most(row)) == size]
    if not rows:
        return None
    best = max(rows, key=lambda row: row.tokens_per_step.estimate)
    return replace(_chosen(best), tokens_per_second=None)


def _ranked(recorded: Trace, times: LatencyModel, **limits: Any) -> Ranking:
    return best_tree(recorded, times, laws=[DETERMINISTIC], **limits)


def _best(ranking: Ranking, form: str) -> Chosen:
    return _chosen(max(_rows(ranking, form), key=lambda row: row.tokens_per_s.estimate))


def _rows(ranking: Ranking, form: str) -> list[Choice]:
    return [row for row in ranking.rows if _form(row) == form]


def _form(row: Choice) -> str:
    if row.growth is None:
        return row.kind
    return "chain" if row.growth.config.get("branching") == 1 else "tree"


def _most(row: Choice) -> float:
    """Nodes of a shape, or of the trees of a growth at most."""
    return float(row.size if row.growth is None else row.growth.config.get("size", 0))


def _chosen(row: Choice) -> Chosen:
    if row.growth is not None:
        shape: Mapping[str, Any] = row.growth.config
    elif row.kind == "chain":
        shape = {"kind": "chain", "depth": row.depth}
    else:
        shape = {"kind": "parents", "parents": list(row.shape.parents)}
    return Chosen(dict(shape), row.nodes, row.tokens_per_step.estimate, row.tokens_per_s.estimate)


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """Plain data from a file, made and written if there is none."""
    if not path.exists():
        write_whole(path, json.dumps(make(), indent=1) + "\n")
    return json.loads(path.read_text())


def _slug(name: str) -> str:
    return "-".join(_words(name))


def _words(name: str) -> Iterator[str]:
    yield from "".join(c if c.isalnum() else " " for c in name).split()
