"""What a model's generation_config.json asks for, as sampling settings: `samplings: [{from: model}]`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.samplings import SamplingConfig
from treespec.experiments.errors import ConfigError
from treespec.sampling.distributions import TRUNCATIONS
from treespec.sampling.processors import Processors

if TYPE_CHECKING:
    from transformers import GenerationConfig

WARPERS = ("temperature", *TRUNCATIONS)
"""Settings that have no effect at temperature 0, in order."""

NEUTRAL: Mapping[str, Any] = {
    **vars(Processors()), "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "num_beams": 1, "num_beam_groups": 1,
    "diversity_penalty": 0.0, "guidance_scale": 1.0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "num_return_sequences": 1,
}  # fmt: skip
"""Values of fields that change no text; null never does."""

REFUSED = (
    "num_beams", "num_beam_groups", "guidance_scale", "penalty_alpha", "dola_layers", "top_h",
    "watermarking_config", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
    "diversity_penalty", "num_return_sequences", "max_time", "force_words_ids", "constraints",
    "token_healing", "remove_invalid_values",
)  # fmt: skip
"""Fields that change texts in ways that no tree is decoded with."""

STOPS = "stop_strings"
"""The field that a config names outside its samplings."""

DEFAULT_TOP_K = 50
"""What `generate` samples with if the file says `do_sample: true` and nothing of top_k."""


def changing(config: "GenerationConfig") -> dict[str, Any]:
    """The fields of a model's generation config that would change texts, by name.

    Whatever `do_sample` says, truncations are included: they apply once something else sets a temperature.
    """
    names = [name for name in SamplingConfig.model_fields if name != "custom"]
    found: dict[str, Any] = {}
    for name in (*names, *REFUSED, STOPS):
        value = getattr(config, name, None)
        neutral = value is None or value is False or value in ([], {})
        if not neutral and value != NEUTRAL.get(name, ...):
            found[name] = value
    if getattr(config, "min_new_tokens", None) is not None:  # `generate` puts it in its place
        found.pop("min_length", None)
    return found


def asked_for(
    config: "GenerationConfig", where: str, temperature: float | None = None
) -> dict[str, Any]:
    """The sampling settings that `generate` would use without arguments, or at this temperature.

    Raises:
        ConfigError: if it would search beams, guide or watermark, or contradicts itself; names the field
            and `where`.
    """
    found = changing(config)
    if refused := [name for name in REFUSED if name in found]:
        raise ConfigError(
            f"{where} asks for {refused[0]} = {found[refused[0]]!r}, which trees cannot be decoded with: "
            "name the settings in the config instead of `from: model`"
        )
    settings = {name: _plain(found[name]) for name in found if name not in (*WARPERS, STOPS)}
    if not (config.do_sample or temperature):
        return {"temperature": 0.0} | settings
    warpers = {name: found[name] for name in WARPERS if name in found}
    if temperature is None and warpers.get("temperature") == 0:
        raise ConfigError(
            f"{where} asks for do_sample = true and temperature = 0, which `generate` refuses: name a "
            "temperature beside `from: model`"
        )
    top_k = getattr(config, "top_k", None)
    if top_k is None:
        warpers["top_k"] = DEFAULT_TOP_K
    return {"temperature": 1.0} | warpers | settings


def unnamed(
    config: "GenerationConfig",
    samplings: Sequence[SamplingConfig],
    stop_strings: Sequence[str] = (),
) -> dict[str, Any]:
    """The fields that would change texts, and that some sampling neither names nor makes idle."""
    found = changing(config)
    stops = found.pop(STOPS, None)
    missing: dict[str, Any] = {} if stops is None or stop_strings else {STOPS: _plain(stops)}
    for sampling in samplings:
        for name, value in found.items():
            idle = name in WARPERS and sampling.temperature == 0
            if not idle and name not in sampling.model_fields_set:
                missing[name] = _plain(value)
    return missing


def unnamed_in_words(fields: Mapping[str, Any]) -> str | None:
    """A sentence about such fields; None if there are none."""
    if not fields:
        return None
    listed = ", ".join(f"{name} = {value}" for name, value in fields.items())
    way = ""
    if not any(name in REFUSED for name in fields) and set(fields) != {STOPS}:
        way = ". `samplings: [{from: model}]` takes over what it asks for"
    if STOPS in fields:
        way += f". {STOPS} stands beside samplings in a config"
    return (
        f"The target's generation_config.json asks for {listed}, which this config does not name under "
        f"every sampling: where it does not, no method uses it{way}"
    )


def ignored_in_words(
    config: "GenerationConfig", samplings: Sequence[SamplingConfig], stop_strings: Sequence[str]
) -> str | None:
    """A sentence about what a config leaves unnamed (`unnamed`); None if that is nothing."""
    return unnamed_in_words(unnamed(config, samplings, stop_strings))


def taken_over(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """A config's data with `{from: model}` in `samplings` replaced by what the target's file asks for.

    Raises:
        ConfigError: if the file cannot be read, or asks for what trees cannot be decoded with.
    """
    samplings = data.get("samplings")
    if not isinstance(samplings, list) or not any(
        isinstance(s, dict) and "from" in s for s in samplings
    ):
        return data
    models = data.get("models") or {}
    given = models.get("target", "embedded") if isinstance(models, dict) else None
    if not isinstance(given, str):
        return data  # the schema says what is wrong
    replaced = []
    for i, sampling in enumerate(samplings):
        if isinstance(sampling, dict) and "from" in sampling:
            own = {key: value for key, value in sampling.items() if key != "from"}
            if sampling["from"] is None:
                replaced.append(own)
                continue
            if sampling["from"] != "model":
                raise ConfigError(
                    f"{path}: samplings[{i}].from = {sampling['from']!r}, but only `from: model` is known"
                )
            where = f"generation_config.json of {given}"
            replaced.append(asked_for(_read(given), where, own.get("temperature")) | own)
        else:
            replaced.append(sampling)
    return data | {"samplings": replaced}


def _read(target: str) -> "GenerationConfig":
    """The generation config of a target, without its weights."""
    from transformers import GenerationConfig

    from treespec.errors import LoadError, said
    from treespec.models.pair_places import target_place
    from treespec.models.reading import Files
    from treespec.models.source import read_config

    try:
        place = target_place(target)
        try:
            return GenerationConfig.from_pretrained(place.name, local_files_only=place.local)
        except OSError:
            if Files(place.name).path("generation_config.json") is not None:
                raise
            return GenerationConfig.from_model_config(read_config(place))  # as transformers does
    except LoadError as error:
        raise ConfigError(f"models.target: {error}") from None
    except Exception as error:  # of many kinds, and no JSON is one of them
        raise ConfigError(
            f"generation_config.json of {target} cannot be read ({said(error)}): mend it, or name the "
            "settings in the config instead of `from: model`"
        ) from None


def _plain(value: Any) -> Any:
    """Lists for tuples, and pairs for the mapping of `sequence_bias`."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, dict):
        return [[list(words), bias] for words, bias in value.items()]
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
