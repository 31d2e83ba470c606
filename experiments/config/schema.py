"""What can be configured. Data only: `build` makes objects of it, `file` reads it from YAML.

A choice is a mapping with a `kind`. Unknown keys are errors everywhere. Trees are in `shapes`.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from treespec import plugins
from treespec.experiments.config.base import (
    MOST_TIMED,
    Count,
    FileName,
    Label,
    Name,
    Nodes,
    Number,
    Rounds,
    Seed,
    Tokens,
)
from treespec.experiments.config.combined import CascadeDraft, MergeDraft
from treespec.experiments.config.drafts import Draft, ModelDraft
from treespec.experiments.config.layers import EarlyExitDraft  # noqa: F401  (registers both)
from treespec.experiments.config.names import LAW, RULE
from treespec.experiments.config.shapes import Shape
from treespec.experiments.config.sources import LookupDraft  # noqa: F401  (registers them all)
from treespec.experiments.config.until import UntilClear
from treespec.reading_models import Strict
from treespec.renamed_keys import RENAMED_MODELS_KEYS
from treespec.search.rates.sampling_names import name_of

__all__ = [
    "AssistedMethod",
    "Config",
    "EmbeddedPrompts",
    "GenerateMethod",
    "HfDatasetPrompts",
    "JsonlPrompts",
    "Method",
    "ModelsConfig",
    "PlainMethod",
    "Prompts",
    "SamplingConfig",
    "SearchConfig",
    "SpecBenchPrompts",
    "TaskPrompts",
    "TextPrompts",
    "TreeMethod",
    "refresh",
]

MOST_METHODS = 1000
"""Methods, or sampling settings, of an experiment."""

MOST_GRID = 100
"""Lengths, or thresholds, that assisted generation is tuned over."""

MOST_SIZES = 512
"""Sizes that are timed."""

MOST_PARAMETERS = 10**12

Parameters = Annotated[int, Field(strict=True, ge=1, le=MOST_PARAMETERS)]


def _size(text: str) -> str:
    """Refuse "1000000B" before a model is loaded; other mistakes in a size are reported by `enlarge`."""
    match = re.fullmatch(r"\s*([0-9]+)[0-9.]*([KMB])\s*", text.upper())
    thousands = {"K": 1, "M": 2, "B": 3}
    if match and (
        len(match[1]) > 12 or int(match[1]) * 1000 ** thousands[match[2]] > MOST_PARAMETERS
    ):
        raise ValueError(f"must be at most {MOST_PARAMETERS:,} parameters")
    return text


Size = Annotated[Name, AfterValidator(_size)]

for _combined in (CascadeDraft, MergeDraft):
    _combined.model_rebuild(force=True)  # with the sources that were registered since

PassesAsked = Literal["eager", "compiled", "captured", "auto"]


class ModelsConfig(Strict):
    """The pair, as `treespec.load_pair` takes it."""

    RENAMED = RENAMED_MODELS_KEYS

    target: Name = "embedded"
    """`embedded`, a folder, or a hub id."""
    draft: Name | None = None
    """A folder or hub id; null for `embedded` and folders that bring one; `none` for no draft model."""
    dtype: Literal["float32", "bfloat16", "float16", "float64", "auto"] = "bfloat16"
    """Of the weights and of all that is computed with them; `auto` for what the weights are stored in."""
    device: Name = "cpu"
    """`cpu`, `cuda`, `cuda:1` and so on."""
    enlarge: Parameters | Size | dict[str, Count] | None = None
    """Enlarge the target to this many parameters ("100M") or these fields; its tokens stay the same."""
    attention: Literal[
        "auto", "transformers", "reference", "sdpa", "two_pass", "flex", "triton"
    ] = "auto"
    """How both models run trees. One that is named is used, or the pair is refused at load."""
    device_map: Literal["auto"] | dict[str, Name | Number] | None = None
    """Spread the target over all GPUs ("auto", by accelerate), or as a map from modules to devices says;
    the draft stays where the target's embeddings are. Null for `device`."""
    tensor_parallel: Annotated[bool, Field(strict=True)] = False
    """Split every layer of the target over the processes of `torchrun`; each has a whole draft."""
    passes: PassesAsked | None = None
    """How the target runs trees: operation by operation (`eager`), compiled as one graph (`compiled`, on
    a CPU), or as a CUDA graph (`captured`); one that is named is used, or the pair is refused. `auto` takes
    the best that can be had, but compiles only where the run is long enough to gain by it. Null for
    `captured` on CUDA where that can be, else `eager`."""
    draft_passes: PassesAsked | None = None
    """The same of the draft, and of parts of the target that draft (`early_exit`, `layer_skip`); null for
    `eager` on CUDA too."""


class _Selection(Strict):
    count: Count | None = None
    """How many prompts are measured; null for all."""
    start: Number = 0
    """Tokens to leave out at the beginning of each prompt."""
    tokens: Count | None = None
    """Tokens to keep of each prompt after that; null for all."""
    least_characters: Count | None = None
    """Leave out texts that are shorter, so that the others have enough `tokens`; null to keep all."""


