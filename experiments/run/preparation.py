"""Prepare a run: models, prompts, tree search, meters, warm-up, tuning, and the manifest."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.build import BuiltMethod, Experiment, build
from treespec.experiments.config.generation import unnamed, unnamed_in_words
from treespec.experiments.config.schema import AssistedMethod, Config, ModelsConfig, TreeMethod
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.changes import changes_of_machine, require_same_methods
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.machine_load import BUSY_PERCENT, PASSIVE, busy_percent
from treespec.experiments.records.manifest import (
    GROWTH_FILES,
    method_data,
    new_manifest,
    session_data,
)
from treespec.experiments.records.measured import Measured, load_measured
from treespec.experiments.records.outcome import Round
from treespec.experiments.run.fastest_settings import forget
from treespec.experiments.run.groups import (
    groups_of,
    require_batch_fits,
    that_fit,
    together_in_words,
    twins_of,
)
from treespec.experiments.run.inputs import read_by, require_fits
from treespec.experiments.run.meters.meter import cuda_devices, make_meters
from treespec.experiments.run.models import heads_of, model_data, parts_of, trimmed_of
from treespec.experiments.run.passes import Loaded, load_with_passes, require_same_passes
from treespec.experiments.run.prompts import (
    Prompt,
    batches_of,
    hash_of,
    samples_of,
    texts_of,
)
from treespec.experiments.run.room import reserve_rows
from treespec.experiments.run.seeds import seed_of
from treespec.experiments.run.session import Session
from treespec.experiments.run.timed_passes import cautions_of_times
from treespec.experiments.run.tuning import tune, tuned_choices
from treespec.experiments.run.unit import Bench, Decoding, rounds_in_turns
from treespec.experiments.run.until import planned_of

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

WARMUP_TOKENS = 8
"""Tokens that each method decodes of a prompt to warm up."""


def prepare(
    session: Session, load: Callable[[ModelsConfig], "Pair"]
) -> tuple[Bench, list[Prompt], dict[str, Any]]:
    """Do everything that precedes the first unit; return bench, prompts and manifest.

    Records of earlier starts are repaired or deleted last, right before the manifest is written. If
    anything is refused or fails before that, they stay as they are.

    Raises:
        ConfigError, PromptError, RunFolderError, LoadError: see `runner.run`.
    """
    config, records, reporter = session.config, session.records, session.reporter
    experiment, measured = session.known, None
    if session.manifest is not None:
        if config.search is not None:
            measured = load_measured(config, records.search)
            experiment = _with_trees(session, measured, records)
        require_same_methods(records.path, experiment, session.manifest)
    loaded, prompts, spare = load_inputs(session, experiment, load)
    pair = loaded.pair
    ignored = unnamed(pair.target.model.generation_config, config.samplings, config.stop_strings)
    if note := unnamed_in_words(ignored):
        reporter.note(note)
    heads = heads_of(experiment.methods, pair.target)
    for name, contract in heads.items():
        reporter.note(f"{name}: {contract}")
    if session.manifest is not None:  # again, as loading may have built files that were missing
        require_same_methods(records.path, experiment, session.manifest)
    searched: dict[str, bytes] = {}
    if session.manifest is None and config.search is not None:
        measured, experiment, searched = _search(session, loaded, prompts)
        reserve_rows(experiment, pair, [len(prompt.ids) for prompt in [*prompts, *spare]])
    for caution in cautions_of_times(config, pair, measured):
        reporter.note(f"Caution: {caution}")
    for model in {id(model): model for model in pair.models}.values():
        if config.batch > 1 and model.joins is None:
            reporter.note(
                f"Caution: {model.passes.kind} passes cannot be joined, so the texts of a batch run one by "
                "one: set models.passes and models.draft_passes to eager"
            )
            break
    with reporter.task("reading the meters"):
        meters = make_meters(config.meters, cuda_devices([model.model for model in pair.models]))
    room = _room(session, experiment, pair, prompts)
    together = _together(session, experiment, room)
    groups = groups_of(experiment.methods, together)
    bench = Bench.of(experiment, pair, groups, meters)
    warmup = _warm_up(session, bench, _warming(config, [*spare, *prompts]))
    if session.manifest is not None:
        manifest = _resumed(session, session.manifest, meters.about())
    else:
        # A run without assisted generation does not say that it tunes.
        with reporter.task("tuning") if spare else nullcontext(lambda text: None) as say:
            tuning = {"assisted": tune(bench, spare, say, together=room)}
        manifest = new_manifest(
            experiment,
            hash_of(prompts),
            samples_of(prompts, config.batch),
            session.ready.measured[0].revision,
            texts_of(prompts[: max(1, config.trees)], pair.tokenizer),
            model_data(
                config.models,
                pair,
                parts_of(experiment.methods, pair.target) | trimmed_of(experiment.methods, pair),
                heads,
            ),
            tuning,
            warmup,
            meters.about(),
            together,
            twins_of(groups),
            [list(group) for group in groups],
            planned_of(samples_of(prompts, config.batch) or range(len(prompts))),
        ) | {"settings": loaded.data, "generation_config": ignored}
    session.take_over(searched)
    if searched:  # the files that growths name have just moved into the run's folder
        manifest["methods"] = [method_data(method) for method in experiment.methods]
    records.keep_manifest(manifest)
    return replace(bench, tuned=tuned_choices(manifest["tuning"]["assisted"])), prompts, manifest


def load_inputs(
    session: Session, experiment: Experiment, load: Callable[[ModelsConfig], "Pair"]
) -> tuple[Loaded, list[Prompt], list[Prompt]]:
    """Load the models, and encode the prompts that are measured and those used for tuning.

    Prompts are checked before weights are read (`passes.load_with_passes`). Every cache is reserved large
    enough for their texts (`room.reserve_rows`).

    Raises:
        PromptError: if a prompt does not fit in a model's context.
        RunFolderError: if the run was started with other prompts or other passes.
        LoadError: if a model cannot be loaded.
    """
    config = session.config

    def inputs(pair: "Pair | PairOutline") -> tuple[list[Prompt], list[Prompt]]:
        prompts = read_by(pair, session.ready.measured, config.prompts)
        spare = read_by(pair, session.ready.spare, config.prompts, first=len(prompts))
        require_fits(experiment, pair, prompts, spare)
        return prompts, spare

    if session.fresh:
        forget(config.models, session.known.methods)
    loaded = load_with_passes(
        config.models,
        experiment.methods,
        load,
        session.reporter,
        session.manifest,
        fresh=session.fresh,
        check=inputs,
    )
    pair = loaded.pair
    if session.manifest is not None:
        require_same_passes(
            session.records.path,
            pair,
            session.manifest,
            parts_of(experiment.methods, pair.target),
        )
    prompts, spare = inputs(pair)
    require_batch_fits(experiment, pair, [len(prompt.ids) for prompt in prompts])
    reserve_rows(experiment, pair, [len(prompt.ids) for prompt in [*prompts, *spare]])
    if session.manifest is not None and session.manifest["prompts_hash"] != hash_of(prompts):
        raise RunFolderError(
            f"{session.records.path} was started with other prompts: their file or the tokenizer has "
            "changed since; choose another folder with --out, or start over with --fresh"
        )
    return loaded, prompts, spare


def _search(
    session: Session, loaded: Loaded, prompts: Sequence[Prompt]
) -> tuple[Measured, Experiment, dict[str, bytes]]:
    """Measure, and find the trees.

    With `--fresh` the measurements go to a temporary folder, because the earlier run stays untouched until
    this one takes the folder over. Otherwise they go to the run's folder directly, where the next start
    finds them if this one is interrupted.

    Returns:
        The measurements, the experiment with its trees, and the files, name to content, that the run's
        folder has yet to take over.
    """
    lengths, pair = [len(prompt.ids) for prompt in prompts], loaded.pair
    models = session.config.models.model_copy(update={"dtype": loaded.models.dtype})
    known = replace(session.known, config=session.config.model_copy(update={"models": models}))

    def search_in(folder: RunFolder) -> tuple[Measured, Experiment]:
        measured = session.searching.measure(known, pair, lengths, folder, session.reporter)
        experiment = _with_trees(session, measured, folder)
        require_fits(experiment, pair, prompts)
        return measured, experiment

    if not session.fresh:
        return *search_in(session.records), {}
    with TemporaryDirectory(prefix="treespec-") as aside, RunFolder(Path(aside) / "run") as folder:
        measured, experiment = search_in(folder)
        files = {path.name: path.read_bytes() for path in sorted(folder.search.iterdir())}
        methods = [
            _moved(method, folder.search, session.records.search) for method in experiment.methods
        ]
    return measured, replace(experiment, methods=tuple(methods)), files


def _moved(method: BuiltMethod, old: Path, new: Path) -> BuiltMethod:
    """The method, with files that its growth has read named in the folder that they will move to."""
    shape = getattr(method.config, "shape", None)
    read = {key: Path(str(getattr(shape, key, None))) for key in GROWTH_FILES}
    update = {key: str(new / path.name) for key, path in read.items() if path.parent == old}
    if not update or not isinstance(method.config, TreeMethod):
        return method
    shape = method.config.shape.model_copy(update=update)
    return replace(method, config=method.config.model_copy(update={"shape": shape}))


def _room(session: Session, experiment: Experiment, pair: "Pair", prompts: Sequence[Prompt]) -> int:
    """How many texts may be open at once: as the manifest or the config says, else as memory allows."""
    if session.manifest is not None:
        return session.manifest["together"]
    if session.config.together is not None:
        return session.config.together
    return that_fit(experiment, pair, max(len(prompt.ids) for prompt in prompts))


def _together(session: Session, experiment: Experiment, room: int) -> int:
    """How many methods take turns with each other, twins included; 1 if none do."""
    if len(experiment.methods) == 1:
        return 1
    if session.manifest is not None or session.config.together is not None:
        return room
    if room == 1:
        session.reporter.note(
            "memory holds the caches of one method only: each prompt is decoded by one method after the "
            "other, so a slowdown of the machine may affect one method more than another"
        )
    return min(room, len(experiment.methods) + 1)


def _with_trees(session: Session, measured: Measured, folder: RunFolder) -> Experiment:
    """The experiment with the trees that the search found; its config stays as the user wrote it."""
    config = session.config
    resolved = session.searching.resolve(config, measured, folder.search, folder.keep)
    return replace(build(resolved), config=config)


def _resumed(session: Session, manifest: dict[str, Any], meters: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a resumed run: description and tuning stay, this session is added."""
    note, latest = session.reporter.note, session_data(meters)
    note("resuming a run that was not finished")
    if latest["git_hash"] != manifest["git_hash"]:
        note("the code differs from the code that the run was started with")
    for change in changes_of_machine(manifest, latest):
        note(f"versions or hardware differ from those that the run was started with: {change}")
    return {
        **manifest,
        "finished": None,
        "meters": meters,
        # Units that are decoded again may change what the looks saw.
        **({"looks": []} if session.again else {}),
        "sessions": [*manifest["sessions"], latest],
    }


