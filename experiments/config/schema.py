"""The schema of configs. Data only: `file` reads it from YAML, `build` turns it into objects.

A choice is a mapping with a `kind`. Unknown keys are errors everywhere. Trees are in `shapes`.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from treespec import plugins
from treespec.experiments.config.base import (
    LAW,
    MOST_TIMED,
    RULE,
    FileName,
    Label,
    Number,
    Rounds,
    Seed,
    Tokens,
)
from treespec.experiments.config.combined import CascadeDraft, MergeDraft  # registers all sources
from treespec.experiments.config.model_draft import NO_DRAFT, Draft, ModelDraft
from treespec.experiments.config.questions import Compared
from treespec.experiments.config.samplings import SamplingConfig
from treespec.experiments.config.shapes import Shape
from treespec.experiments.config.synthetic import SyntheticDraft
from treespec.models.known_models import KNOWN
from treespec.reading_models import RENAMED_MODELS_KEYS, Strict
from treespec.search.growth.keys import Count, Name, Nodes

MOST_METHODS = 1000
"""Bound on the methods, and on the sampling settings, of an experiment."""

MOST_GRID = 100
"""Bound on the lengths, and on the thresholds, that assisted generation is tuned over."""

MOST_SIZES = 512
"""Bound on the number of tree sizes that are timed."""

MOST_BATCH = 4096
"""Bound on the prompts that are decoded side by side."""

MOST_PARAMETERS = 10**12

Parameters = Annotated[int, Field(strict=True, ge=1, le=MOST_PARAMETERS)]


def _size(text: str) -> str:
    """Reject "1000000B" before a model is loaded; `enlarge` reports other mistakes in a size."""
    match = re.fullmatch(r"\s*([0-9]+)[0-9.]*([KMB])\s*", text.upper())
    thousands = {"K": 1, "M": 2, "B": 3}
    if match and (
        len(match[1]) > 12 or int(match[1]) * 1000 ** thousands[match[2]] > MOST_PARAMETERS
    ):
        raise ValueError(f"must be at most {MOST_PARAMETERS:,} parameters")
    return text


Size = Annotated[Name, AfterValidator(_size)]

for _combined in (CascadeDraft, MergeDraft, SyntheticDraft):
    _combined.model_rebuild(force=True)  # with the sources that were registered since

Quantised = Literal["int8-weight-only", "int8-dynamic", "bitsandbytes-int8", "bitsandbytes-nf4"]

PassesAsked = Literal["eager", "compiled", "captured", "auto"]

ChatTemplate = Annotated[
    Literal["auto"] | bool,
    Field(
        description="Whether to format prompts with the tokenizer's chat template; `auto`: if it has one."
    ),
]

MethodName = Annotated[
    Label | None, Field(description="Name in tables and records; null for the method's kind.")
]


class ModelsConfig(Strict):
    """The target and draft models, as `treespec.load_pair` takes them."""

    RENAMED = RENAMED_MODELS_KEYS

    target: Name = "embedded"
    """The target model: `embedded`, a folder, a GGUF file (its weights are dequantised), a hub id, or a
    model that `treespec models get` has fetched."""
    draft: Name | None = None
    """A folder, GGUF file or hub id; `none` for no draft model. Null if the target is `embedded`, a folder
    that contains a draft, or a fetched model, which has none."""
    other_tokenizer: Annotated[bool, Field(strict=True)] = False
    """Take drafts whose tokenizer differs from the target's too: `source: model` then drafts the tokens
    that both know, with rows renormalised on them; `source: strings` drafts whole strings."""
    dtype: Literal["fastest", "float32", "bfloat16", "float16", "float64", "auto"] = "fastest"
    """Dtype of the weights and of all computation. `fastest` times passes in float32 and bfloat16 on a CPU
    and takes the dtype in which the best method decodes faster; on other devices it is bfloat16. `auto` is
    the dtype the weights are stored in."""
    draft_dtype: Literal["float32", "bfloat16", "float16", "float64", "auto"] | None = None
    """Dtype of the draft models; null for that of the target."""
    quantised: Quantised | None = None
    """Quantise the target's weights while they are loaded: `int8-weight-only` or `int8-dynamic`
    (activations too, with a scale for each row) by torchao; `bitsandbytes-int8` or `bitsandbytes-nf4` on
    CUDA. The quantised model is what is preserved, and the baseline. Null to take weights as they are
    stored, quantised or not."""
    draft_quantised: Quantised | None = None
    """The same for the draft models."""
    device: Name = "cpu"
    """Device of both models: `cpu`, `cuda`, `cuda:1` and so on."""
    enlarge: Parameters | Size | dict[str, Count] | None = None
    """Enlarge the target to this many parameters ("100M") or to these fields of its config; its output
    stays the same. Null to leave it as it is."""
    attention: Literal[
        "auto", "transformers", "reference", "sdpa", "two_pass", "flex", "triton"
    ] = "auto"
    """Attention implementation with which both models run trees. If the named one cannot run here, loading
    fails."""
    device_map: Literal["auto"] | dict[str, Name | Number] | None = None
    """Spread the target over all GPUs ("auto", by accelerate), or as given by a mapping from modules to
    devices; the draft goes to the device of the target's embeddings. Null to use `device`."""
    tensor_parallel: Annotated[bool, Field(strict=True)] = False
    """Split every layer of the target over the processes of `torchrun`; each process has a full draft."""
    passes: PassesAsked | None = "auto"
    """How the target runs trees: operation by operation (`eager`), compiled as one graph (`compiled`, on
    a CPU), or as a CUDA graph (`captured`); if the named way is not available, loading fails. `auto` takes
    the fastest that is available, whatever the length of the run. Null for `captured` on CUDA if
    available, else `eager`."""
    draft_passes: PassesAsked | None = "auto"
    """The same for the draft model and for parts of the target that draft (`early_exit`, `layer_skip`);
    null for `eager`, on CUDA too."""

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        """A model that is fetched by name comes without a draft."""
        if isinstance(data, dict) and data.get("draft") is None and data.get("target") in [*KNOWN]:
            return data | {"draft": NO_DRAFT}
        return data