class EmbeddedPrompts(_Selection):
    """Excerpts of source files that the embedded pair was not trained on."""

    kind: Literal["embedded"]
    excerpts: Annotated[dict[Name, Number], Field(min_length=1)] | None = None
    """Take several of each file: the token at which each begins, by category; `start` is added to it."""


class TaskPrompts(_Selection):
    """Short texts by category: `code`, `prose`, `editing` a file that stands in the prompt, and `logs`.

    They were written for treespec and are under its licence. There are six of each category, of `editing`
    twelve.
    """

    kind: Literal["tasks"]


class TextPrompts(_Selection):
    """A UTF-8 text file: one prompt, or several between lines that hold `separator` alone."""

    kind: Literal["text"]
    path: Name
    """The file."""
    separator: Name | None = None
    """A line that stands between two prompts; null if the file is one prompt."""
    chat_template: Literal["auto"] | bool = False
    """Whether prompts are put into the tokenizer's chat template; `auto`: if it has one."""


class JsonlPrompts(_Selection):
    """A prompt for each line, in a field that holds text (or a list of texts, whose first is taken)."""

    kind: Literal["jsonl"]
    path: Name
    """The file."""
    field: Name = "prompt"
    """The field of a line that holds its prompt."""
    chat_template: Literal["auto"] | bool = "auto"
    """Whether prompts are put into the tokenizer's chat template; `auto`: if it has one."""


class SpecBenchPrompts(_Selection):
    """The Spec-Bench format: `question_id`, `category`, `turns`. The first turn is the prompt."""

    kind: Literal["spec_bench"]
    path: Name
    """The file."""
    chat_template: Literal["auto"] | bool = "auto"
    """Whether prompts are put into the tokenizer's chat template; `auto`: if it has one."""


class HfDatasetPrompts(_Selection):
    """A data set of the Hugging Face hub, or a folder of one: needs the package `datasets`.

    The manifest of a run says which revision was read, so that `revision` can pin it.
    """

    kind: Literal["hf_dataset"]
    path: Name
    """A hub id, or a folder with the files of a data set."""
    split: Name
    """Such as `test`, or a part of one, such as `test[:80]`."""
    field: Name = "prompt"
    """The column that holds text (or a list of texts, whose first is taken)."""
    subset: Name | None = None
    """The configuration of a data set that has several; null for its only one."""
    revision: Name | None = None
    """A commit, tag or branch of the hub; null for the newest. Folders have none."""
    chat_template: Literal["auto"] | bool = "auto"
    """Whether prompts are put into the tokenizer's chat template; `auto`: if it has one."""


Prompts = Annotated[
    EmbeddedPrompts
    | TaskPrompts
    | TextPrompts
    | JsonlPrompts
    | SpecBenchPrompts
    | HfDatasetPrompts,
    Field(discriminator="kind"),
]


class SamplingConfig(Strict):
    """Sampling settings, of target and draft alike. Temperature 0 is greedy decoding."""

    temperature: Annotated[float, Field(strict=True, ge=0)] = 1.0
    """Divides the logits; 0 for greedy decoding."""
    top_k: Count | None = None
    """Keep so many most probable tokens; null for all."""
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Keep the most probable tokens that have this probability together; null for all."""
    min_p: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    """Keep tokens at least this part as probable as the most probable one; null for all."""

    @property
    def name(self) -> str:
        """Such as `T=0` or `T=0.8, top_p=0.9`."""
        return str(name_of(dict(self)))


class GenerateMethod(Strict):
    """Plain decoding by transformers' `generate`."""

    kind: Literal["generate"]
    name: Label | None = None
    """In tables and records; null for its kind."""


class PlainMethod(Strict):
    """Plain decoding by our own loop, without a draft."""

    kind: Literal["plain"]
    name: Label | None = None
    """In tables and records; null for its kind."""


class AssistedMethod(Strict):
    """Assisted generation of transformers.

    With more than one length or threshold they are tuned by tokens per second, for each sampling setting,
    on prompts that are not measured.
    """

    kind: Literal["assisted"]
    name: Label | None = None
    """In tables and records; null for its kind."""
    lengths: Annotated[tuple[Nodes, ...], Field(min_length=1, max_length=MOST_GRID)] = (
        2,
        4,
        6,
        8,
        12,
    )
    """Draft tokens of a step; the best of several is tuned."""
    thresholds: Annotated[
        tuple[Annotated[float, Field(strict=True, ge=0, le=1)], ...],
        Field(min_length=1, max_length=MOST_GRID),
    ] = (0.0, 0.4)
    """Drafting stops at a token that is less probable than this; the best of several is tuned."""
    tune_prompts: Count = 2
    """Prompts that tuning takes, besides those that are measured."""

    @property
    def grid(self) -> list[tuple[int, float]]:
        """All pairs of a length and a confidence threshold."""
        return [(length, threshold) for length in self.lengths for threshold in self.thresholds]


