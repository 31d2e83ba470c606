"""The parts of RESULTS.md on GPUs: the tables of `benchmarks.gpu`, from the files that it wrote."""

from collections.abc import Callable

from treespec.experiments.benchmarks.gpu.table import FINDINGS
from treespec.experiments.report.markdown import finding_markdown
from treespec.experiments.studies.result_tables import Parts, Row

__all__ = ["gpu"]


def gpu(part: str) -> Callable[[Row], Parts]:
    """How the file of a part becomes its table and notes.

    Args:
        part: a part of the benchmark, a key of `FINDINGS`.
    """

    def parts(data: Row) -> Parts:
        _, below = finding_markdown(FINDINGS[part](dict(data))).split("\n\n", 1)
        return {part: [below]}

    return parts
