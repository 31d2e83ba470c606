"""What can be configured. Data only: `builder` makes objects of it, `config_file` reads it from YAML.

A choice is a mapping with a `kind`. Unknown keys are errors everywhere.
"""

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "AssistedMethod",
    "ChainShape",
    "Config",
    "EmbeddedPrompts",
    "ExpansionShape",
    "GenerateMethod",
    "IndependentChainsShape",
    "JsonlPrompts",
    "KaryShape",
    "Method",
    "ModelsConfig",
    "ParentsShape",
    "PathsShape",
    "PlainMethod",
    "Prompts",
    "SamplingConfig",
    "Shape",
    "SpecBenchPrompts",
    "TextPrompts",
    "TreeMethod",
    "nearest",
]

Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[int, Field(strict=True, ge=0)]
Name = Annotated[str, Field(strict=True, min_length=1)]


def nearest(word: str, allowed: list[str]) -> str:
    """`; did you mean 'x'?` with the allowed word that is spelt most alike, or nothing."""
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class Strict(BaseModel):
    """A mapping without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        unknown = [k for k in data if k not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            keys = list(cls.model_fields)
            raise PydanticCustomError(
                "unknown_key",
                "unknown key{hint} (keys here: {keys})",
                {
                    "key": str(unknown[0]),
                    "hint": nearest(str(unknown[0]), keys),
                    "keys": ", ".join(keys),
                },
            )
        return data


class ModelsConfig(Strict):
    """The pair, as `treespec.load_pair` takes it."""

    target: Name = "embedded"
    """`embedded`, a folder, or a hub id."""
    draft: Name | None = None
    """A folder or hub id; null for `embedded`."""
    dtype: Literal["float32", "bfloat16", "float16", "float64", "auto"] = "bfloat16"
    device: Name = "cpu"
    grow: Count | Name | dict[str, Count] | None = None
    """Grow the target, function-preservingly, to so many parameters ("100M"), or to these config fields."""
    attention: Literal[
        "auto", "transformers", "reference", "sdpa", "two_pass", "flex", "triton"
    ] = "auto"
    """How both models run trees; what is named runs, or the pair is refused at load."""


class _Selection(Strict):
    count: Count | None = None
    """How many prompts are measured; null for all."""
    tokens: Count | None = None
    """Keep so many tokens of each prompt; null for all."""


class EmbeddedPrompts(_Selection):
    """Excerpts of source files that the embedded pair was not trained on."""

    kind: Literal["embedded"]


class TextPrompts(_Selection):
    """A UTF-8 text file: one prompt, or several between lines that hold `separator` alone."""

    kind: Literal["text"]
    path: Name
    separator: Name | None = None
    chat_template: Literal["auto"] | bool = False


class JsonlPrompts(_Selection):
    """A prompt for each line, in a field that holds text (or a list of texts: the first counts)."""

    kind: Literal["jsonl"]
    path: Name
    field: Name = "prompt"
    chat_template: Literal["auto"] | bool = "auto"


class SpecBenchPrompts(_Selection):
    """The Spec-Bench format: `question_id`, `category`, `turns`. The first turn is the prompt."""

    kind: Literal["spec_bench"]
    path: Name
    chat_template: Literal["auto"] | bool = "auto"


Prompts = Annotated[
    EmbeddedPrompts | TextPrompts | JsonlPrompts | SpecBenchPrompts, Field(discriminator="kind")
]


class SamplingConfig(Strict):
    """Sampling settings, of target and draft alike. Temperature 0 is greedy decoding."""

    temperature: Annotated[float, Field(strict=True, ge=0)] = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None

    @property
    def name(self) -> str:
        """Such as `T=0` or `T=0.8, top_p=0.9`."""
        rest = [f"{k}={v:g}" for k, v in self if k != "temperature" and v is not None]
        return ", ".join([f"T={self.temperature:g}", *rest])


class ChainShape(Strict):
    """One node below the other."""

    kind: Literal["chain"]
    depth: Count


class KaryShape(Strict):
    """Every node above the last level has `branching` children."""

    kind: Literal["kary"]
    branching: Count
    depth: Count


class ExpansionShape(Strict):
    """SpecInfer's expansion: level i gives each leaf `branching[i]` children."""

    kind: Literal["expansion"]
    branching: Annotated[tuple[Count, ...], Field(min_length=1)]


class IndependentChainsShape(Strict):
    """`width` chains of `depth` nodes that share only the root."""

    kind: Literal["independent_chains"]
    width: Count
    depth: Count


class ParentsShape(Strict):
    """Any tree, as a parent array; the root is node 0 with parent -1."""

    kind: Literal["parents"]
    parents: Annotated[tuple[Annotated[int, Field(strict=True)], ...], Field(min_length=2)]


class PathsShape(Strict):
    """Any tree, as paths of child ranks with the root implied (Medusa's choices)."""

    kind: Literal["paths"]
    paths: Annotated[tuple[tuple[Number, ...], ...], Field(min_length=1)]


class OptimalShape(Strict):
    """The tree of `size` nodes, the root included, that keeps most tokens under the rates of `search`.

    `rates` are those of the first, second, ... child, or such a list for each level.
    """

    kind: Literal["optimal"]
    rates: tuple[float, ...] | tuple[tuple[float, ...], ...]
    size: Annotated[int, Field(ge=2, strict=True)]
    depth: Count | None = None
    branching: Count | None = None


Shape = Annotated[
    ChainShape
    | KaryShape
    | ExpansionShape
    | IndependentChainsShape
    | ParentsShape
    | PathsShape
    | OptimalShape,
    Field(discriminator="kind"),
]


class GenerateMethod(Strict):
    """Plain decoding by transformers' `generate`."""

    kind: Literal["generate"]
    name: Name | None = None


class PlainMethod(Strict):
    """Plain decoding by our own loop, without a draft."""

    kind: Literal["plain"]
    name: Name | None = None


class AssistedMethod(Strict):
    """Assisted generation of transformers.

    With more than one length or threshold they are tuned by tokens per second, for each sampling setting,
    on prompts that are not measured.
    """

    kind: Literal["assisted"]
    name: Name | None = None
    lengths: Annotated[tuple[Count, ...], Field(min_length=1)] = (2, 4, 6, 8, 12)
    thresholds: Annotated[
        tuple[Annotated[float, Field(strict=True, ge=0, le=1)], ...], Field(min_length=1)
    ] = (0.0, 0.4)
    tune_prompts: Count = 2

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
    shape: Shape
    law: Name | None = None
    rule: Name | None = None
    settings: dict[str, Annotated[float, Field(ge=0, le=1)]] = {}
    """Of a rule that has some: `{lenience: 0.5}` for lenient, `{epsilon: 0.09, delta: 0.3}` for typical."""
    name: Name | None = None


Method = Annotated[
    GenerateMethod | PlainMethod | AssistedMethod | TreeMethod, Field(discriminator="kind")
]


class Config(Strict):
    """A whole experiment."""

    name: Name
    models: ModelsConfig = ModelsConfig()
    prompts: Prompts
    max_new_tokens: Count
    samplings: Annotated[tuple[SamplingConfig, ...], Field(min_length=1)]
    methods: Annotated[tuple[Method, ...], Field(min_length=1)]
    seed: Number = 0
    warmup: Number = 1
    """Prompts decoded by every method before anything is measured."""
    stop_strings: tuple[Name, ...] = ()
    output: Name | None = None
    """The run's folder; null for `runs/<name>`."""
