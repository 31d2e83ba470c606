"""Check that the pass times used to search trees were measured on passes of the same kind as the run's."""

from pathlib import Path
from typing import TYPE_CHECKING

from treespec.experiments.config.model_draft import by_pair
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.config.shapes import MEASURED
from treespec.experiments.records.measured import Measured
from treespec.search import LatencyModel
from treespec.search.choice.pairs import other_passes, passes_of

if TYPE_CHECKING:
    from treespec.models.load import Pair


def cautions_of_times(config: Config, pair: "Pair", measured: Measured | None) -> list[str]:
    """One sentence for each set of times that was measured on other kinds of passes than the pair's."""
    from treespec.models.load import NoDraftModel

    # On CUDA passes are captured if possible, which is decided later.
    undecided = pair.target.device.type == "cuda" and pair.target.passes.asked is None
    used = {} if undecided else {"target": pair.target.passes.kind}
    draft = {} if isinstance(pair.draft, NoDraftModel) else {"draft": pair.draft.passes.kind}
    cautions: list[str | None] = []
    if measured is not None:
        timed = passes_of(measured.latency)
        times, way_out = "the times that an earlier start measured", "measure again with --fresh"
        cautions.append(other_passes("this run", used | draft, times, timed, way_out))
    for method in config.methods:
        file = getattr(getattr(method, "shape", None), "latency", None)
        if isinstance(method, TreeMethod) and file not in (None, MEASURED):
            kinds = used | (draft if by_pair(method.draft) else {})
            timed = passes_of(LatencyModel.load(Path(str(file))))
            cautions.append(other_passes("this run", kinds, f"the times of {file}", timed))
    return list(dict.fromkeys(filter(None, cautions)))