class TreeMethod(Strict):
    """Our loop with a drafted tree.

    `law` and `rule` are chosen by each other, and by the temperature if both are null: greedy with
    deterministic children at 0; above it chain rejection for chains, and rrsw without replacement for other
    trees.
    """

    kind: Literal["tree"]
    draft: Draft = ModelDraft()
    """Where drafts come from: `{source: model}`, `{source: lookup}` or another of `treespec parts`."""
    shape: Shape
    """The tree: a kind with its numbers, or as on the command line: `kary:2x3`."""
    law: Annotated[Name, LAW] | None = None
    """How children are drawn, such as `iid` or `without_replacement`; null to fit rule and temperature."""
    rule: Annotated[Name, RULE] | None = None
    """How children are accepted, such as `rrsw` or `greedy`; null to fit law and temperature."""
    settings: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Of a rule that has some: `{lenience: 0.5}` for lenient, `{epsilon: 0.09, delta: 0.3}` for typical."""
    name: Label | None = None
    """In tables and records; null for one that says what it is."""


Method = Annotated[
    GenerateMethod | PlainMethod | AssistedMethod | TreeMethod, Field(discriminator="kind")
]


class SearchConfig(Strict):
    """What is measured before the run: for methods that ask for what is `measured`, and for predictions.

    How often the k-th child is accepted is recorded on prompts of its own, and what the draft thinks beside
    the texts if methods grow by it; what passes cost, on the same models in the same process. All is kept
    in the run's folder.
    """

    prompts: Prompts | None = None
    """Null for the run's own prompts from where its texts end: `start` + `tokens` + `max_new_tokens`."""
    max_new_tokens: Tokens = 64
    """Tokens recorded for each prompt and sampling setting."""
    width: Annotated[int, Field(strict=True, ge=1, le=64)] = 8
    """Children recorded at every position: no searched tree has wider nodes."""
    depth: Nodes = 8
    """Levels with rates of their own: no searched tree is deeper."""
    shrinkage: Annotated[float, Field(ge=0)] = 20.0
    """Pseudo-counts with which a level's rates are drawn to those of all levels."""
    sizes: (
        Annotated[
            tuple[Annotated[int, Field(strict=True, ge=1, le=MOST_TIMED)], ...],
            Field(max_length=MOST_SIZES),
        ]
        | None
    ) = None
    """Nodes at which the target is timed; null for those of `treespec profile` up to 64."""
    repeats: Rounds = 9
    """Rounds of timing."""


class Config(Strict):
    """A whole experiment."""

    name: FileName
    """Of the experiment and, without `output`, of its folder."""
    models: ModelsConfig = ModelsConfig()
    """Target and draft."""
    prompts: Prompts
    """What is continued."""
    max_new_tokens: Tokens
    """New tokens of each text, unless it ends before."""
    samplings: Annotated[tuple[SamplingConfig, ...], Field(min_length=1, max_length=MOST_METHODS)]
    """The settings under which every method decodes every prompt."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1, max_length=MOST_METHODS)]
    """What is compared."""
    seed: Seed = 0
    """All randomness follows from it."""
    repeats: Rounds = 1
    """Times that each prompt is run, with seeds of its own each time; a prompt stays one sample."""
    until: UntilClear = None
    """End the run as soon as it is clear enough: `decided`, or a rule; null to decode all prompts."""
    warmup: Number = 1
    """Prompts decoded by every method before anything is measured."""
    together: Count | None = None
    """Methods that take turns step by step, so that what slows the machine down meets them alike; 1 to
    decode each prompt by one method after the other, null for as many as memory holds."""
    alone: Number = 2
    """The first prompts that every method also decodes by itself: there meters are read."""
    search: SearchConfig | None = None
    """What to measure before the run; null for nothing."""
    stop_strings: tuple[Name, ...] = ()
    """A text ends after the token that completes one of these; end-of-text tokens always end it."""
    trees: Number = 2
    """The first prompts whose drafted trees are recorded with their tokens."""
    meters: tuple[Literal["memory", "energy"], ...] = ("memory", "energy")
    """What is measured for every prompt besides times; null where this machine cannot measure it."""
    tracker: Literal["trackio", "wandb"] | None = None
    """A tracker to which rows are logged as well; its package must be installed. Null for none."""
    output: Name | None = None
    """The run's folder; null for `runs/<name>`."""


_BUILT = {"version": plugins.version()}


def refresh() -> None:
    """Let configs name the parts that are registered now, and no others."""
    if _BUILT["version"] != plugins.version():
        for settings in (CascadeDraft, MergeDraft, TreeMethod):
            settings.model_rebuild(force=True)
        Config.model_rebuild(force=True)
        _BUILT["version"] = plugins.version()
