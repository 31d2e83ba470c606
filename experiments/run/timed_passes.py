"""Whether the times that trees were searched with are of passes that are run as this run runs them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from treespec.experiments.config.drafts import by_pair
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.records.measured import Measured
from treespec.search import LatencyModel
from treespec.search.choice.pairs import other_passes, passes_of

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["cautions_of_times"]


def cautions_of_times(config: Config, pair: "Pair", measured: Measured | None) -> list[str]:
    """Sentences about times of other passes than the pair's, each once.

    Args:
        config: as the user wrote it; methods may name files of times.
        pair: with its passes chosen.
        measured: before the run, of a config with `search`; an earlier start may have measured it.
    """
    return list(dict.fromkeys(_cautions(config, pair, measured)))


def _cautions(config: Config, pair: "Pair", measured: Measured | None) -> Iterator[str]:
    from treespec.models.load import NoDraftModel

    if pair.target.device.type == "cuda" and pair.target.passes.asked is None:
        used = {}  # captured if they can be, which the target finds out
    else:
        used = {"target": pair.target.passes.kind}
    draft = {} if isinstance(pair.draft, NoDraftModel) else {"draft": pair.draft.passes.kind}
    if measured is not None:
        times, way_out = "the times that an earlier start measured", "measure again with --fresh"
        said = other_passes("this run", used | draft, times, passes_of(measured.latency), way_out)
        if said is not None:
            yield said
    for method in config.methods:
        file = getattr(getattr(method, "shape", None), "latency", None)
        if not isinstance(method, TreeMethod) or file in (None, MEASURED):
            continue
        mine = used | (draft if by_pair(method.draft) else {})
        timed = passes_of(LatencyModel.load(Path(str(file))))
        said = other_passes("this run", mine, f"the times of {file}", timed)
        if said is not None:
            yield said
