"""Sampling settings of a config: temperature, truncations and processors, under transformers' names."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from treespec import plugins
from treespec.errors import InvalidSampling, TreespecError, in_words
from treespec.experiments.errors import ConfigError
from treespec.reading_models import Strict, nearest, problems
from treespec.sampling.distributions import TRUNCATIONS, Sampling
from treespec.sampling.processors import Processors
from treespec.search.growth.keys import Count
from treespec.search.traces.sampling_names import name_of

MOST_IDS = 100_000
"""Bound on the token ids, and on the sequences, of a setting."""

LABEL = "_treespec_name"
"""Attribute of a processor of a plug-in: its name there."""

Share = Annotated[float, Field(strict=True, ge=0, le=1)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
TokenIds = Annotated[tuple[TokenId, ...], Field(min_length=1, max_length=MOST_IDS)]


def _named(given: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(given.get("processor"), str):
        raise ValueError(
            "must name a processor of a plug-in: {processor: NAME, ...}, with its settings"
        )
    return given


Custom = Annotated[dict[str, Any], AfterValidator(_named)]
"""A processor of a plug-in (`plugins.processor`) and its settings."""


class SamplingConfig(Strict):
    """Sampling settings of target and draft, under transformers' names. Temperature 0 is greedy.

    `{from: model}` takes over what the target's generation_config.json asks for, further keys in it apart.
    """

    temperature: Annotated[float, Field(strict=True, ge=0)] = 1.0
    """Divides the logits; 0 for greedy decoding."""
    top_k: Count | None = None
    """Keep the k most probable tokens; null for all."""
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Keep the most probable tokens whose probabilities add up to this; null for all."""
    min_p: Share | None = None
    """Keep tokens whose probability is at least this fraction of the highest; null for all."""
    typical_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Keep tokens of typical information until their probabilities add up to this; null for all."""
    epsilon_cutoff: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = None
    """Keep tokens at least this probable; null for all."""
    eta_cutoff: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = None
    """Keep tokens at least as probable as this or, in rows of high entropy, less; null for all."""
    repetition_penalty: Annotated[float, Field(strict=True, gt=0)] | None = None
    """Divides positive logits of tokens in prompt and text, multiplies negative ones; null for 1."""
    frequency_penalty: Annotated[float, Field(strict=True)] | None = None
    """Subtracted from a token's logit for each time it was generated, as in vLLM; null for 0."""
    presence_penalty: Annotated[float, Field(strict=True)] | None = None
    """Subtracted from the logit of each token that was generated, as in vLLM; null for 0."""
    no_repeat_ngram_size: Count | None = None
    """No n-gram of this size occurs twice in prompt and text; null to allow all."""
    min_length: Count | None = None
    """Tokens of prompt and text before the text may end; null for none."""
    min_new_tokens: Count | None = None
    """Tokens of the text before it may end; null for none."""
    suppress_tokens: TokenIds | None = None
    """Token ids that are never generated; null for none."""
    begin_suppress_tokens: TokenIds | None = None
    """Token ids that are not generated first; null for none."""
    bad_words_ids: (
        Annotated[tuple[TokenIds, ...], Field(min_length=1, max_length=MOST_IDS)] | None
    ) = None
    """Sequences of token ids that are never completed; null for none."""
    sequence_bias: (
        Annotated[tuple[tuple[TokenIds, float], ...], Field(min_length=1, max_length=MOST_IDS)]
        | None
    ) = None
    """Pairs of a sequence and what is added to its last token's logit after the others; null for none."""
    forced_bos_token_id: TokenId | None = None
    """The token after a prompt of one token; null for any."""
    forced_eos_token_id: TokenId | None = None
    """The last token of a text that `max_new_tokens` ends; null for any."""
    exponential_decay_length_penalty: (
        tuple[Annotated[int, Field(strict=True, ge=0)], float] | None
    ) = None
    """`[start, factor]`: the logit of the end grows by the factor from this many new tokens on."""
    custom: Annotated[tuple[Custom, ...], Field(max_length=100)] = ()
    """Processors of plug-ins, in order: `[{processor: NAME, ...}]`."""

    @property
    def name(self) -> str:
        """The name of the setting, such as `T=0` or `T=0.8, top_p=0.9`."""
        custom = {"custom": "+".join(map(_label, self.custom)) or None}
        return str(name_of(self.given | custom))

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not null, as plain data; the temperature always."""
        data = self.model_dump(exclude_none=True)
        default = vars(Processors())
        return {key: data[key] for key in data if key not in default or data[key] != default[key]}


def sampling_of(setting: SamplingConfig, path: str = "samplings") -> Sampling:
    """The sampling that a setting of a config stands for.

    Raises:
        ConfigError: if values contradict each other, or a processor of a plug-in cannot be made; `path`
            names the setting.
    """
    given = setting.given
    first = ("temperature", *TRUNCATIONS)
    chosen = {key: value for key, value in given.items() if key not in (*first, "custom")}
    custom = [_made(f"{path}.custom[{i}]", each) for i, each in enumerate(setting.custom)]
    try:
        processors = Processors(**chosen, custom=tuple(custom))
        return Sampling(**{key: given[key] for key in first if key in given}, processors=processors)
    except InvalidSampling as error:
        raise ConfigError(f"{path}: {error}") from None


def settings_of(sampling: Sampling) -> dict[str, Any]:
    """The settings of a sampling as traces hold them: those that are not null, the temperature always."""
    data: dict[str, Any] = {"temperature": sampling.temperature}
    data |= {key: getattr(sampling, key) for key in TRUNCATIONS}
    for each in fields(Processors) if sampling.processors is not None else ():
        value = getattr(sampling.processors, each.name)
        if value != each.default and each.name not in ("ends", "max_new_tokens", "custom"):
            data[each.name] = _plain(value)
    if sampling.processors is not None and sampling.processors.custom:
        data["custom"] = "+".join(map(label_of, sampling.processors.custom))
    return data


def reads_path(setting: Mapping[str, Any]) -> bool:
    """Whether a setting, as a manifest holds it, has processors that read the text of each node."""
    known = {each.name for each in fields(Processors)} - {"custom"}
    given = {key: value for key, value in setting.items() if key in known and value is not None}
    return bool(setting.get("custom")) or Processors(**given).reads_path


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def label_of(processor: Any) -> str:
    """The name of a processor: that of its plug-in, or of its class."""
    return getattr(processor, LABEL, None) or type(processor).__name__


def _label(given: Mapping[str, Any]) -> str:
    """The name of a processor of a plug-in, with its settings."""
    settings = [f"{key}={given[key]}" for key in given if key != "processor"]
    return given["processor"] + (f"({', '.join(settings)})" if settings else "")


def budget_of(config: Any) -> int:
    """`max_new_tokens` of a config, or what a processor asks for at least: measuring may use fewer."""
    return max(config.max_new_tokens, *(s.min_new_tokens or 0 for s in config.samplings))


def _made(path: str, given: dict[str, Any]) -> Callable[..., Any]:
    """The processor of a plug-in, made from its settings."""
    parts, name = plugins.parts("processor"), given["processor"]
    part = parts.get(name)
    if part is None:
        known = nearest(name, list(parts)) or f" (known: {', '.join(parts) or 'none'})"
        raise ConfigError(f"{path}.processor = {name!r}, but no plug-in has it{known}")
    settings = {key: value for key, value in given.items() if key != "processor"}
    assert part.settings is not None
    try:
        made = part.make(part.settings.model_validate(settings))
    except ValidationError as error:
        raise ConfigError(f"{path}: {problems(settings, error, 'the settings')[0]}") from None
    except TreespecError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: {in_words(error, f'processor {part.name!r}')}") from error
    if not callable(made):
        raise ConfigError(f"{path}: processor {part.name!r} makes something that cannot be called")
    with suppress(AttributeError):  # for the files that name the settings
        setattr(made, LABEL, _label(given))
    return made
