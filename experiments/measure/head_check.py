"""Which conventions a trained head was trained with, judged by what the target accepts of its drafts.

A format leaves conventions open that change nothing but the numbers: how layers are counted, whether a norm
comes before or after, in which order two vectors stand. A head that is run by others than its own loads,
runs, and is right almost nowhere. So the head drafts the target's own greedy texts by each of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec import plugins
from treespec.draft.trained.writing import require_empty
from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.file import validated
from treespec.experiments.config.schema import ChatPrompts, EmbeddedPrompts, Prompts, TreeMethod
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.table import Column, Finding, Table
from treespec.experiments.run.inputs import require_fits
from treespec.experiments.run.models import load_models
from treespec.experiments.run.one_text import naming_options
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, encode, read_prompts
from treespec.experiments.run.unit import Bench
from treespec.files import brief

if TYPE_CHECKING:
    from rich.console import Console

    from treespec.models.load import Pair


DEPTH = 4
"""Tokens that the head drafts in a step, as a chain of its best ones."""

PROMPTS, PROMPT_TOKENS = 4, 96
"""Texts, and tokens of an embedded prompt."""

ERRORS = 3.0
"""Standard errors by which a convention must be better than another for a warning."""

USELESS = 0.1
"""Accepted tokens per step under which a head is of no use."""


@dataclass(frozen=True)
class Tried:
    """How a head drafts by one set of conventions.

    Args:
        label: the conventions in words.
        keys: the keys of a config that choose them.
        accepted: accepted tokens of each step.
    """

    label: str
    keys: Mapping[str, Any]
    accepted: tuple[int, ...]

    @cached_property
    def tokens_per_step(self) -> float:
        return 1 + self.mean

    @cached_property
    def mean(self) -> float:
        return sum(self.accepted) / len(self.accepted)

    def right_at(self, depth: int) -> float:
        """The share of steps in which the drafts down to this depth were the target's tokens."""
        return sum(count >= depth for count in self.accepted) / len(self.accepted)

    @cached_property
    def variance(self) -> float:
        """Of the mean, as if steps were independent."""
        spread = sum((count - self.mean) ** 2 for count in self.accepted)
        return spread / max(len(self.accepted) - 1, 1) / len(self.accepted)

    def beats(self, other: "Tried") -> bool:
        """Whether more is accepted than chance explains."""
        error = sqrt(self.variance + other.variance)
        return self.mean - other.mean > max(ERRORS * error, USELESS)


@dataclass(frozen=True)
class HeadCheck:
    """A head under each set of conventions that its format leaves open.

    Args:
        contract: the conventions that it states.
        source: the source in configs.
        tried: the stated conventions, then others.
    """

    contract: str
    source: str
    tried: tuple[Tried, ...]

    @property
    def warning(self) -> str | None:
        """What is wrong, in a sentence; None if nothing is known to be."""
        stated, best = self.tried[0], max(self.tried, key=lambda one: one.mean)
        if best.beats(stated):
            keys = ", ".join(f"{key}: {_yaml(value)}" for key, value in best.keys.items())
            return (
                f"the head was hardly trained by the stated conventions: with {best.label} the target "
                f"keeps {best.tokens_per_step:.2f} tokens per step, with the stated ones "
                f"{stated.tokens_per_step:.2f}, more than chance explains; to use them, write "
                f"`{keys}` beside `source: {self.source}`"
            )
        if best.mean < USELESS:
            return (
                f"by no conventions does the target keep more than {best.tokens_per_step:.2f} tokens per "
                "step: is it a head for this target?"
            )
        return None

    @property
    def verdict(self) -> str:
        """What was found, in a sentence."""
        if self.warning is not None:
            return f"warning: {self.warning}"
        if len(self.tried) == 1:
            return f"the format of {self.source} heads leaves nothing open that could be tried"
        return "no other conventions are better than the stated ones by more than chance explains"


def check_head(
    model: str,
    source: Mapping[str, Any],
    models: Mapping[str, Any],
    *,
    tokens: int = 200,
    say: Callable[[str], None] = lambda text: None,
    console: "Console | None" = None,
    load: Callable[[Any], "Pair"] = load_models,
) -> HeadCheck:
    """Draft the target's greedy texts with a head, under each set of conventions that is open.

    Args:
        model: folder or hub id of the head.
        source: `source`, and other keys of the draft source in a config, which are then the stated ones.
        models: `target`, `dtype` and `device`, as in a config.
        tokens: tokens of all texts together.
        say: is told the conventions that the head states.
        console: where to show progress.
        load: loads the target.

    Raises:
        ConfigError, LoadError, UnsupportedModel: if the head cannot be read, or does not fit the target.
    """
    draft, reporter = {**source, "model": model}, Reporter(console)
    pair, settings, head = _loaded(draft, models, tokens, reporter, load)
    say(str(head.contract))
    kind: Prompts = (
        ChatPrompts(kind="chat", count=PROMPTS)
        if getattr(pair.tokenizer, "chat_template", None)
        else EmbeddedPrompts(kind="embedded", count=PROMPTS, tokens=PROMPT_TOKENS)
    )
    prompts = encode(read_prompts(kind)[:PROMPTS], kind, pair.tokenizer)
    tried, contracts = [], set[str]()
    others = settings.conventions(pair.target)
    with reporter.units(1 + len(others)) as begin:
        for label, keys in ({"as stated": {}} | others).items():
            begin(label)
            with naming_options():
                experiment, changed = _experiment({**draft, **keys}, models, kind, tokens)
                contract = str(changed.head(pair.target).contract)
                if contract in contracts:
                    continue
                contracts.add(contract)
                require_fits(experiment, pair, prompts)
                accepted = tuple(_accepted(experiment, pair, prompts))
            tried.append(Tried(label, keys, accepted))
    return HeadCheck(str(head.contract), str(source["source"]), tuple(tried))


