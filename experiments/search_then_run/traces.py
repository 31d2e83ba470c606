"""`treespec trace` and `treespec replay`: record what is accepted once, then try any tree on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from treespec.distributions import Sampling
from treespec.draft import MatchingSource
from treespec.errors import TreespecError
from treespec.experiments.config.build import BuiltMethod, Choice, build
from treespec.experiments.config.files import is_file, require_within
from treespec.experiments.config.schema import Config, ModelsConfig, SamplingConfig, TreeMethod
from treespec.experiments.config.shapes import (
    MEASURED,
    AnyShape,
    ExpansionShape,
    GrowthShape,
    OptimalShape,
)
from treespec.experiments.config.spellings import EXAMPLES, is_spelled, spelled
from treespec.experiments.config.trees import LABELS, TREES, label_of_draft, tree_of
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.manifest import config_data, environment, now
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.run.models import load_models, load_own_drafts
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, RawPrompt, encode, hash_of, read_prompts
from treespec.experiments.search_then_run.draft_rows import DEPTH
from treespec.experiments.search_then_run.recording import BEYOND, record
from treespec.experiments.search_then_run.source_recording import record_source
from treespec.experiments.search_then_run.traced_sources import require_traceable, traced_source
from treespec.plugins import Budget
from treespec.protocols import Growth
from treespec.reading import brief
from treespec.reading_models import problems
from treespec.reading_yaml import parse_yaml
from treespec.search import InvalidTrace, formats
from treespec.search.rates.budget_replay import replay_budget
from treespec.search.rates.growth_replay import GrowthReplay, replay_growth
from treespec.search.rates.replay import Replay, replay_many
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["read_shapes", "replay_tables", "replay_traces", "trace"]

WIDTH = 8

MOST_WIDTH = 1024
MOST_BEYOND = 2**16

MOST_NODES_TOGETHER = 2**18
"""Nodes of all trees that are named at once."""

_TYPED = (
    "chain:4",
    "kary:2x3 (branching x depth)",
    "chains:2x4 (width x depth)",
    "expansion:3x2x1",
)
"""How trees are typed; those that are searched need rates."""


def trace(
    config: Config,
    *,
    sampling: str | None = None,
    method: str | None = None,
    law: str | None = None,
    rule: str | None = None,
    width: int = WIDTH,
    beyond: int = BEYOND,
    follow: bool = False,
    beam: int = 0,
    beam_depth: int = DEPTH,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> Trace:
    """Record a trace on the pair, prompts and one sampling setting of a config.

    Args:
        config: its methods do not matter unless `method` names one.
        sampling: name of the setting, such as `T=1`; not needed if there is one only.
        method: record its draft source, with its law and rule; of a source that reads texts, within its
            budget. By default the pair's draft model.
        law: how children are drawn; else as `treespec run` chooses it for trees.
        rule: how they are accepted; likewise.
        width: children at each position.
        beyond: positions after the end of each text.
        follow: do not decode: follow the prompts' own texts beyond `prompts.tokens`.
        beam: what growths need besides: children of so many nodes a level; 0 for none.
        beam_depth: levels of these.
        console: where progress is shown; nowhere by default.
        load: gives the models.

    Raises:
        ConfigError: if there is no such setting or method, its source cannot be recorded, or there is
            nothing to follow.
        InvalidTrace, PromptError, ContextOverflow, LoadError: see `record` and
        `treespec.experiments.run.runner.run`.
    """
    require_within("--width", width, 1, MOST_WIDTH)
    require_within("--beyond", beyond, 0, MOST_BEYOND)
    require_within("--beam", beam, 0, MOST_WIDTH)
    require_within("--beam-depth", beam_depth, 1, MOST_BEYOND)
    setting = _setting(config, sampling)
    named = None if method is None else _named_method(config, method)
    choice = _choice(config, setting, named, law, rule, width)
    own = named if named is not None and not named.by_pair else None
    if own is not None:
        require_traceable(own)
        _require_no_options(own, width, beam)
    reporter = Reporter(console)
    raw = read_prompts(config.prompts, more=0)[: config.prompts.count]
    with reporter.task("loading the models"):
        pair = load(config.models)
        if own is not None:
            pair = load_own_drafts(config.models, pair, [own])
    source = pair if own is None else traced_source(own, setting.name, pair)
    prompts = encode(raw, config.prompts, pair.tokenizer)
    given = _continuations(config, raw, prompts, pair) if follow else None
    stop = stop_at_tokens(pair.end_tokens)
    if config.stop_strings:
        stop = any_of(stop, stop_at_strings(config.stop_strings, pair.tokenizer))
    ids = [prompt.ids for prompt in prompts]
    with reporter.units(len(prompts) * (1 + bool(beam)), done=0) as begin:
        settings: dict[str, Any] = {
            "sampling": Sampling(**setting.model_dump()), "rule": choice.rule,
            "max_new_tokens": config.max_new_tokens, "stop": stop, "seed": config.seed,
            "follow": given, "beyond": beyond, "files": _files_of(raw), "progress": begin,
        }  # fmt: skip
        if isinstance(source, MatchingSource):
            recorded = record_source(pair.target, source, ids, **settings)
        else:
            more = {"law": choice.law, "width": width, "beam": beam, "beam_depth": beam_depth}
            recorded = record(source, ids, **settings, **more)
    return _described(recorded, config, setting, hash_of(prompts), own)


def _require_no_options(method: BuiltMethod, width: int, beam: int) -> None:
    """Refuse what only draft models have for a source that brings its own continuations."""
    if not isinstance(method.tree, Budget):
        return
    if width != WIDTH:
        raise ConfigError(
            f"--width {width}: {method.name!r} brings its own continuations, as many as its budget allows: "
            "leave --width out"
        )
    if beam:
        raise ConfigError(
            f"--beam {beam} is for growths, which a draft model feeds, but {method.name!r} brings its own "
            "continuations: leave it out"
        )


def _setting(config: Config, name: str | None) -> SamplingConfig:
    names = [setting.name for setting in config.samplings]
    if name is None and len(names) == 1:
        return config.samplings[0]
    if name not in names:
        problem = "the config has several samplings" if name is None else f"no sampling {name!r}"
        raise ConfigError(
            f"{problem}: choose one with --sampling, of {', '.join(map(repr, names))}"
        )
    return config.samplings[names.index(name)]


def _named_method(config: Config, name: str) -> BuiltMethod:
    """The tree method of a name."""
    built = {method.name: method for method in build(config).methods if method.kind == "tree"}
    if name not in built:
        names = ", ".join(map(repr, built)) or "none"
        raise ConfigError(f"no tree method {name!r} in the config (there: {names})")
    return built[name]


def _choice(
    config: Config,
    setting: SamplingConfig,
    method: BuiltMethod | None,
    law: str | None,
    rule: str | None,
    width: int,
) -> Choice:
    """Law and rule, as the builder chooses them."""
    if method is None:
        shape = ExpansionShape(kind="expansion", branching=(max(width, 2),))
        tree = TreeMethod(kind="tree", shape=shape)
        tree = tree.model_copy(
            update={"law": law, "rule": rule}
        )  # the builder says which are known
        only = config.model_copy(update={"methods": (tree,), "samplings": (setting,)})
        return build(only).methods[0].choices[setting.name]
    if law is not None or rule is not None:
        raise ConfigError("--method brings its law and rule: leave out --law and --rule")
    choice = method.choices[setting.name]
    # A trace has siblings.
    return replace(choice, rule=choice.rule.on_trees.get(choice.law, choice.rule))


def _continuations(
    config: Config, raw: Sequence[RawPrompt], prompts: Sequence[Prompt], pair: "Pair"
) -> list[list[int]]:
    """How the prompts' texts go on where the prompts end."""
    cut = config.prompts.tokens
    if cut is None:
        raise ConfigError(
            "--follow needs texts that go on after the prompts: set prompts.tokens, which cuts these off"
        )
    whole = config.prompts.model_copy(update={"tokens": None})
    texts = [list(prompt.ids) for prompt in encode(raw, whole, pair.tokenizer)]
    for text, prompt in zip(texts, prompts, strict=True):
        if text[: len(prompt.ids)] != list(prompt.ids):
            raise ConfigError("--follow takes plain texts: set prompts.chat_template=false")
        if len(text) == len(prompt.ids):
            raise ConfigError(
                f"{prompt.where}: nothing follows the first {len(text)} tokens (prompts.tokens = {cut}): "
                "take fewer, or longer texts"
            )
    return [text[len(prompt.ids) :] for text, prompt in zip(texts, prompts, strict=True)]


