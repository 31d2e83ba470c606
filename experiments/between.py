"""The parts of a step timed again between the prompts of a run: machines drift, and so do their times."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.builder import Experiment
from experiments.config import Config
from experiments.errors import ConfigError
from experiments.measured import Measured, own_config, replacing, timed_sizes
from experiments.profile_file import about_times, json_of_samples
from experiments.profile_plan import Plan, plan_profile
from experiments.profiling import Rounds, Samples
from experiments.progress import Reporter
from experiments.prompts import read_prompts
from experiments.unit import seed_of
from search import LatencyModel

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Between", "load_between", "make_between", "moments"]


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
    folder: Path,
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
        folder: where files go.
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
    raw = read_prompts(own.prompts)
    try:
        plan = plan_profile(own, pair, raw, sizes[: below + 1], [found.prefix])
    except ConfigError as error:
        reporter.note(f"parts of a step are not timed between the prompts: {error}")
        return None
    with reporter.task("warming up the parts of a step"):
        between = Between(own, pair, plan, folder, due, seed_of(config.seed, "between"))
        between.warm_up()
    return between


class Between:
    """Times a round of the parts of a step before some units of a run, and keeps each in a file.

    Args:
        config: that the times are of.
        pair: the models.
        plan: what is timed.
        folder: where the files are.
        due: units, by number in the order of the whole run.
        seed: of coins and of the order.
    """

    def __init__(
        self,
        config: Config,
        pair: "Pair",
        plan: Plan,
        folder: Path,
        due: Collection[int],
        seed: int,
    ) -> None:
        self.due = frozenset(due)
        self._config, self._pair, self._plan, self._folder = config, pair, plan, folder
        self._rounds = Rounds(pair, plan.settings, plan.prefixes, plan.text, seed)

    def warm_up(self) -> None:
        """A round that does not count."""
        self._rounds.measure(Samples())

    def measure(self, unit: int) -> None:
        """Time a round and write it."""
        samples = Samples(rounds=1)
        self._rounds.measure(samples)
        about = about_times(self._config, self._pair, samples, 1)
        text = json_of_samples(samples, self._plan.settings, about)
        replacing(_path(self._folder, unit), lambda path: path.write_text(text, encoding="utf-8"))


def load_between(folder: Path) -> list[LatencyModel]:
    """The rounds that were timed while a run went on; none if it was asked for none.

    Raises:
        InvalidLatency: if a file is damaged.
    """
    return [LatencyModel.load(path) for path in sorted(folder.glob("between-*.json"))]


def _path(folder: Path, unit: int) -> Path:
    return folder / f"between-{unit:05}.json"