def export_head(
    model: str,
    source: Mapping[str, Any],
    models: Mapping[str, Any],
    folder: Path,
    *,
    console: "Console | None" = None,
    load: Callable[[Any], "Pair"] = load_models,
) -> str:
    """Write a head in its authors' layout; the conventions by which it is run.

    The arguments are those of `check_head`; `folder` must be new or empty.

    Raises:
        ConfigError, LoadError, UnsupportedModel: see `check_head`.
        InvalidArgument: if the folder holds something, or the layout cannot say what the head reads.
    """
    require_empty(folder)
    _, settings, head = _loaded({**source, "model": model}, models, 1, Reporter(console), load)
    settings.write(head, folder)
    return str(head.contract)


def _loaded(
    draft: Mapping[str, Any],
    models: Mapping[str, Any],
    tokens: int,
    reporter: Reporter,
    load: Callable[[Any], "Pair"],
) -> tuple["Pair", TrainedHead, Any]:
    """The target, the settings of the head, and the head."""
    known = {name: part.settings for name, part in plugins.parts("source").items()}
    heads = [name for name, kind in known.items() if kind and issubclass(kind, TrainedHead)]
    if draft.get("source") not in heads:
        raise ConfigError(
            f"--source {brief(draft.get('source'))} is no trained head: {', '.join(heads)}"
        )
    with naming_options():
        experiment, settings = _experiment(draft, models, None, tokens)
        with reporter.task("loading the models"):
            pair = load(experiment.config.models)
            return pair, settings, settings.head(pair.target)


def _accepted(experiment: Experiment, pair: "Pair", prompts: Sequence[Prompt]) -> Iterator[int]:
    """Accepted tokens of each step of all texts; that of a last step may be cut off."""
    (method,), (sampling,) = experiment.methods, experiment.samplings
    bench = Bench.of(experiment, pair)
    for prompt in prompts:
        for step in bench.decode(method, prompt, sampling, seed=0):
            yield step.verdict.accepted


def _experiment(
    draft: Mapping[str, Any],
    models: Mapping[str, Any],
    prompts: Prompts | None,
    tokens: int,
) -> tuple[Experiment, TrainedHead]:
    """An experiment whose only method drafts chains with a head, and the settings of the head."""
    data = {
        "name": "check",
        "models": {"draft": "none"} | {k: v for k, v in models.items() if v is not None},
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": max(1, tokens // PROMPTS),
        "samplings": [{"temperature": 0.0}],
        "methods": [{"kind": "tree", "shape": f"chain:{DEPTH}", "draft": dict(draft)}],
    }
    if prompts is not None:
        data["prompts"] = prompts.model_dump(mode="json", exclude_none=True)
    config = validated(Path("-"), data)
    (method,) = config.methods
    assert isinstance(method, TreeMethod)
    assert isinstance(method.draft, TrainedHead)
    return build(config), method.draft


def finding(check: HeadCheck) -> Finding:
    """The acceptance by each set of conventions, as a table."""

    def at(depth: int) -> Column[Tried]:
        return Column(f"depth {depth}", lambda one: f"{one.right_at(depth):.0%}")

    columns = [
        Column[Tried]("conventions", lambda one: one.label, left=True),
        *map(at, range(1, DEPTH + 1)),
        Column[Tried]("tokens per step", lambda one: f"{one.tokens_per_step:.2f}"),
        Column[Tried]("steps", lambda one: str(len(one.accepted))),
    ]
    best = max(one.mean for one in check.tried)
    table = Table(
        "Conventions of the head",
        columns,
        check.tried,
        said=check.verdict,
        tone=lambda one: "best" if one.mean == best else "",
    )
    note = (
        "At depth d: the share of steps whose drafts down to d were the target's tokens. The head drafts "
        f"chains of {DEPTH}, its best token each, over greedy texts of the target."
    )
    return Finding("Conventions of the head", [table], [note])


def family_of(model: str) -> str:
    """The source in configs that reads this head, judged by its files.

    Raises:
        ConfigError: if they do not tell.
        TreespecError: if its config.json is damaged.
    """
    from treespec.models.reading import Files
    from treespec.models.source import is_hub_id

    folder = Path(model).expanduser()
    files = Files(str(folder) if folder.is_dir() else model)
    possible = folder.is_dir() or is_hub_id(model)
    if not possible or not any(map(files.path, ("config.json", "medusa_lm_head.pt"))):
        raise ConfigError(
            f"there is no head {model!r}: neither a folder with a config.json nor in the local cache of "
            f"the Hugging Face hub (`hf download {model}` fetches one from there)"
        )
    config = files.data("config.json")
    kind = {"dflash": "block"}.get(str(config.get("speculators_model_type")))
    kind = kind or config.get("speculators_model_type")
    if kind in ("eagle", "eagle3", "mtp", "block"):
        return str(kind)
    classes = " ".join(map(str, config.get("architectures") or ())).lower()
    for source, marked in {
        "medusa": "medusa_num_heads" in config or files.path("medusa_lm_head.pt") is not None,
        "block": bool({"dflash_config", "block_size"} & config.keys()),
        "eagle3": "eagle3" in classes or bool({"draft_vocab_size", "eagle_config"} & config.keys()),
        "eagle": "eagle" in classes,
        "mtp": bool(
            {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"} & config.keys()
        ),
    }.items():
        if marked:
            return source
    raise ConfigError(
        f"config.json of {model!r} does not say of which family the head is: give --source eagle, eagle3, "
        "mtp, medusa or block"
    )


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