class _Selection(Strict):
    skip: Number = 0
    """Prompts of the source to leave out at its beginning."""
    count: Count | None = None
    """Number of prompts to measure; null for all."""
    start: Number = 0
    """Tokens to skip at the beginning of each prompt."""
    tokens: Count | None = None
    """Tokens to keep of each prompt after `start`; null for all."""
    least_characters: Count | None = None
    """Drop texts with fewer characters, so that the others have enough `tokens`; null to keep all."""


class _Texts(_Selection):
    system: Annotated[str, Field(min_length=1)] | None = None
    """System prompt that the chat template puts before each prompt that has none of its own; null for
    none."""


class EmbeddedPrompts(_Selection):
    """Excerpts of source files that the embedded pair was not trained on."""

    kind: Literal["embedded"]
    excerpts: Annotated[dict[Name, Number], Field(min_length=1)] | None = None
    """Take several excerpts of each file: a mapping from category to the token at which its excerpt begins
    (`start` is added). Null for one excerpt per file."""


class TaskPrompts(_Selection):
    """Short texts by category: `code`, `prose`, `editing` a file given in the prompt, and `logs` or tables.

    They were written for treespec and are under its licence. There are twelve per category.
    """

    kind: Literal["tasks"]


class ChatPrompts(_Texts):
    """Short requests to a chat model, in the tokenizer's chat template.

    Eighteen of each category, in turns: `questions`, `summaries` of a text in the request, `translation`,
    `arithmetic`, `code writing`, `code editing`, `lists` and `stories`. The first 96 are for measuring, and
    all that are read without a `count`; the other 48 (`skip: 96`) are for tuning. They were written for
    treespec and are in the public domain (CC0).
    """

    kind: Literal["chat"]


