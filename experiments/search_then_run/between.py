"""The parts of a step timed again between the prompts of a run: machines drift, and so do their times."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from treespec.errors import in_words
from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured, between_path
from treespec.experiments.run.decoding import Unit
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.run.session import Session
from treespec.experiments.run.unit import seed_of
from treespec.experiments.search_then_run.measured import measuring_config, timed_sizes
from treespec.experiments.search_then_run.profile.plan import Plan, plan_profile
from treespec.experiments.search_then_run.profile.profile import (
    Rounds,
    Samples,
    about_times,
    json_of_samples,
)

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Between", "make_between", "moments"]


NOT_TIMED = "parts of a step are not timed between the prompts"


def moments(rounds: int, units: int, samplings: int) -> set[int]:
    """Before which units of a run a round is timed: spread evenly, under every sampling setting in turn.

    Args:
        rounds: how many at most.
        units: of the run; those of one prompt follow each other.
        samplings: units of one prompt.

    Example:
        >>> sorted(moments(4, 24, 2)), sorted(moments(9, 3, 1))
        ([0, 7, 12, 19], [0, 1, 2])
    """
    rounds = min(rounds, units)
    starts = [number * units // rounds for number in range(rounds)]
    if units < rounds * samplings:
        return set(starts)
    return {start + number % samplings for number, start in enumerate(starts)}


def make_between(
    session: Session,
    experiment: Experiment,
    pair: "Pair",
    measured: Measured,
    units: Sequence[Unit],
) -> "Between | None":
    """What times rounds before some of the units that a run is missing; one round warms up.

    Args:
        session: the open run, of a config with `search`.
        experiment: its methods as they are run. Trees are timed up to the size of the largest that does
            not grow, because only of these a time is predicted.
        pair: the models.
        measured: before the run; rounds are timed at its prefix and sizes.
        units: that the run is missing.

    Returns:
        None if no round is due.
    """
    config, reporter = session.config, session.reporter
    assert config.search is not None
    planned = moments(config.search.between, session.wanted, len(config.samplings))
    due = planned.intersection(unit.number for unit in units)
    if not due:
        return None
    largest = max((m.shape.size for m in experiment.methods if m.shape is not None), default=1)
    sizes = sorted(timed_sizes(config.search))
    below = sum(size < largest for size in sizes)
    measuring = measuring_config(session.known)
    try:
        texts = read_prompts(measuring.prompts)
        plan = plan_profile(measuring, pair, texts, sizes[: below + 1], [measured.prefix])
    except (ConfigError, PromptError) as error:  # a file that is gone: the run needs it no more
        reporter.note(f"{NOT_TIMED}: {error}")
        return None
    seed = seed_of(config.seed, "between")
    between = Between(measuring, pair, plan, session.records, due, seed, reporter)
    with reporter.task("warming up the parts of a step"):
        between.warm_up()
    return between


class Between:
    """Times a round of the parts of a step before some units of a run, and keeps each in a file.

    What fails in a round is said, and none is timed after it: the run itself needs none.

    Args:
        config: that the times are of.
        pair: the models.
        plan: what is timed.
        records: where files go.
        due: units, by number in the order of the whole run.
        seed: of coins and of the order.
        reporter: told of what fails.
    """

    def __init__(
        self,
        config: Config,
        pair: "Pair",
        plan: Plan,
        records: RunFolder,
        due: Collection[int],
        seed: int,
        reporter: Reporter,
    ) -> None:
        self.due = frozenset(due)
        self._config, self._pair, self._plan, self._records = config, pair, plan, records
        self._rounds = Rounds(pair, plan.settings, plan.prefixes, plan.text, seed)
        self._reporter = reporter

    def warm_up(self) -> None:
        """A round that does not count."""
        self._round()

    def measure(self, unit: int) -> None:
        """Time a round and write it.

        Raises:
            RunFolderError: if it cannot be written.
        """
        samples = self._round()
        if samples is not None:
            about = about_times(self._config, self._pair, samples, 1)
            text = json_of_samples(samples, self._plan.settings, about)
            self._records.keep(between_path(self._records.search, unit), text)

    def _round(self) -> Samples | None:
        samples = Samples(rounds=1)
        try:
            self._rounds.measure(samples)
        except Exception as error:
            self._reporter.note(f"{NOT_TIMED}: {in_words(error, 'the timing')}")
            self.due = frozenset()
            return None
        return samples
