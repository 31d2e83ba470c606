"""The card of a shipped head, written from what its training used and measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Int
from torch import Tensor

from treespec.experiments.report.table import NONE, Column, Table, keyed, markdown
from treespec.experiments.training.curves import PANELS
from treespec.experiments.training.held_out_answers import TargetSays
from treespec.experiments.training.settings import TrainingConfig, WrittenTexts
from treespec.experiments.training.texts.text_data import TextData
from treespec.experiments.training.texts.write_texts import LICENCES
from treespec.experiments.training.trained import Trained
from treespec.sampling.distributions import Sampling
from treespec.search.intervals import Interval, ratio

FIGURES = {
    **{key: f"tokens per step, {title}" for key, title in PANELS.items()},
    "overlap": "acceptance of one drawn child at T = 1",
    "right_spine": "next token right, below the root on the spine",
    "right_sibling": "next token right, after a sibling",
}
"""What a training measures, in words."""


@dataclass(frozen=True)
class Covered:
    """What a head's vocabulary covers of its target's.

    Args:
        kept: tokens that the head drafts.
        of: tokens of the target.
        mass: share of the target's probability at T = 1 that these tokens have; None if they are all.
        greedy: share of the target's greedy tokens that are among them; None likewise.
        positions: positions of held-out answers that the shares are over.
    """

    kept: int
    of: int
    mass: Interval | None = None
    greedy: Interval | None = None
    positions: int = 0


def covered(says: TargetSays, kept: Int[Tensor, " v"]) -> Covered:
    """What tokens cover of a target's answers to held-out prompts, with intervals over these."""
    warm, mass, greedy = Sampling(temperature=1.0), [], []
    for (_, answer), logits, count in zip(says.texts, says.logits, says.held_out.kept, strict=True):
        mass.append(float(warm(logits[:count])[:, kept].sum()))
        greedy.append(float(torch.isin(answer[:count].cpu(), kept).sum()))
    counts = np.array(says.held_out.kept)
    return Covered(
        len(kept),
        says.target.vocab_size,
        ratio(np.array(mass), counts),
        ratio(np.array(greedy), counts),
        says.held_out.positions,
    )


def card(
    name: str,
    config: TrainingConfig,
    trained: Trained,
    coverage: Covered,
    size: int,
) -> str:
    """The card.

    Args:
        name: of the head.
        config: of its training.
        trained: what was measured.
        coverage: of its vocabulary.
        size: bytes of its weights.
    """
    licence = LICENCES.get(config.target, "see the target's")
    parts = [
        f"---\nlicense: {licence.lower()}\nbase_model: {config.target}\n---",
        f"# {name}",
        _about(name, config, trained, size),
        f"## Vocabulary\n\n{_vocabulary(coverage)}",
        f"## Data\n\n{_data(config)}",
        f"## Recipe\n\n{_recipe(config, trained)}",
        f"## Figures\n\n{_figures(trained)}",
    ]
    return "\n\n".join(parts) + "\n"


def _about(name: str, config: TrainingConfig, trained: Trained, size: int) -> str:
    said = (
        f"A head of family `{trained.family}` for the target `{config.target}`, trained with treespec: "
        f"{trained.parameters:,} trained numbers, {size / 1e6:.1f} MB in bfloat16. Embedding and "
        "vocabulary rows are the target's and not in the file; `treespec draft export` writes them for "
        "serving engines. In a config:"
    )
    return f"{_filled(said)}\n\n    draft: {{source: {trained.family}, model: {name}}}"


def _vocabulary(coverage: Covered) -> str:
    if coverage.mass is None or coverage.greedy is None:
        return f"It drafts all {coverage.of:,} tokens of the target."
    mass, greedy = coverage.mass.scaled(100), coverage.greedy.scaled(100)
    lost = Interval(100 - mass.estimate, 100 - mass.high, 100 - mass.low)
    covers, loses, follows = (
        share.text(2, " %", in_sentence=True) for share in (mass, lost, greedy)
    )
    return _filled(
        f"It drafts {coverage.kept:,} of the target's {coverage.of:,} tokens, the most frequent ones of "
        f"its texts. On {coverage.positions:,} positions of the target's answers to held-out prompts these "
        f"have {covers} of its probability at T = 1, which bounds the acceptance of a drawn child: {loses} "
        f"is lost by the vocabulary. Of its greedy tokens {follows} are among them."
    )


def _data(config: TrainingConfig) -> str:
    texts = config.texts
    if not isinstance(texts, WrittenTexts):
        return _filled(
            f"{texts.files or 'The'} `.py` files of Python's standard library that the embedded pair was "
            "trained on (PSF-2.0), without those that are held out."
        )
    data = TextData.open(texts.path)
    part = data.head(texts.share)
    licences = "\n".join(f"- {what}: {name}" for what, name in data.manifest["licences"].items())
    said = (
        f"{data.manifest['what']} {len(part):,} texts, {part.tokens:,} tokens of answers, by `treespec "
        "train data`. The texts are not shipped. Licences of what they were made of:"
    )
    recipe = _yaml(data.manifest["recipe"])
    return f"{_filled(said)}\n\n{licences}\n\nTheir recipe:\n\n{recipe}"


def _recipe(config: TrainingConfig, trained: Trained) -> str:
    hardware, versions = trained.environment["hardware"], trained.environment["versions"]
    machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores"
    seed = config.seed if trained.seed is None else trained.seed
    used = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    said = (
        f"{trained.last['tokens']:,} tokens in batches of {config.batch_tokens:,}, seed {seed}, "
        f"learning rate {trained.learning_rate:g} (Muon for matrices, AdamW at half of it for norms), "
        f"{trained.seconds / 60:.0f} minutes on {machine}, measurements included; {used}, treespec at "
        f"commit {str(trained.environment['git_hash'])[:8]}."
    )
    given = {key: value for key, value in trained.settings.items() if value is not None}
    return f"{_filled(said)}\n\n{_yaml(given)}\n\nIts inputs:\n\n{_yaml(trained.inputs)}"


def _figures(trained: Trained) -> str:
    last = trained.last
    rows: Sequence[Mapping[str, Any]] = [
        {"figure": words, "value": _shown(last, key, 3)} for key, words in FIGURES.items()
    ]
    table = Table("", [keyed("figure", "figure", left=True), keyed("value", "value")], rows)
    trees = [
        Column[Mapping[str, Any]](title, lambda row, key=key: _shown(row, key, 2))
        for key, title in PANELS.items()
    ]
    curve = Table("", [keyed("tokens", "tokens", ","), *trees], trained.curve)
    said = (
        f"Replayed on {last['positions']:,} positions of {last['texts']} greedy answers of the target to "
        "held-out prompts, with 95 % intervals over the answers (plain decoding: 1 token per step), in "
        "float32, before the weights were stored in bfloat16."
    )
    return f"{_filled(said)}\n\n{markdown(table)}\n\nWhile it was trained:\n\n{markdown(curve)}"


def _shown(row: Mapping[str, Any], key: str, digits: int) -> str:
    """A figure with its interval; nothing where no node was counted."""
    if row[key] is None:
        return NONE
    found = Interval.of(row[key], row[f"{key}_low"], row[f"{key}_high"])
    return found.text(digits, in_sentence=True)


def _filled(text: str) -> str:
    return fill(text, 110, break_long_words=False, break_on_hyphens=False)


def _yaml(data: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
    return f"```yaml\n{text.rstrip()}\n```"