class SummaryPrompts(_Selection):
    """The eighteen requests for a summary among those of kind `chat`, as sources of encoder-decoders."""

    kind: Literal["summaries"]


class TextPrompts(_Texts):
    """A UTF-8 text file: one prompt, or several separated by lines that contain only `separator`."""

    kind: Literal["text"]
    path: Name
    """The file."""
    separator: Name | None = None
    """The line between two prompts; null if the file is one prompt."""
    chat_template: ChatTemplate = False


class JsonlPrompts(_Texts):
    """One JSON object per line; one of its fields holds the prompt (of a list of texts, the first).

    Or the prompt is a whole conversation, in that field or in one called `messages`: a list of
    `{role, content}` that ends with the user's turn. A field `system` holds a system prompt.
    """

    kind: Literal["jsonl"]
    path: Name
    """The file."""
    field: Name = "prompt"
    """The field that holds the prompt."""
    source: Name | None = None
    """The field that holds the text for the encoder of an encoder-decoder; the prompt is then the beginning
    of the answer, and may be missing. Null for decoders, which read the prompt alone."""
    chat_template: ChatTemplate = "auto"


class SpecBenchPrompts(_Texts):
    """The Spec-Bench format: `question_id`, `category`, `turns`.

    The first turn is the prompt; later ones follow an answer and are not read.
    """

    kind: Literal["spec_bench"]
    path: Name
    """The file."""
    chat_template: ChatTemplate = "auto"


class HfDatasetPrompts(_Texts):
    """A data set of the Hugging Face hub, or a folder with one. Needs the package `datasets`.

    The manifest of a run records the revision that was read, so that `revision` can pin it.
    """

    kind: Literal["hf_dataset"]
    path: Name
    """A hub id, or a folder with the files of a data set."""
    split: Name
    """A split such as `test`, or a slice of one, such as `test[:80]`."""
    field: Name = "prompt"
    """The column that holds the prompt: text, a list of texts (the first counts), or a conversation as in
    `jsonl`."""
    source: Name | None = None
    """The column that holds the text for the encoder of an encoder-decoder; the prompt is then the
    beginning of the answer, and may be missing. Null for decoders, which read the prompt alone."""
    subset: Name | None = None
    """The configuration, if the data set has several; null for its only one."""
    revision: Name | None = None
    """A commit, tag or branch on the hub; null for the newest. Folders have no revision."""
    chat_template: ChatTemplate = "auto"


Prompts = Annotated[
    EmbeddedPrompts
    | TaskPrompts
    | ChatPrompts
    | SummaryPrompts
    | TextPrompts
    | JsonlPrompts
    | SpecBenchPrompts
    | HfDatasetPrompts,
    Field(discriminator="kind"),
]


class GenerateMethod(Strict):
    """Plain decoding by transformers' `generate`."""

    kind: Literal["generate"]
    name: MethodName = None


class PlainMethod(Strict):
    """Plain decoding by treespec's own loop, without a draft."""

    kind: Literal["plain"]
    name: MethodName = None


class AssistedMethod(Strict):
    """Assisted generation by transformers.

    Of several lengths or thresholds, the pair with the most tokens per second is chosen for each sampling
    setting, on prompts that are not measured.
    """

    kind: Literal["assisted"]
    name: MethodName = None
    lengths: Annotated[tuple[Nodes, ...], Field(min_length=1, max_length=MOST_GRID)] = (
        2,
        4,
        6,
        8,
        12,
    )
    """Draft tokens per step; of several, tuning picks the best."""
    thresholds: Annotated[
        tuple[Annotated[float, Field(strict=True, ge=0, le=1)], ...],
        Field(min_length=1, max_length=MOST_GRID),
    ] = (0.0, 0.4)
    """Drafting stops at a token less probable than this; of several, tuning picks the best."""
    tune_prompts: Count = 2
    """Prompts to tune on, in addition to those that are measured."""

    @property
    def grid(self) -> list[tuple[int, float]]:
        return [(length, threshold) for length in self.lengths for threshold in self.thresholds]


