"""`treespec check-lossless`: do the methods of a config keep the law of plain decoding on a real pair?

The law of a real pair cannot be enumerated, so this is a test with a stated false-alarm rate, and a
statement of what it would have noticed. At temperature 0 the law is one text, which is compared id by id.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from treespec.experiments.config.base import LARGEST_NUMBER
from treespec.experiments.config.build import BuiltMethod, Experiment, build, plain_method
from treespec.experiments.config.files import require_within
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.config.trees import label_of, wants_measured
from treespec.experiments.errors import ConfigError
from treespec.experiments.lossless.greedy import GreedyCheck, split
from treespec.experiments.lossless.law import SAMPLES_PER_SIGN, LawCheck, LawChecker
from treespec.experiments.lossless.samples import KeptSamples, code_hash
from treespec.experiments.records.manifest import config_data, environment
from treespec.experiments.run.baselines import generate_plain
from treespec.experiments.run.models import load_models
from treespec.experiments.run.ours import decode_ours
from treespec.experiments.run.parts import parts_of
from treespec.experiments.run.passes import load_with_passes
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, encode, read_prompts
from treespec.experiments.run.turns import finish
from treespec.models.pass_kinds import EAGER
from treespec.stopping import stop_at_tokens

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["PROMPTS", "SAMPLES", "TOKENS", "Check", "check_lossless", "require_sizes"]

SAMPLES, TOKENS, PROMPTS = 1_000, 3, 2
"""Three tokens: the third follows a commit that moved rows in the caches."""

MOST_SAMPLES = 10**7
"""Each takes a millisecond at least."""

MOST_TOKENS = 1000
"""Tokens whose joint law is tested."""


@dataclass(frozen=True)
class Check:
    """All verdicts of a command.

    Args:
        config: what was checked.
        dtype: of the target.
        laws: one for each method and setting of a temperature above 0.
        greedy: one for each method and setting of temperature 0.
        false_alarm: probability that one of the laws fails although all are equal.
        exact: whether the reference was the exact law.
        tokens: of each sample.
        prompts: that samples were drawn after.
        skipped: methods that are not ours.
        recalled: share of the target's passes that were recalled.
        text_of: token ids as text.
    """

    config: Config
    dtype: str
    laws: tuple[LawCheck, ...]
    greedy: tuple[GreedyCheck, ...]
    false_alarm: float
    exact: bool
    tokens: int
    prompts: int
    skipped: tuple[str, ...]
    recalled: float
    text_of: Callable[[list[int]], str] = str

    @property
    def failed(self) -> tuple[LawCheck | GreedyCheck, ...]:
        """What claims to be lossless and is not."""
        return tuple(check for check in (*self.greedy, *self.laws) if check.failed)


def check_lossless(
    config: Config,
    *,
    samples: int = SAMPLES,
    false_alarm: float = 1e-3,
    tokens: int = TOKENS,
    prompts: int = PROMPTS,
    exact: bool = True,
    out: Path | None = None,
    console: Console | None = None,
    load: Callable[[ModelsConfig], "Pair"] = load_models,
) -> Check:
    """Check the methods `tree` and `plain` of a config under all its sampling settings.

    Args:
        config: as `treespec run` takes it. At temperature 0 all its prompts are decoded up to
            `max_new_tokens`.
        samples: texts of each method and setting above temperature 0, all prompts together.
        false_alarm: probability that anything fails by chance, all comparisons together (Bonferroni).
            Rounding at the cut of top-k, top-p and min-p comes on top; see `check_lossless_law`.
        tokens: of each of these texts; their joint law is tested.
        prompts: that they are drawn after, the first of the config.
        exact: against the exact law of plain decoding; else against as many samples of our plain loop.
        out: a folder in which texts are kept as they come: a check that was stopped goes on with those of
            the same config, sizes, passes, versions and code. `write_check` removes them.
        console: where progress is shown; nowhere by default.
        load: gives the models.

    Raises:
        ConfigError: if there is no tree to check, an argument is out of range, or `out` holds texts of
            another check.
        TooFewSamples: with the number needed.
        PromptError, ContextOverflow, LoadError: see `treespec.experiments.run.runner.run`.
    """
    require_sizes(samples, false_alarm, tokens, prompts)
    waiting = [label_of(method) for method in config.methods if wants_measured(method)]
    told = tuple(method for method in config.methods if not wants_measured(method))
    experiment = build(config.model_copy(update={"methods": told}))
    if all(method.kind != "tree" for method in experiment.methods):
        kinds = ", ".join(dict.fromkeys(method.kind for method in experiment.methods))
        raise ConfigError(
            f"methods: no method of kind 'tree', so there is nothing to check (kinds here: {kinds})"
        )
    reporter = Reporter(console)
    if waiting:
        reporter.note(f"left out, since their trees wait for a measurement: {', '.join(waiting)}")
    raw = read_prompts(config.prompts, more=0)[: config.prompts.count]
    pair = load_with_passes(config.models, experiment.methods, load, reporter)
    encoded = encode(raw, config.prompts, pair.tokenizer)
    methods = [m for m in experiment.methods if m.kind in ("plain", "tree")]
    warm = [name for name, sampling in experiment.samplings.items() if not sampling.greedy]
    few = encoded[:prompts]
    each = -(-samples // len(few))
    kept = None
    if out is not None:
        kept = KeptSamples(
            out, _about(config, experiment.methods, pair, (samples, tokens, prompts))
        )
    there = 0 if kept is None else len(kept)
    chunks = (len(few) * len(warm) * (len(methods) + (not exact)) - there) * -(
        -each // SAMPLES_PER_SIGN
    )
    cold = len(experiment.samplings) - len(warm)
    with reporter.units(chunks + cold * len(encoded), done=there) as begin:
        greedy_checks = [
            check
            for name in experiment.samplings
            if name not in warm
            for check in _greedy(experiment, methods, pair, encoded, name, begin)
        ]
        checker = LawChecker(
            pair, few, samples=samples, tokens=tokens, seed=config.seed, kept=kept, progress=begin
        )
        level = false_alarm / max(1, len(warm) * len(methods))
        laws = [
            checker.check(method, name, false_alarm=level, exact=exact)
            for name in warm
            for method in methods
        ]
    return Check(
        config=config,
        dtype=str(next(pair.target.model.parameters()).dtype).removeprefix("torch."),
        laws=tuple(laws),
        greedy=tuple(greedy_checks),
        false_alarm=false_alarm,
        exact=exact,
        tokens=tokens,
        prompts=len(few),
        skipped=tuple(m.name for m in experiment.methods if m not in methods),
        recalled=checker.memory.recalled / max(1, checker.memory.asked),
        text_of=lambda ids: str(pair.tokenizer.decode(ids)),
    )


def _about(
    config: Config, methods: Sequence[BuiltMethod], pair: "Pair", sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """What texts depend on."""
    parts = parts_of(methods, pair.target)
    models = {"target": pair.target, "draft": pair.draft, **pair.others, **parts}
    return {
        "config": config_data(config),
        "samples_tokens_prompts": sizes,
        "passes": {name: getattr(model, "passes", EAGER).kind for name, model in models.items()},
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
    """Refuse sizes of a check that are out of range, before anything is read.

    Args:
        samples: see `check_lossless`, likewise the next three.
        false_alarm: a probability.
        tokens: of each text.
        prompts: that texts are drawn after.
        named: what messages call an argument, such as the option that it came from.

    Raises:
        ConfigError: naming it.
    """
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
    """Decode every prompt by `generate`, by our plain loop and by the methods, and compare."""
    sampling, seed = experiment.samplings[name], experiment.config.seed
    divergences = {method.name: ([], []) for method in methods}
    for prompt in prompts:
        begin(f"{name}: prompt {prompt.index + 1}/{len(prompts)}")
        ids = torch.tensor(prompt.ids, dtype=torch.long, device=pair.target.device)
        more: dict[str, Any] = {
            "max_new_tokens": experiment.config.max_new_tokens,
            "stop": stop_at_tokens(pair.end_tokens),
            "seed": seed,
        }

        loop = plain_method("plain", {name: sampling})
        references = (
            finish(generate_plain(pair, ids, sampling, **more)).tokens,
            finish(decode_ours(pair, loop, name, ids, **more)).tokens,
        )
        for method in methods:
            text = finish(decode_ours(pair, method, name, ids, **more)).tokens
            for splits, reference in zip(divergences[method.name], references, strict=True):
                place = split(pair, (prompt.id, prompt.ids), text, reference)
                splits += [] if place is None else [place]
    checks = []
    for method in methods:
        rule, (from_generate, from_plain) = method.choices[name].rule, divergences[method.name]
        checks.append(
            GreedyCheck(
                name, method.name, str(rule), rule.lossless, len(prompts),
                tuple(from_generate), tuple(from_plain),
            )
        )  # fmt: skip
    return checks