def _warming(config: Config, prompts: Sequence[Prompt]) -> list[tuple[Prompt, ...]]:
    """The batches that warm up: as many prompts as the config says, in whole batches."""
    count = -(-config.warmup // config.batch) * config.batch
    return batches_of(prompts[:count], config.batch)


def _warm_up(session: Session, bench: Bench, batches: Sequence[Sequence[Prompt]]) -> dict[str, Any]:
    """Let every method decode a few tokens of each prompt.

    Errors are shown but not recorded: they recur in the run, which records them.

    Returns:
        `warmup` of the manifest (SCHEMA.md).
    """
    busy = busy_percent()
    if busy > BUSY_PERCENT:
        session.reporter.note(
            f"other processes use {busy:.0f} % of the CPU: the times will not be reliable{PASSIVE}"
        )
    begin = time.perf_counter()
    with session.reporter.task("warming up") as say:
        # In turns, because methods that are open at once have caches and graphs of their own.
        todo = list(product(batches, bench.experiment.samplings, bench.groups))
        for number, (batch, sampling, group) in enumerate(todo, start=1):
            say(f"warming up {number} of {len(todo)}: {sampling}, {together_in_words(group)}")
            turns = {
                name: partial(
                    begin_some_of_batch, bench, method, batch, sampling, WARMUP_TOKENS, "warmup"
                )
                for name, method in group.items()
            }
            for name, outcomes in rounds_in_turns(turns, texts=len(batch), seed=0).items():
                for error in dict.fromkeys(o for o in outcomes if isinstance(o, str)):
                    say(f"warming up: {name} failed: {error}")
    seconds = round(time.perf_counter() - begin, 3)
    return {"prompts": sum(map(len, batches)), "seconds": seconds, "busy_percent": busy}


def begin_some_of_batch(
    bench: Bench,
    method: BuiltMethod,
    batch: Sequence[Prompt],
    sampling: str,
    tokens: int,
    purpose: str,
) -> Iterator[Round]:
    """Begin to decode the first tokens of a batch that is not measured; see `begin_some`."""
    if len(batch) == 1:
        steps = begin_some(bench, method, batch[0], sampling, tokens, purpose)
        return ({0: step} for step in steps)
    config = bench.experiment.config
    return bench.decode_batch(
        method,
        batch,
        sampling,
        seeds=[seed_of(config.seed, purpose, prompt.key) for prompt in batch],
        max_new_tokens=min(tokens, config.max_new_tokens),
    )


def begin_some(
    bench: Bench, method: BuiltMethod, prompt: Prompt, sampling: str, tokens: int, purpose: str
) -> Decoding:
    """Begin to decode the first tokens of a text that is not measured; needs no tuning.

    Assisted generation uses the first setting of its grid. `purpose` is part of the seed, so that each has
    its own random numbers.
    """
    config = bench.experiment.config
    return bench.decode(
        method,
        prompt,
        sampling,
        seed=seed_of(config.seed, purpose, prompt.key),
        tuned=method.config.grid[0] if isinstance(method.config, AssistedMethod) else None,
        max_new_tokens=min(tokens, config.max_new_tokens),
    )