class TreeMethod(Strict):
    """Decoding by treespec's own loop, with a drafted tree.

    If `law` or `rule` is null, it is chosen to fit the other one; if both are, by the temperature: `greedy`
    with deterministic children at 0; above 0, `chain` for chains and `rrsw` without replacement for other
    trees.
    """

    kind: Literal["tree"]
    draft: Draft = ModelDraft()
    """The draft source: `{source: model}`, `{source: lookup}` or another one listed by `treespec parts`."""
    shape: Shape
    """The tree: a kind with its settings, or spelled as on the command line: `kary:2x3`."""
    law: Annotated[Name, LAW] | None = None
    """How children are drawn, such as `iid` or `without_replacement`; null to fit rule and temperature."""
    rule: Annotated[Name, RULE] | None = None
    """How children are accepted, such as `rrsw` or `greedy`; null to fit law and temperature."""
    settings: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Settings of the rule, if it has any: `{lenience: 0.5}` for `lenient`, `{epsilon: 0.09, delta: 0.3}`
    for `typical`."""
    name: Label | None = None
    """Name in tables and records; null for a name made of draft source, tree, law and rule."""


Method = Annotated[
    GenerateMethod | PlainMethod | AssistedMethod | TreeMethod, Field(discriminator="kind")
]


class SearchConfig(Strict):
    """What to measure before the run, for methods that set a key to `measured` and for predictions.

    The search records how often the k-th child is accepted, on prompts of its own, and times passes on the
    same models in the same process: with `batch: 8`, rounds of eight texts. If methods grow their trees by
    the draft's confidence, it also records draft probabilities off the decoded texts. The results are kept
    in the run's folder.
    """

    prompts: Prompts | None = None
    """Prompts to record on; null for the run's own prompts, continued from where the run's texts end:
    `start` + `tokens` + `max_new_tokens`."""
    max_new_tokens: Tokens = 64
    """Tokens recorded for each prompt and sampling setting."""
    width: Annotated[int, Field(strict=True, ge=1, le=64)] = 8
    """Children recorded at every position: no node of a searched tree has more."""
    depth: Nodes = 8
    """Levels with rates of their own: no searched tree is deeper."""
    shrinkage: Annotated[float, Field(ge=0)] = 20.0
    """Pseudo-counts that shrink the rates of a level towards those of all levels together."""
    sizes: (
        Annotated[
            tuple[Annotated[int, Field(strict=True, ge=1, le=MOST_TIMED)], ...],
            Field(max_length=MOST_SIZES),
        ]
        | None
    ) = None
    """Tree sizes (nodes) at which the target is timed; null for those of `treespec profile` up to 64."""
    repeats: Rounds = 9
    """Rounds of timing; each measures everything once."""


class Until(Strict):
    """Look at the results after 12, 18, 27, 40, 60, 90, ... prompts; end the run once they are clear.

    The prompts are those of a run without this key; their number is an upper limit. Either `decided` or
    `half_width` says when to end; `until: decided` is short for `until: {decided: true}`.
    """

    decided: Annotated[bool, Field(strict=True)] = False
    """End when trees and chains, or the sides of every question of `compare`, differ under every sampling
    setting: the interval of their speed ratio, corrected for looking repeatedly, excludes 1."""
    half_width: Annotated[float, Field(gt=0, le=10)] | None = None
    """End when half the width of the same interval is below this under every sampling setting: 0.03 for
    three percentage points. If trees or chains are missing, the interval of the best speculative method
    against plain decoding counts."""
    at_most: Count | None = None
    """Maximum number of prompts, in place of `prompts.count`; if prompts are excerpts, of files, because
    excerpts of one file are alike. Null for all prompts of the run."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.decided == (self.half_width is not None):
            raise ValueError(
                "give either `decided: true` or `half_width: 0.03`, not both or neither"
            )
        return self