def _files_of(prompts: Sequence[RawPrompt]) -> list[int] | None:
    """A number for the file that each prompt is an excerpt of; None if they are none."""
    files = [prompt.file for prompt in prompts]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(files))}
    return None if None in numbers else [numbers[name] for name in files]


def _described(
    trace: Trace,
    config: Config,
    setting: SamplingConfig,
    prompts_hash: str,
    method: BuiltMethod | None,
) -> Trace:
    """The trace with all that a reader may ask about where it is from.

    Args:
        trace: as it was recorded.
        config: that it was recorded by.
        setting: of it.
        prompts_hash: of the prompts.
        method: whose source it is, if that is not the pair's draft model.
    """
    data = config_data(config)
    more = {
        "created": now(),
        "name": config.name,
        "models": data["models"],
        "prompts": data["prompts"],
        "prompts_hash": prompts_hash,
        "sampling": setting.name,
        **environment(),
    }
    if method is not None:
        assert isinstance(method.config, TreeMethod)
        more["draft"] = method.config.draft.model_dump(mode="json")
        models = {key: value for key, value in data["models"].items() if key != "draft"}
        # Times of the pair's draft model are not those of another one.
        own = (
            {}
            if isinstance(method.tree, Budget)
            else {"draft": label_of_draft(method.config.draft)}
        )
        more["models"] = models | own
    return replace(trace, about={**trace.about, **more})


