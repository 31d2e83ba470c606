"""`treespec run --dry-run`: show what would run, and estimate how long it would take."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from treespec.errors import TreespecError, in_words
from treespec.experiments.config.build import BuiltMethod, wants_measured
from treespec.experiments.config.schema import AssistedMethod, Config, ModelsConfig
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.report.table import NONE, Column, Table, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.run.groups import reference_of
from treespec.experiments.run.models import load_models, parts_of
from treespec.experiments.run.preparation import WARMUP_TOKENS, begin_some_of_batch, load_inputs
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt
from treespec.experiments.run.ranks import folder_of_rank
from treespec.experiments.run.runner import place_for, units_of
from treespec.experiments.run.session import Searching, Session, open_session
from treespec.experiments.run.unit import Bench, finish_batch

if TYPE_CHECKING:
    from treespec.models.load import Pair

TIMED_TOKENS = 16
"""Tokens that every method decodes to estimate its speed."""

FRESH_TEXTS = 2
"""Fresh drafts of a text take a step for each token, where a step of the text keeps about two."""


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Args:
        folder: where its records would be written.
        session: the start of the run; methods that depend on a measurement have placeholders.
        text_s: seconds per text by method and setting, or the error message if decoding failed.
        seconds: estimate for all that is left, without the search and without loading and compiling the
            models; None if nothing was timed.
        compiling_s: seconds that compiling passes took in the dry run. The run takes no longer, because
            their machine code is on disk by then.
    """

    folder: Path
    session: Session
    text_s: Mapping[tuple[str, str], float | str]
    seconds: float | None
    compiling_s: float


