"""The parts of a step timed again between the prompts of a run: machines drift, and so do their times."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from treespec.errors import in_words
from treespec.experiments.config.build import Experiment
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.measured import Measured, between_path
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.run.unit import seed_of
from treespec.experiments.search_then_run.measured import own_config, timed_sizes
from treespec.experiments.search_then_run.profile.file import about_times, json_of_samples
from treespec.experiments.search_then_run.profile.plan import Plan, plan_profile
from treespec.experiments.search_then_run.profile.profile import Rounds, Samples

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
    config: Config,
    known: Experiment,
    experiment: Experiment,
    pair: "Pair",
    found: Measured,
    records: RunFolder,
    missing: Collection[int],
    units: int,
    reporter: Reporter,
) -> "Between | None":
    """What times rounds before some of the units that a run is missing; one round warms up.

    Args:
        config: with `search`.
        known: its methods, with stand-ins for those that were searched.
        experiment: its methods as they are run. Trees are timed up to the size of the largest that does
            not grow, because only of these a time is predicted.
        pair: the models.
        found: what was measured before the run, at the prefix and sizes of which rounds are timed.
        records: where files go.
        missing: units, by number in the order of the whole run.
        units: of the whole run.
        reporter: told if nothing can be timed.

    Returns:
        None if no round is due.
    """
    assert config.search is not None
    due = moments(config.search.between, units, len(config.samplings)).intersection(missing)
    if not due:
        return None
    largest = max((m.shape.size for m in experiment.methods if m.shape is not None), default=1)
    sizes = sorted(timed_sizes(config.search))
    below = sum(size < largest for size in sizes)
    own = own_config(config, known)
    try:
        raw = read_prompts(own.prompts)
        plan = plan_profile(own, pair, raw, sizes[: below + 1], [found.prefix])
    except (
        ConfigError,
        PromptError,
    ) as error:  # a file that is gone by now: the run needs it no more
        reporter.note(f"{NOT_TIMED}: {error}")
        return None
    between = Between(own, pair, plan, records, due, seed_of(config.seed, "between"), reporter)
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