def read_shapes(text: str) -> dict[str, TreeShape]:
    """Trees as they are typed: `chain:4,kary:2x3,chains:2x4,expansion:3x2x1,tree.json`, by these names.

    Raises:
        ConfigError: saying which one is no tree, and how trees are written.
    """
    shapes: dict[str, TreeShape] = {}
    nodes = 0
    for word in (part.strip() for part in text.split(",")):
        try:
            if is_spelled(word):
                shapes[word] = _spelled_tree(word)
            elif is_file(word):
                shapes[word] = formats.load(Path(word))
            else:
                raise ValueError("no such kind and no such file")
        except (TreespecError, ValueError) as error:
            known = ", ".join(_TYPED)
            raise ConfigError(
                f"--shapes: {brief(word)} is no tree ({error}); write {known}, or a file"
            ) from None
        nodes += shapes[word].size
        if nodes > MOST_NODES_TOGETHER:
            raise ConfigError(
                f"--shapes: more than {MOST_NODES_TOGETHER:,} nodes up to {brief(word)}: name fewer trees"
            )
    return shapes


def _spelled_tree(word: str) -> TreeShape:
    """The tree of a spelling; one that needs acceptance rates is none here.

    Raises:
        ValueError: saying what is wrong.
    """
    data = spelled(word)
    try:
        shape = TypeAdapter(AnyShape).validate_python(data)
    except ValidationError as error:
        raise ValueError(problems(data, error, "it")[0]) from None
    if isinstance(shape, OptimalShape):
        raise ValueError("it needs acceptance rates: `treespec search` finds it")
    tree = TREES[type(shape)](shape)
    assert isinstance(tree, TreeShape)
    return tree


def read_growths(texts: Sequence[str]) -> dict[str, Growth | Budget]:
    """Growths and budgets as configs write them, `{kind: eagle2, k: 4, depth: 6, size: 16}`, by labels.

    Raises:
        ConfigError: saying which one is none, and how growths are written.
    """
    growths: dict[str, Growth | Budget] = {}
    for text in texts:
        data: Any = None
        try:
            data = parse_yaml(text)
            shape = TypeAdapter(AnyShape).validate_python(data)
            if MEASURED in (getattr(shape, key, None) for key in ("latency", "calibration")):
                raise ValueError("nothing is measured here: name files (latency, calibration)")
            growth = tree_of(shape)
            if isinstance(growth, Budget):
                growths[f"budget {growth.branching}x{growth.depth}, {growth.size}"] = growth
                continue
            if not isinstance(shape, GrowthShape) or not isinstance(growth, Growth):
                raise ValueError("it is no growth: name trees with --shapes")
            growths[LABELS[type(shape)](shape)] = growth
        except (TreespecError, ValueError) as error:
            said = error
            if isinstance(error, ValidationError):
                said = problems(data, error, "it")[0]
            raise ConfigError(f"--growth {brief(text)}: {said}; {_growths_near(data)}") from None
    return growths