def dry_run(
    config: Config,
    *,
    searching: Searching,
    folder: Path | None = None,
    source: Path | None = None,
    fresh: bool = False,
    retry: bool = False,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> Plan:
    """Check all that `runner.run` checks before it decodes, and time a few tokens of every method.

    The arguments are those of `runner.run`. Nothing is left in the folder.

    Raises:
        ConfigError, PromptError, RunFolderError, ContextOverflow, LoadError: see `runner.run`.
    """
    reporter = Reporter(console)
    path, checked = place_for(config, folder, source, reporter.note)
    with RunFolder(folder_of_rank(config, path)) as records:
        session = open_session(searching, checked, records, reporter, fresh=fresh, retry=retry)
        records.undo()  # a start that only looks leaves nothing behind
    text_s, seconds, compiling_s = ({}, None, 0.0) if session.complete else _timed(session, load)
    return Plan(path, session, text_s, seconds, compiling_s)


def _timed(
    session: Session, load: Callable[[ModelsConfig], "Pair"]
) -> tuple[dict[tuple[str, str], float | str], float, float]:
    """Seconds per text by method and setting, seconds of all that is left, and seconds of compiling."""
    config, reporter = session.config, session.reporter
    loaded, prompts, _ = load_inputs(session, session.known, load)
    pair = loaded.pair
    bench = Bench.of(session.known, pair)
    units = units_of(session.known, prompts, session.finished)
    remaining, alone, afresh = Counter[str](), Counter[str](), Counter[str]()
    for unit in units:
        remaining[unit.sampling] += config.batch
        alone[unit.sampling] += config.batch * unit.runs_alone(config)
        afresh[unit.sampling] += sum(unit.drafts_afresh(config, prompt) for prompt in unit.prompts)
    in_turns = config.together != 1 and len(session.known.methods) > 1
    doubled = reference_of(session.known.methods) if in_turns else None  # it has a twin
    text_s: dict[tuple[str, str], float | str] = {}
    seconds = 0.0
    with reporter.task("timing every method") as say:
        for method in session.known.methods:
            for sampling in session.known.samplings:
                say(f"timing {method.name}, {sampling}")
                try:
                    batch = prompts[: config.batch]
                    prefill_s, token_s = _time_method(bench, method, sampling, batch)
                except (Exception, SystemExit) as error:  # the run would record it
                    text_s[method.name, sampling] = in_words(error, "the decoding")
                    continue
                text = prefill_s + token_s * config.max_new_tokens
                text_s[method.name, sampling] = text
                warm_up = min(config.warmup, len(prompts)) * (prefill_s + token_s * WARMUP_TOKENS)
                texts = remaining[sampling] * (2 if method is doubled else 1) + alone[sampling]
                texts += FRESH_TEXTS * afresh[sampling] * method.ranks_tokens
                seconds += texts * text + warm_up
                if session.manifest is None and isinstance(method.config, AssistedMethod):
                    grid = method.config.grid
                    seconds += text * len(grid) * method.config.tune_prompts * (len(grid) > 1)
    models = (*pair.models, *parts_of(session.known.methods, pair.target).values())
    return text_s, seconds, sum(model.passes.seconds for model in models)


def _time_method(
    bench: Bench, method: BuiltMethod, sampling: str, batch: Sequence[Prompt]
) -> tuple[float, float]:
    """Seconds of a text's prefill, and of each token after it; decodes twice and times the second time."""
    outcomes: list[Outcome] = []
    for _ in range(2):
        begun = begin_some_of_batch(bench, method, batch, sampling, TIMED_TOKENS, "dry run")
        made = finish_batch(begun, len(batch))
        if error := next((outcome for outcome in made if isinstance(outcome, str)), None):
            raise TreespecError(error)
        outcomes = [outcome for outcome in made if isinstance(outcome, Outcome)]
    prefill_s = sum(outcome.prefill_s for outcome in outcomes)
    decode_s = sum(outcome.total_s for outcome in outcomes) - prefill_s
    return prefill_s / len(batch), decode_s / sum(len(outcome.tokens) for outcome in outcomes)


def plan_data(plan: Plan) -> dict[str, Any]:
    """What `treespec run --dry-run --json` prints."""
    session = plan.session
    return {
        "folder": plan.folder,
        "name": session.config.name,
        "prompts": len(session.ready.measured),
        "samplings": list(session.known.samplings),
        "units": session.wanted,
        "until": None if (until := session.config.until) is None else until.model_dump(),
        "finished_units": len(session.finished),
        "already_finished": session.complete,
        "seconds": plan.seconds,
        "compiling_seconds": plan.compiling_s,
        "basis": _basis(plan),
        "methods": [
            {key: value for key, value in row.items() if key != "text"}
            | {"seconds_per_text": row["text"] if isinstance(row["text"], float) else None}
            for row in _rows(plan)
        ],
    }


def _seconds(row: Mapping[str, Any]) -> str:
    text = row["text"]
    return f"{text:.2f}" if isinstance(text, float) else "fails" if text else NONE


COLUMNS = (
    keyed("method", "method", left=True),
    keyed("setting", "sampling", left=True),
    keyed("nodes", "nodes"),
    keyed("depth", "depth"),
    keyed("children drawn", "law", left=True),
    keyed("rule", "rule", left=True),
    Column[Mapping[str, Any]]("s a text like the first", _seconds),
)


def print_plan(plan: Plan, console: Console) -> None:
    session, config = plan.session, plan.session.config
    say(console, f"{config.name}: a dry run, no results are written")
    if session.complete:
        say(console, f"{plan.folder} is finished already: nothing would run")
    else:
        finished, left = len(session.finished), session.wanted - len(session.finished)
        state = f", where {finished} units are finished" if finished else ""
        at_most = "" if config.until is None else "at most "
        repeats = f" x {config.repeats} repeats" if config.repeats > 1 else ""
        say(console, f"folder: {plan.folder}{state}")
        say(
            console,
            f"{len(session.ready.measured)} prompts x {len(session.known.samplings)} settings{repeats}: "
            f"{at_most}{left} {'texts' if left > 1 else 'text'} of {config.max_new_tokens} tokens by each "
            "method",
        )
    print_table(Table("", COLUMNS, list(_rows(plan))), console)
    for (method, sampling), text in plan.text_s.items():
        if isinstance(text, str):
            say(console, f"{method}, {sampling} fails: {text}")
    if plan.seconds is not None:
        compiling = (
            f" and up to {_duration(plan.compiling_s)} of compiling, the time it took just now"
            if plan.compiling_s
            else ""
        )
        say(console, f"about {_duration(plan.seconds)}{compiling}; {_basis(plan)}")


def _duration(seconds: float) -> str:
    """A duration in words, such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _basis(plan: Plan) -> str | None:
    """What the estimate is based on, and what it leaves out."""
    if plan.seconds is None:
        return None
    config = plan.session.config
    tokens = min(TIMED_TOKENS, config.max_new_tokens)
    first = "prompt" if config.batch == 1 else "batch"
    excluded = ["loading the models"] + ["the search before the run"] * (config.search is not None)
    return (
        f"from {tokens} tokens of the first {first} by every method, timed just now on this machine, which "
        f"do not tell which method is faster; without {' and '.join(excluded)}"
    )


def _rows(plan: Plan) -> Iterable[dict[str, Any]]:
    session = plan.session
    for method, config in zip(session.known.methods, session.config.methods, strict=True):
        searched, ours = wants_measured(config), method.kind == "tree"
        for sampling in session.known.samplings:
            choice = method.choices.get(sampling) if ours else None
            yield {
                "method": method.name,
                "sampling": sampling,
                "nodes": None if method.shape is None or searched else method.shape.size,
                "depth": method.max_depth if ours and not searched else None,
                "law": None if choice is None else str(choice.law),
                "rule": None if choice is None else str(choice.rule),
                "waits_for_search": searched,
                "text": plan.text_s.get((method.name, sampling)),
            }
