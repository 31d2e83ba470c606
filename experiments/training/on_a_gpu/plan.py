"""How many tokens each draft is trained on: as many as fit into the time, the same number for all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.errors import ConfigError
from treespec.experiments.training.settings import TrainingConfig
from treespec.experiments.training.training_run import Pace
from treespec.files import DATA_BYTES, read_bytes, write_whole
from treespec.reading_models import Strict, read_model

FILE = "plan.json"
MEASURED = 2
"""Times that each draft is measured while it is trained; it is also measured when it is fresh."""
SHARE = 0.9
"""Share of the time that is planned for; the rest is for what a few steps do not show."""


class Plan(Strict):
    """The budget of a training, which stays the same when it goes on later."""

    tokens: int
    """Tokens that each draft is trained on."""
    every: int
    """Tokens between two measurements."""
    seconds: float
    """Time that all drafts were to take."""
    paces: dict[str, dict[str, float]]
    """Seconds for a token and for a measurement, by draft, as they were found."""

    def save(self, work: Path) -> None:
        """Write it into a run's folder."""
        write_whole(work / FILE, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, work: Path) -> "Plan | None":
        """What `save` has written; None if nothing is planned yet."""
        path = work / FILE
        return read_model(cls, read_bytes(path, DATA_BYTES)) if path.exists() else None


def tokens_within(seconds: float, config: TrainingConfig, paces: Mapping[str, Pace]) -> Plan:
    """The budget with which all drafts of a config are trained and measured in this time.

    Each takes tokens * pace * (1 + tried rates * their share) for its steps, and the time of a measurement
    as often as it is measured; the sum over all drafts is to be `SHARE` of the time.

    Args:
        seconds: the time.
        config: what is trained.
        paces: of each draft.

    Raises:
        ConfigError: if the time is not enough for a batch.
    """
    tuning = config.tuning
    tried = len(tuning.rates) if tuning else 0
    share = 1.0 + (tried * tuning.share if tuning else 0.0)
    measuring = sum(pace.measure_seconds for pace in paces.values()) * (1 + MEASURED + tried)
    token = sum(pace.token_seconds for pace in paces.values()) * share
    batches = int((SHARE * seconds - measuring) / token / config.batch_tokens)
    least = MEASURED if tuning is None else max(MEASURED, round(1 / tuning.share))
    if batches < least:
        needed = (measuring + least * config.batch_tokens * token) / SHARE
        raise ConfigError(
            f"{seconds:.0f} s are too few to train {len(paces)} drafts (measuring takes {measuring:.0f} s, "
            f"and {least} batches of each at least: {needed:.0f} s in all): give more --minutes, fewer "
            "learning rates, or fewer drafts"
        )
    tokens = batches * config.batch_tokens
    data: Any = {
        name: {"token_seconds": pace.token_seconds, "measure_seconds": pace.measure_seconds}
        for name, pace in paces.items()
    }
    return Plan(tokens=tokens, every=max(1, tokens // MEASURED), seconds=seconds, paces=data)