def _written_out(data: Any) -> Any:
    if isinstance(data, str) and data != "decided":
        raise ValueError("must be `decided`, or a mapping such as {half_width: 0.03}")
    return {"decided": True} if data == "decided" else data


ShortUntil = Annotated[Literal["decided"], Field(description="Short for `{decided: true}`.")]

UntilClear = Annotated[
    Until | None, BeforeValidator(_written_out, json_schema_input_type=Until | ShortUntil | None)
]
"""A rule as a mapping, or the word `decided`."""


class Config(Strict):
    """A whole experiment."""

    name: FileName
    """Name of the experiment and, without `output`, of its folder."""
    models: ModelsConfig = ModelsConfig()
    """Target and draft model."""
    prompts: Prompts
    """The texts to continue."""
    max_new_tokens: Tokens
    """New tokens of each text; fewer if the text ends earlier."""
    samplings: Annotated[tuple[SamplingConfig, ...], Field(min_length=1, max_length=MOST_METHODS)]
    """The sampling settings under which every method decodes every prompt."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1, max_length=MOST_METHODS)]
    """The decoding methods to compare."""
    seed: Seed = 0
    """Seed of all randomness."""
    repeats: Rounds = 1
    """How often each prompt is decoded, with different seeds; a prompt still counts as one sample."""
    until: UntilClear = None
    """End the run as soon as the comparison is clear: `decided`, or a rule; null to decode all prompts."""
    compare: Annotated[tuple[Compared, ...], Field(max_length=MOST_METHODS)] = ()
    """Which methods to compare with which: `[{left: {source: suffix_tree}, right: {source: lookup}}]`.
    Empty for trees against chains, which are also compared if one source drafts both. Speculation is
    always compared with plain decoding."""
    warmup: Number = 1
    """Prompts decoded by every method before anything is measured."""
    batch: Annotated[int, Field(strict=True, ge=1, le=MOST_BATCH)] = 1
    """Number of prompts that every method decodes side by side, with one pass of the target a step for all
    of them; their number must be a multiple of it. `generate` pads them on the left. Intervals are over
    batches."""
    together: Count | None = None
    """Number of methods that take turns step by step, so that a slow phase of the machine affects them
    equally; 1 to decode each prompt by one method after the other, null for as many as memory holds."""
    alone: Number = 2
    """Number of first prompts that every method also decodes by itself, while the meters are read."""
    fresh_drafts: Number = 0
    """Number of first prompts on which every method also drafts anew from each accepted node, untimed: is
    the next token as hard for a draft that is rooted there? Costs a draft and a pass of the target for
    each token."""
    search: SearchConfig | None = None
    """What to measure before the run; null for nothing."""
    stop_strings: tuple[Name, ...] = ()
    """A text ends after the token that completes one of these; end-of-text tokens always end it."""
    trees: Number = 2
    """Number of first prompts whose drafted trees are recorded with their tokens."""
    meters: tuple[Literal["memory", "energy"], ...] = ("memory", "energy")
    """What to measure for every prompt besides times; null in records if this machine cannot measure it."""
    tracker: Literal["trackio", "wandb"] | None = None
    """Tracker to log rows to as well; its package must be installed. Null for none."""
    output: Name | None = None
    """The run's folder; null for `runs/<name>`."""


_BUILT = {"version": plugins.version()}


def refresh() -> None:
    """Rebuild the schema so that configs can name exactly the parts that are registered now."""
    if _BUILT["version"] != plugins.version():
        for settings in (CascadeDraft, MergeDraft, SyntheticDraft, TreeMethod):
            settings.model_rebuild(force=True)
        Config.model_rebuild(force=True)
        _BUILT["version"] = plugins.version()
