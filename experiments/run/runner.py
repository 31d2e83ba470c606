"""Run an experiment into its folder. A run that was killed goes on where it stopped."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from treespec.decoding import require_room
from treespec.errors import TreespecError, in_words
from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.places import inputs_of, place_of, require_apart
from treespec.experiments.config.schema import AssistedMethod, Config, ModelsConfig
from treespec.experiments.errors import PromptError, RunFolderError
from treespec.experiments.records.changes import changes_of_machine, require_same_methods
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.machine_load import (
    BUSY_PERCENT,
    LoadWatch,
    busy_percent,
    busy_sentence,
)
from treespec.experiments.records.manifest import new_manifest, session, with_load
from treespec.experiments.records.measured import Measured, load_measured
from treespec.experiments.records.rows import PromptRow
from treespec.experiments.report.run import load_run
from treespec.experiments.run.decoding import Rounds, decode_units, units_of
from treespec.experiments.run.meters.build import cuda_devices, make_meters
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, encode, hash_of, read_prompts, search_prompts
from treespec.experiments.run.ranks import folder_of_rank
from treespec.experiments.run.readiness import ready
from treespec.experiments.run.tuning import tune, tuned_choices
from treespec.experiments.run.unit import Bench, seed_of
from treespec.tree import Law

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["WARMUP_TOKENS", "RunResult", "Searching", "run"]

WARMUP_TOKENS = 8


@dataclass(frozen=True)
class Searching:
    """What a config's `search` takes; `search_then_run.run` has it.

    Args:
        measure: measures before the run, into its folder.
        resolve: gives the methods that wait for what was measured their trees.
        between: what times the parts of a step between the units of the run; None if no round is due.
    """

    measure: Callable[..., Measured]
    resolve: Callable[..., Config]
    between: Callable[..., Rounds | None]


@dataclass(frozen=True)
class RunResult:
    """Where the records are, and what went wrong.

    Args:
        folder: of the run.
        already_finished: nothing was left to do.
        failures: the rows that hold an error.
    """

    folder: Path
    already_finished: bool
    failures: tuple[PromptRow, ...]


def run(
    config: Config,
    *,
    searching: Searching,
    folder: Path | None = None,
    source: Path | None = None,
    fresh: bool = False,
    retry: bool = False,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> RunResult:
    """Run what is missing of an experiment.

    Args:
        config: the experiment.
        searching: for configs with `search`.
        folder: of its records; by default `config.output`, which must lie in `runs/`, or `runs/<name>`.
        source: the config's file; like all that the config reads it may not be in the folder.
        fresh: delete the records of an earlier run there, once the new one can start.
        retry: run those units again that hold an error.
        console: where progress is shown; nowhere by default.
        load: gives the models.

    Raises:
        ConfigError, PromptError, RunFolderError, ContextOverflow, LoadError: what a user can mend; raised
            before anything is decoded. A start that has not measured anything leaves nothing then.
    """
    reporter = Reporter(console)
    place = folder or place_of(config.output, config.name, "runs")
    read = [] if source is None else [("the config", source)]
    require_apart(place, [*read, *inputs_of(config)])
    start = ready(config, reporter.note)
    known, tracker = start.experiment, start.tracker
    path = folder_of_rank(config, place)
    with RunFolder(path) as records:
        experiment, manifest, finished, found = known, None, set(), None
        names = list[str]()
        if not fresh:
            records.require_same(config)
            manifest = records.manifest()
            described = (
                manifest["methods"] if manifest else [{"name": m.name} for m in known.methods]
            )
            names = [method["name"] for method in described]
            finished = records.recover(names, write=False)
        wanted = len(start.measured) * len(known.samplings) * config.repeats
        again = retry and not fresh and bool(records.failures())
        whole = manifest is not None and manifest["finished"] is not None
        if whole and len(finished) == wanted and not again:
            return RunResult(path, True, tuple(records.failures()))
        if manifest is not None:
            if config.search is not None:
                found = load_measured(config, records.search)
                experiment = _resolved(config, found, records, searching)
            require_same_methods(path, experiment, manifest)
        with reporter.task("loading the models"):
            pair = load(config.models)
        prompts = encode(start.measured, config.prompts, pair.tokenizer)
        others = encode(start.spare, config.prompts, pair.tokenizer, first=len(prompts))
        _require_room(experiment, pair, [*prompts, *others])
        if manifest is not None and manifest["prompts_hash"] != hash_of(prompts):
            raise RunFolderError(
                f"{path} was started with other prompts: their file or the tokenizer has changed since; "
                "give another folder with --out, or start anew with --fresh"
            )
        if not fresh:  # only now: until here a refusal would have cost rows of the earlier run
            finished = records.recover(names, drop_errors=again)
        if fresh:  # only now: until here a typo would have cost the earlier run
            if config.search is not None:
                read_prompts(search_prompts(config))
            records.clear()
        if manifest is None and config.search is not None:
            lengths = [len(prompt.ids) for prompt in prompts]
            found = searching.measure(config, known, pair, lengths, records, console)
            experiment = _resolved(config, found, records, searching)
            _require_room(experiment, pair, prompts)
        with reporter.task("reading the meters"):
            meters = make_meters(config.meters, cuda_devices([pair.target.model, pair.draft.model]))
        units, between = units_of(experiment, prompts, finished), None
        if (
            found is not None
        ):  # before the warm-up of the methods, whose caches and graphs shall stay warm
            between = searching.between(
                config, known, experiment, pair, found, records,
                {unit.number for unit in units}, wanted, reporter,
            )  # fmt: skip
        bench = Bench.of(experiment, pair, {}, meters)
        manifest = _start(bench, prompts, others, manifest, reporter)
        records.write_manifest(manifest)
        bench = replace(bench, tuned=tuned_choices(manifest["tuning"]["assisted"]))
        tracker.begin(manifest)
        watch = LoadWatch()
        try:
            decode_units(bench, units, wanted, between, records, tracker, reporter)
            manifest = with_load(manifest, busy := watch.busy_percent())
            records.finish(manifest | {"meters": meters.about()})
        except BaseException:
            with suppress(OSError):  # it is told of the units so far, too
                records.write_manifest(with_load(manifest, watch.busy_percent()))
            tracker.end(None)
            raise
        if (said := busy_sentence(busy)) is not None:
            reporter.note(said)
        tracker.end(lambda: load_run(path))
        return RunResult(path, False, tuple(records.failures()))


def _resolved(
    config: Config, found: Measured, records: RunFolder, searching: Searching
) -> Experiment:
    """The experiment with every tree that was searched; its config stays as the user wrote it."""
    resolved = searching.resolve(config, found, records.search, records.keep)
    return replace(build(resolved), config=config)


def _require_room(experiment: Experiment, pair: "Pair", prompts: Sequence[Prompt]) -> None:
    """Refuse, before anything runs, what does not fit in a context or a vocabulary.

    Raises:
        PromptError: naming the prompt and the method.
    """
    new = experiment.config.max_new_tokens
    for method in experiment.methods:
        alone = method.kind in ("generate", "plain")
        lengths = [m.max_length for m in ((pair.target,) if alone else (pair.target, pair.draft))]
        for prompt in prompts:
            try:
                require_room(len(prompt.ids), new, method.max_depth, min(lengths))
            except TreespecError as error:
                raise PromptError(f"{prompt.where}, method {method.name!r}: {error}") from None
        laws = {choice.law for choice in method.choices.values()}
        widest = max(map(len, method.shape.children)) if method.shape else 0
        if laws - {Law.IID} and widest > pair.draft.vocab_size:
            raise PromptError(
                f"method {method.name!r}: {widest} distinct children of one node, but the draft's "
                f"vocabulary has {pair.draft.vocab_size}"
            )


def _start(
    bench: Bench,
    prompts: Sequence[Prompt],
    others: Sequence[Prompt],
    manifest: dict[str, Any] | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """Warm up, tune, and describe the run; a resumed run keeps its description and what was tuned."""
    experiment, about = bench.experiment, bench.meters.about()
    busy = busy_percent()
    if busy > BUSY_PERCENT:
        reporter.note(
            f"other processes use {busy:.0f} % of the CPU: the times will not be reliable. On a CPU that "
            "is shared, OMP_WAIT_POLICY=PASSIVE in the environment limits the damage"
        )
    begin = time.perf_counter()
    warmed = [*others, *prompts][: experiment.config.warmup]
    with reporter.task("warming up") as say:
        for prompt in warmed:
            _warm_up(bench, prompt, say)
    seconds = time.perf_counter() - begin
    if manifest is not None:
        reporter.note("resuming a run that was not finished")
        latest = session(about)
        if latest["git_hash"] != manifest["git_hash"]:
            reporter.note("the code is not the one that the run was started with")
        for change in changes_of_machine(manifest, latest):
            reporter.note(f"this is not what the run was started on: {change}")
        changed = {"finished": None, "meters": about}
        return manifest | changed | {"sessions": [*manifest["sessions"], latest]}
    with reporter.task("tuning") as say:
        tuning = {"assisted": tune(bench, others, say)}
    warmup = {
        "prompts": len(warmed),
        "seconds": round(seconds, 3),
        "busy_percent": busy,
    }
    models = _describe(experiment.config, bench.pair)
    return new_manifest(experiment, hash_of(prompts), models, tuning, warmup, about)


def _warm_up(bench: Bench, prompt: Prompt, say: Callable[[str], None]) -> None:
    """Let every method decode a few tokens; what fails here fails again, and is recorded, in the run."""
    tokens = min(WARMUP_TOKENS, bench.experiment.config.max_new_tokens)
    for sampling in bench.experiment.samplings:
        for method in bench.experiment.methods:
            say(f"warming up: {sampling}, {method.name}")
            config = method.config
            tuned = config.grid[0] if isinstance(config, AssistedMethod) else None
            seed = seed_of(bench.experiment.config.seed, "warmup", prompt.index)
            try:
                bench.decode(
                    method, prompt, sampling, seed=seed, tuned=tuned, max_new_tokens=tokens
                )
            except Exception as error:
                say(f"warming up: {method.name} failed: {in_words(error, 'the decoding')}")


def _describe(config: Config, pair: "Pair") -> dict[str, Any]:
    target, draft = config.models.target, config.models.draft or config.models.target

    def facts(name: str, model: Any) -> dict[str, Any]:
        module = model.model
        parameters = {id(p): p for p in module.parameters()}.values()
        return {
            "name": name,
            "parameters": sum(p.numel() for p in parameters),
            "dtype": str(next(iter(parameters)).dtype).removeprefix("torch."),
            "architecture": type(module).__name__,
            "context": model.max_length,
        }

    return {"target": facts(target, pair.target), "draft": facts(draft, pair.draft)}