def _growths_near(data: Any) -> str:
    """How a growth is written that was meant like this."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    return f"write it as configs do, such as '{EXAMPLES.get(str(kind), EXAMPLES['eagle2'])}'"


def replay_traces(
    paths: Sequence[Path], shapes: str | None, growths: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Replay trees and growths on traces: one row for each trace and tree, as plain data.

    Raises:
        ConfigError: if there is neither a tree nor a growth, or one is none.
        InvalidTrace: naming the trace, if it does not hold what one of them needs.
    """
    trees = {} if shapes is None else read_shapes(shapes)
    growing = read_growths(growths)
    if not trees and not growing:
        raise ConfigError("nothing to replay: name trees with --shapes, or growths with --growth")
    rows = []
    for path in paths:
        trace = Trace.load(path)
        try:
            replays = replay_many([trace], list(trees.values()))[0] if trees else []
            grown = {
                name: replay_budget(trace, one)
                if isinstance(one, Budget)
                else replay_growth(trace, one)
                for name, one in growing.items()
            }
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None
        rows += [
            _row(str(path), trace, name, one) for name, one in zip(trees, replays, strict=True)
        ]
        rows += [_grown_row(str(path), trace, name, one) for name, one in grown.items()]
    return rows


def _grown_row(path: str, trace: Trace, name: str, replay: GrowthReplay) -> dict[str, Any]:
    return _shared(path, trace, name, replay) | {
        "nodes": replay.nodes_per_step,
        "depth": replay.max_depth,
        "sure": float(replay.sure.mean()),
    }


def _row(path: str, trace: Trace, name: str, replay: Replay) -> dict[str, Any]:
    return _shared(path, trace, name, replay) | {
        "nodes": replay.shape.size,
        "depth": replay.shape.depth,
        "sure": 1.0,
    }


def _shared(path: str, trace: Trace, name: str, replay: Replay | GrowthReplay) -> dict[str, Any]:
    estimate, low, high = replay.interval()
    bounded = trace.samples > 1
    return {
        "trace": path,
        "rule": trace.rule,
        "law": trace.law,
        "sampling": trace.about.get("sampling", f"T={trace.sampling.get('temperature')}"),
        "texts": trace.samples,
        "shape": name,
        "steps": len(replay.accepted),
        "tokens_per_step": estimate,
        "low": low if bounded else None,
        "high": high if bounded else None,
        "kept_per_step": replay.kept_per_step,
        "accepted_by_depth": replay.accepted_by_depth.tolist(),
    }


def _bounds(row: Mapping[str, Any]) -> str:
    return "one text" if row["low"] is None else f"{row['low']:.3f} .. {row['high']:.3f}"


def _accepted(row: Mapping[str, Any]) -> str:
    return " ".join(f"{share:.2f}" for share in row["accepted_by_depth"])


COLUMNS = (
    keyed("shape", "shape", left=True),
    Column[Mapping[str, Any]]("nodes", lambda row: f"{row['nodes']:.4g}"),
    keyed("depth", "depth"),
    keyed("steps", "steps"),
    keyed("tokens/step", "tokens_per_step", ".3f"),
    Column[Mapping[str, Any]]("95 % interval", _bounds),
    Column[Mapping[str, Any]]("accepted at depth 1, 2, ...", _accepted, left=True),
)


SURE = keyed("sure", "sure", ".1%")
UNSURE = (
    "sure: the share of steps that are those of a live run. In the others the growth asked for what hangs "
    "below nodes that were not recorded, and it counts as worth nothing; a larger --beam records more."
)


def replay_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The rows as a table for each trace."""
    tables = []
    for trace, of_trace in groupby(rows, key=lambda row: row["trace"]):
        replayed = list(of_trace)
        one = replayed[0]
        about = f"{one['sampling']}, {one['rule']} ({one['law']}), {one['texts']} texts"
        unsure = any(row["sure"] < 1 for row in replayed)
        columns = (*COLUMNS[:-1], SURE, COLUMNS[-1]) if unsure else COLUMNS
        said = UNSURE if unsure else ""
        tables.append(Table("", columns, replayed, title=f"{trace}: {about}", said=said))
    return tables
