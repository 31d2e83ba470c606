"""What `treespec train` reads: a target, texts, a budget, and the drafts to train on them."""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import yaml
from pydantic import Field, ValidationError, model_validator

from treespec.experiments.config.base import FileName, Tokens
from treespec.experiments.config.file import read_data
from treespec.experiments.config.files import is_file
from treespec.experiments.config.schema import Prompts
from treespec.experiments.errors import ConfigError
from treespec.experiments.training.families import Rate, Seed, Share, Size, Trainee
from treespec.files import brief
from treespec.reading_models import Strict, nearest, problems
from treespec.search.growth.keys import Name

if TYPE_CHECKING:
    from treespec.experiments.training.packing import Texts
    from treespec.models.load import Pair


FOLDER = Path(__file__).parents[1] / "configs" / "train"


class LibraryTexts(Strict):
    """The Python files of the standard library that the embedded pair was trained on."""

    kind: Literal["library"]
    files: Size | None = None
    """Number of files, in the order of a hash of their paths; null for all."""

    def read(self, pair: "Pair") -> "Texts":
        """The texts."""
        from treespec.experiments.training.corpus import read_corpus, standard_library
        from treespec.experiments.training.packing import Texts

        files = sorted(
            read_corpus(standard_library()).training,
            key=lambda file: sha256(file.path.encode()).digest(),
        )
        end = min(pair.end_tokens, default=None)
        texts = [file.text for file in files[: self.files]]
        encoded = pair.tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        ids = [text.ids for text in encoded]
        first = [] if end is None else [end]
        return Texts([np.array([*first, *text]) for text in ids], [len(first)] * len(ids))


class WrittenTexts(Strict):
    """Texts that the target wrote: a folder of `treespec train data`."""

    kind: Literal["written"]
    path: Name
    """The folder."""
    share: Share = 1.0
    """Share of its tokens to train on: the first ones."""

    def read(self, pair: "Pair") -> "Texts":
        """The texts.

        Raises:
            RunFolderError: if there are no such texts.
            ConfigError: if they were written for another vocabulary.
        """
        from treespec.experiments.training.packing import Texts
        from treespec.experiments.training.texts.text_data import TextData

        data = TextData.open(self.path).head(self.share)
        data.require_for(pair.tokenizer, pair.target.vocab_size)
        return Texts([*data], data.prompt_lengths.tolist())


class Measuring(Strict):
    """How a draft is measured while it is trained: by replay on answers to held-out prompts."""

    every: Tokens
    """Tokens between two measurements, or more where they would take over a tenth of the time. Drafts are
    also measured before the first step and at the end."""
    positions: Size = 512
    """Tokens of all answers together: of as many prompts as give 64 each, always the same ones."""


class Tuning(Strict):
    """Which learning rate is taken: the one with the least held-out loss on a part of the budget."""

    rates: Annotated[tuple[Rate, ...], Field(min_length=2)]
    """Learning rates to try, the same for every draft."""
    share: Share = 0.1
    """Part of the budget that each is tried on."""


class TrainingConfig(Strict):
    """Drafts to train for one target, on the same texts and the same budget."""

    name: FileName
    """Name of the output folder."""
    target: Name
    """The target: `embedded`, a folder, a hub id, or a model that `treespec models get` has fetched."""
    device: Name = "cpu"
    """`cpu`, `cuda`, `cuda:1` and so on."""
    texts: Annotated[LibraryTexts | WrittenTexts, Field(discriminator="kind")]
    """What drafts are trained on."""
    held_out: Prompts
    """Prompts whose answers measure the drafts."""
    tokens: Tokens
    """Tokens that each draft is trained on; texts are read again if there are fewer."""
    length: Size = 256
    """Tokens of a row of a batch."""
    batch_tokens: Size = 2048
    """Tokens of a batch."""
    states: Literal["computed", "stored"] = "computed"
    """The target's hidden states on the texts: computed anew for each batch, or computed once and kept in
    the output folder (two bytes a number, some 5 kB a token of SmolLM2), which is faster if texts are read
    several times or by several drafts."""
    vocabulary: Annotated[int, Field(strict=True, ge=64, le=2**20)] | None = None
    """Number of tokens that heads with a vocabulary of their own (`eagle3`, `block`) draft: the most
    frequent ones of the texts. Null for all."""
    seed: Seed = 0
    """Of fresh weights and of the order of the texts."""
    seeds: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Trainings of each draft, with seeds from `seed` on; curves are then their mean and range."""
    learning_rate: Rate = 0.01
    """Of matrices (Muon); norms learn at half of it (AdamW)."""
    tuning: Tuning | None = None
    """Try several learning rates first; null to take `learning_rate`."""
    metric: Measuring
    """What is measured on the way."""
    drafts: Annotated[tuple[Trainee, ...], Field(min_length=1)]
    """The drafts."""

    @property
    def trainings(self) -> tuple[Trainee, ...]:
        """Every draft with every seed that it is trained with."""
        if self.seeds == 1:
            return self.drafts
        return tuple(
            draft.model_copy(update={"seed": self.seed_of(draft) + i})
            for draft in self.drafts
            for i in range(self.seeds)
        )

    def named(self, name: str | None) -> list[Trainee]:
        """The trainings of the draft of this title, or the one of this label; all of them for None."""
        return [draft for draft in self.trainings if name in (None, draft.title, draft.label)]

    def seed_of(self, draft: Trainee) -> int:
        """The seed that a draft is trained with."""
        return self.seed if draft.seed is None else draft.seed

    @model_validator(mode="after")
    def _names_differ(self) -> "TrainingConfig":
        repeated = [n for n, count in Counter(d.label for d in self.trainings).items() if count > 1]
        if repeated:
            raise ValueError(
                f"two drafts are called {repeated[0]!r}: give each a `name`, or a `seed` of its own"
            )
        rated = [draft.label for draft in self.drafts if draft.learning_rate is not None]
        if rated and self.tuning is not None:
            raise ValueError(
                f"draft {rated[0]!r} has a learning_rate of its own, but `tuning` chooses one"
            )
        if self.batch_tokens < self.length:
            raise ValueError(
                f"batch_tokens = {self.batch_tokens} is less than length = {self.length}, a row of a batch"
            )
        return self


def shipped_trainings() -> dict[str, Path]:
    """The shipped configs by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def load_training(source: str | Path, overrides: Sequence[str] = ()) -> TrainingConfig:
    """Read a config and apply overrides, as `load_config` does for experiments.

    Raises:
        ConfigError: if the file cannot be read, or is not such a config.
    """
    path, known = Path(source), shipped_trainings()
    if not is_file(str(source)):
        if str(source) not in known:
            hint = nearest(str(source)[:80], list(known))
            raise ConfigError(
                f"no training config {brief(str(source))}{hint} (shipped: {', '.join(known)})"
            )
        path = known[str(source)]
    data = read_data(path, overrides)[1]
    try:
        return TrainingConfig.model_validate(data)
    except ValidationError as error:
        lines = problems(data, error, "the config")
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from None


def as_yaml(config: TrainingConfig) -> str:
    """The config with all defaults, as a file."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
