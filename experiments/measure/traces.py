"""`treespec trace`: record once what is accepted, so that any tree can be replayed on it (`replays`)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from treespec.experiments.config.build import BuiltMethod, Choice, build
from treespec.experiments.config.files import require_within
from treespec.experiments.config.generation import ignored_in_words
from treespec.experiments.config.model_draft import label_of_draft
from treespec.experiments.config.samplings import SamplingConfig, budget_of, sampling_of
from treespec.experiments.config.schema import Config, ModelsConfig, TreeMethod
from treespec.experiments.config.shapes import ExpansionShape
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.beam_recording import DEPTH
from treespec.experiments.measure.head_recording import TracedHead, record_head
from treespec.experiments.measure.profile.plan import named_method
from treespec.experiments.measure.recording import POSITIONS_BEYOND, record
from treespec.experiments.measure.source_recording import (
    TracedSource,
    record_source,
    require_traceable,
    traced_source,
)
from treespec.experiments.records.manifest import config_data, environment, now
from treespec.experiments.run.inputs import read_by, require_own_passes, require_readable
from treespec.experiments.run.models import load_models
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import (
    Prompt,
    RawPrompt,
    behind,
    encode,
    hash_of,
    read_prompts,
    samples_of,
)
from treespec.plugins import Budget
from treespec.search.traces.trace import Trace
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

WIDTH = 8

MOST_WIDTH = 1024
MOST_BEYOND = 2**16


def trace(
    config: Config,
    *,
    sampling: str | None = None,
    method: str | None = None,
    law: str | None = None,
    rule: str | None = None,
    width: int = WIDTH,
    beyond: int = POSITIONS_BEYOND,
    follow: bool = False,
    beam: int = 0,
    beam_depth: int = DEPTH,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> Trace:
    """Record a trace with the models, the prompts and one sampling setting of a config."""
    require_within("--width", width, 1, MOST_WIDTH)
    require_within("--beyond", beyond, 0, MOST_BEYOND)
    require_within("--beam", beam, 0, MOST_WIDTH)
    require_within("--beam-depth", beam_depth, 1, MOST_BEYOND)
    setting = _setting(config, sampling)
    named = None if method is None else named_method(build(config), method)
    choice = _choice(config, setting, named, law, rule, width)
    traced_draft = named if named is not None and not named.by_pair else None
    if traced_draft is not None:
        require_traceable(traced_draft, choice)
        _require_no_options(traced_draft, width, beam)
    reporter = Reporter(console)
    raw = read_prompts(config.prompts, more=0)[: config.prompts.count]

    def inputs(pair: "Pair | PairOutline") -> list[Prompt]:
        if pair.target.needs_source:
            require_own_passes(config.models)
        prompts = read_by(pair, raw, config.prompts)
        require_readable(named, pair, prompts)
        return prompts

    loaded = load_with_passes(
        config.models,
        [] if traced_draft is None else [traced_draft],
        load,
        reporter,
        chosen_for=build(config).methods if config.models.dtype == "fastest" else None,
        check=inputs,
    )
    pair, config = loaded.pair, config.model_copy(update={"models": loaded.models})
    asked = pair.target.model.generation_config
    if note := ignored_in_words(asked, [setting], config.stop_strings):
        reporter.note(note)
    if traced_draft is not None:
        traced_draft = traced_draft.ending(pair.end_tokens, budget_of(config))

    def traced(models: "Pair") -> Any:
        return models if traced_draft is None else traced_source(traced_draft, setting.name, models)

    def of_text(text: int) -> Any:
        return traced(behind(pair, prompts[text]))

    source = traced(pair)
    prompts = inputs(pair)
    continuations = _continuations(config, raw, prompts, pair) if follow else None
    stop = stop_at_tokens(pair.end_tokens)
    if config.stop_strings:
        stop = any_of(stop, stop_at_strings(config.stop_strings, pair.tokenizer))
    ids = [prompt.ids for prompt in prompts]
    of_head = isinstance(source, TracedHead)
    with reporter.units(len(prompts) * (1 + bool(beam or of_head)), done=0) as begin:
        settings: dict[str, Any] = {
            "sampling": sampling_of(setting).ending(pair.end_tokens, budget_of(config)),
            "rule": choice.rule,
            "max_new_tokens": config.max_new_tokens, "stop": stop, "seed": config.seed,
            "follow": continuations, "beyond": beyond, "files": samples_of(prompts), "progress": begin,
            "keys": [prompt.key for prompt in prompts],
            "of_text": of_text if pair.target.needs_source else None,
        }  # fmt: skip
        if isinstance(source, TracedSource):
            recorded = record_source(source.target, source.source, ids, **settings)
        else:
            settings |= {"width": width, "beam": beam, "beam_depth": beam_depth}
            recorded = (
                record_head(source, ids, **settings)
                if isinstance(source, TracedHead)
                else record(source, ids, law=choice.law, **settings)
            )
    return _described(recorded, config, setting, hash_of(prompts), traced_draft)


def _require_no_options(method: BuiltMethod, width: int, beam: int) -> None:
    """Refuse options that only draft models have for a method with a text source."""
    if not isinstance(method.tree, Budget):
        return
    if width != WIDTH:
        raise ConfigError(
            f"--width {width}: {method.name!r} brings its own continuations, as many as its budget allows: "
            "leave out --width"
        )
    if beam:
        raise ConfigError(
            f"--beam {beam} is for growths of a draft model's trees, but {method.name!r} brings its own "
            "continuations: leave out --beam"
        )


def _setting(config: Config, name: str | None) -> SamplingConfig:
    names = [setting.name for setting in config.samplings]
    if name is None and len(names) == 1:
        return config.samplings[0]
    if name not in names:
        problem = "the config has several samplings" if name is None else f"no sampling {name!r}"
        raise ConfigError(
            f"{problem}: use --sampling to choose one of {', '.join(map(repr, names))}"
        )
    return config.samplings[names.index(name)]


def _choice(
    config: Config,
    setting: SamplingConfig,
    method: BuiltMethod | None,
    law: str | None,
    rule: str | None,
    width: int,
) -> Choice:
    """The law and rule that the builder chooses."""
    if method is None:
        shape = ExpansionShape(kind="expansion", branching=(max(width, 2),))
        given = {"law": law, "rule": rule}  # the builder refuses unknown names
        tree = TreeMethod(kind="tree", shape=shape).model_copy(update=given)
        only = config.model_copy(update={"methods": (tree,), "samplings": (setting,)})
        return build(only).methods[0].choices[setting.name]
    if law is not None or rule is not None:
        raise ConfigError("--method sets the law and the rule: leave out --law and --rule")
    choice = method.choices[setting.name]
    # A trace has siblings: take the rule that trees use.
    return replace(choice, rule=choice.rule.on_trees.get(choice.law, choice.rule))


def _continuations(
    config: Config, raw: Sequence[RawPrompt], prompts: Sequence[Prompt], pair: "Pair"
) -> list[list[int]]:
    """The token ids of the prompts' own texts after the end of each prompt."""
    cut = config.prompts.tokens
    if cut is None:
        raise ConfigError(
            "--follow needs texts that continue after the prompts: set prompts.tokens, which cuts them off"
        )
    uncut = config.prompts.model_copy(update={"tokens": None})
    texts = [
        list(prompt.ids)
        for prompt in encode(raw, uncut, pair.tokenizer, begin=pair.target.start_tokens)
    ]
    for text, prompt in zip(texts, prompts, strict=True):
        if text[: len(prompt.ids)] != list(prompt.ids):
            raise ConfigError("--follow takes plain texts: set prompts.chat_template=false")
        if len(text) == len(prompt.ids):
            raise ConfigError(
                f"{prompt.where}: nothing follows the first {len(text)} tokens (prompts.tokens = {cut}): "
                "lower prompts.tokens, or use longer texts"
            )
    return [text[len(prompt.ids) :] for text, prompt in zip(texts, prompts, strict=True)]


def _described(
    trace: Trace,
    config: Config,
    setting: SamplingConfig,
    prompts_hash: str,
    method: BuiltMethod | None,
) -> Trace:
    """The trace with a description of its origin in `about`; `method` is that of `trace`."""
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
        # Times of the pair's draft model do not apply to another draft.
        replaced = (
            {}
            if isinstance(method.tree, Budget)
            else {"draft": label_of_draft(method.config.draft)}
        )
        more["models"] = models | replaced
    return replace(trace, about={**trace.about, **more})
