"""`treespec check-lossless`: do the methods of a config keep the law of plain decoding on a real pair?

The law of a real pair cannot be enumerated, so this is a statistical test with a stated false-alarm rate
and a stated smallest detectable deviation. At temperature 0 the law is a single text, compared id by id.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from treespec.experiments.config.base import LARGEST_NUMBER
from treespec.experiments.config.build import (
    BuiltMethod,
    Experiment,
    build,
    label_of,
    plain_method,
    wants_measured,
)
from treespec.experiments.config.files import require_within
from treespec.experiments.config.generation import ignored_in_words
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.lossless.greedy import GreedyCheck, split
from treespec.experiments.lossless.law import SAMPLES_PER_SIGN, LawCheck, LawChecker, as_a_run
from treespec.experiments.lossless.samples import KeptSamples, code_hash
from treespec.experiments.records.manifest import config_data, environment
from treespec.experiments.run.baselines import generate_plain
from treespec.experiments.run.inputs import read_by, require_covered, require_readable
from treespec.experiments.run.models import load_models, parts_of
from treespec.experiments.run.ours import decode_ours
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, behind, read_prompts
from treespec.experiments.run.unit import finish
from treespec.stopping import stop_at_tokens

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

SAMPLES, TOKENS, PROMPTS = 1_000, 3, 2
"""Defaults. Three tokens, because the third follows a commit that moved rows in the caches."""

MOST_SAMPLES = 10**7
"""Maximum number of samples; each takes at least a millisecond."""

MOST_TOKENS = 1000


@dataclass(frozen=True)
class Check:
    config: Config
    dtype: str
    laws: tuple[LawCheck, ...]
    greedy: tuple[GreedyCheck, ...]
    false_alarm: float
    tokens: int
    prompts: int
    skipped: tuple[str, ...]
    recalled: float
    passes: dict[str, str]
    as_a_run: bool
    text_of: Callable[[list[int]], str] = str

    @property
    def failed(self) -> tuple[LawCheck | GreedyCheck, ...]:
        return tuple(check for check in (*self.greedy, *self.laws) if check.failed)


def check_lossless(
    config: Config,
    *,
    samples: int = SAMPLES,
    false_alarm: float = 1e-3,
    tokens: int = TOKENS,
    prompts: int = PROMPTS,
    out: Path | None = None,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> Check:
    """Check the methods `tree` and `plain` of a config under all its sampling settings.

    Args:
        config: as `treespec run` takes it. At temperature 0 all its prompts are decoded up to
            `max_new_tokens`.
        samples: texts per method and setting above temperature 0, over all prompts.
        false_alarm: probability that any comparison fails by chance, over all comparisons (Bonferroni).
            Failures by rounding at the cut of truncations are not included; see `lossless.law`.
        tokens: per text; their joint law is tested.
        prompts: number of prompts after which texts are drawn: the first of the config.
        out: folder to which texts are saved as they are drawn: a stopped check resumes from texts of the
            same config, sizes, passes, versions and code. `write_check` removes them.
        console: where to show progress; None to show nothing.
        load: loads the models.
    """
    require_sizes(samples, false_alarm, tokens, prompts)
    waiting = [label_of(method) for method in config.methods if wants_measured(method)]
    ready = tuple(method for method in config.methods if not wants_measured(method))
    experiment = build(config.model_copy(update={"methods": ready}))
    if synthetic := [method.name for method in experiment.methods if method.synthetic]:
        raise ConfigError(
            f"methods: the texts of {', '.join(synthetic)} are meaningless, since rates decide what is "
            "accepted (`source: synthetic`): there is no law to check, so remove "
            f"{'it' if len(synthetic) == 1 else 'them'}"
        )
    if all(method.kind != "tree" for method in experiment.methods):
        kinds = ", ".join(dict.fromkeys(method.kind for method in experiment.methods))
        raise ConfigError(
            f"methods: no method of kind 'tree', so there is nothing to check (kinds here: {kinds})"
        )
    reporter = Reporter(console)
    if waiting:
        reporter.note(f"left out, because their trees wait for a measurement: {', '.join(waiting)}")
    texts = read_prompts(config.prompts, more=0)[: config.prompts.count]

    def inputs(pair: "Pair | PairOutline") -> list[Prompt]:
        require_covered(experiment, pair)
        prompts = read_by(pair, texts, config.prompts)
        for method in experiment.methods:
            require_readable(method, pair, prompts)
        return prompts

    loaded = load_with_passes(config.models, experiment.methods, load, reporter, check=inputs)
    pair, config = loaded.pair, config.model_copy(update={"models": loaded.models})
    asked = pair.target.model.generation_config
    if note := ignored_in_words(asked, config.samplings, config.stop_strings):
        reporter.note(note)
    encoded = inputs(pair)
    experiment = experiment.ending(pair.end_tokens)
    methods = [m for m in experiment.methods if m.kind in ("plain", "tree")]
    sampled = [name for name, sampling in experiment.samplings.items() if not sampling.greedy]
    sampled_prompts = encoded[:prompts]
    per_prompt = -(-samples // len(sampled_prompts))
    sizes = (samples, tokens, prompts)
    kept = (
        None if out is None else KeptSamples(out, _about(config, experiment.methods, pair, sizes))
    )
    resumed = 0 if kept is None else len(kept)
    batches = len(sampled_prompts) * len(sampled) * len(methods) - resumed
    signs = batches * -(-per_prompt // SAMPLES_PER_SIGN)
    greedy = [name for name in experiment.samplings if name not in sampled]
    with reporter.units(signs + len(greedy) * len(encoded), done=resumed) as begin:
        greedy_checks = [
            check
            for name in greedy
            for check in _greedy(experiment, methods, pair, encoded, name, begin)
        ]
        checker = LawChecker(
            pair,
            sampled_prompts,
            samples=samples,
            tokens=tokens,
            seed=config.seed,
            kept=kept,
            progress=begin,
        )
        level = false_alarm / max(1, len(sampled) * len(methods))
        laws = [
            checker.check(method, name, false_alarm=level) for name in sampled for method in methods
        ]
    return Check(
        config=config,
        dtype=str(next(pair.target.model.parameters()).dtype).removeprefix("torch."),
        laws=tuple(laws),
        greedy=tuple(greedy_checks),
        false_alarm=false_alarm,
        tokens=tokens,
        prompts=len(sampled_prompts),
        skipped=tuple(m.name for m in experiment.methods if m not in methods),
        recalled=checker.memory.recalled / max(1, checker.memory.asked),
        passes=_passes(experiment.methods, pair),
        as_a_run=as_a_run(pair),
        text_of=lambda ids: str(pair.tokenizer.decode(ids)),
    )


def _passes(methods: Sequence[BuiltMethod], pair: "Pair") -> dict[str, str]:
    """The kind of passes of each model, by its name."""
    models = {
        "target": pair.target,
        "draft": pair.draft,
        **pair.others,
        **parts_of(methods, pair.target),
    }
    return {name: model.passes.kind for name, model in models.items() if hasattr(model, "passes")}


def _about(
    config: Config, methods: Sequence[BuiltMethod], pair: "Pair", sizes: tuple[int, int, int]
) -> dict[str, Any]:
    return {
        "config": config_data(config),
        "samples_tokens_prompts": sizes,
        "passes": _passes(methods, pair),
        "versions": environment()["versions"],
        "code": code_hash(),
    }


def require_sizes(
    samples: int,
    false_alarm: float,
    tokens: int,
    prompts: int,
    named: Callable[[str], str] = str,
) -> None:
    """Reject sizes of a check that are out of range, before anything is read."""
    require_within(named("samples"), samples, 1, MOST_SAMPLES)
    require_within(named("tokens"), tokens, 1, MOST_TOKENS)
    require_within(named("prompts"), prompts, 1, LARGEST_NUMBER)
    if not 0 < false_alarm < 1:
        raise ConfigError(f"{named('false_alarm')} = {false_alarm:g}: must be between 0 and 1")


def _greedy(
    experiment: Experiment,
    methods: list[BuiltMethod],
    pair: "Pair",
    prompts: list[Prompt],
    name: str,
    begin: Callable[[str], None],
) -> list[GreedyCheck]:
    """Decode every prompt by `generate`, by our plain loop and by the methods, and compare the texts."""
    sampling = experiment.samplings[name]
    options: dict[str, Any] = {
        "max_new_tokens": experiment.config.max_new_tokens,
        "stop": stop_at_tokens(pair.end_tokens),
        "seed": experiment.config.seed,
    }
    loop = plain_method("plain", {name: sampling})
    divergences = {method.name: ([], []) for method in methods}
    for prompt in prompts:
        begin(f"{name}: prompt {prompt.index + 1}/{len(prompts)}")
        ids = torch.tensor(prompt.ids, dtype=torch.long, device=pair.target.device)
        pair = behind(pair, prompt)
        references = (
            finish(generate_plain(pair, ids, sampling, **options)).tokens,
            finish(decode_ours(pair, loop, name, ids, **options)).tokens,
        )
        for method in methods:
            text = finish(decode_ours(pair, method, name, ids, **options)).tokens
            for splits, reference in zip(divergences[method.name], references, strict=True):
                divergence = split(pair, sampling, (prompt.id, prompt.ids), text, reference)
                if divergence is not None:
                    splits.append(divergence)
    return [
        GreedyCheck(
            sampling=name,
            method=method.name,
            rule=str(method.choices[name].rule),
            lossless=method.choices[name].rule.lossless,
            compared=len(prompts),
            generate=tuple(divergences[method.name][0]),
            plain=tuple(divergences[method.name][1]),
        )
        for method in methods
    ]
