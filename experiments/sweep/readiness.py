"""Check the jobs of a sweep as `treespec run` checks them, before any of them starts."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treespec.errors import LoadError, TokenizerMismatch, UnsupportedModel
from treespec.experiments.errors import ConfigError, PromptError, SweepError
from treespec.experiments.run.models import outline_own_drafts
from treespec.experiments.run.prompts import Prompt, encode
from treespec.experiments.run.readiness import Ready, ready, require_fits
from treespec.experiments.sweep.grid import Grid, Job

if TYPE_CHECKING:
    from treespec.models.load import PairOutline

__all__ = ["ready_jobs", "require_models"]


def ready_jobs(grid: Grid) -> dict[str, Ready]:
    """Every job, by name, as far as it is known without models.

    Raises:
        ConfigError, PromptError, SweepError: naming the first job that cannot be run.
    """
    starts = {}
    for job in grid.jobs:
        if job.config.models.tensor_parallel:
            raise SweepError(
                f"{grid.path}: models.tensor_parallel in the job {job.name}: a sweep does not start "
                "torchrun; take it out, or run such experiments one by one (torchrun ... treespec run)"
            )
        with _naming(grid, job):
            starts[job.name] = ready(job.config, lambda text: None)
    return starts


def require_models(grid: Grid, jobs: Iterable[Job], starts: Mapping[str, Ready]) -> None:
    """Refuse models that cannot be read and texts that do not fit in them; no weights are read.

    Whether the device can be had is for the machine to say that runs the job.

    Args:
        grid: what is swept.
        jobs: those of it that are to run.
        starts: every job, by name.

    Raises:
        PromptError, LoadError, TokenizerMismatch, UnsupportedModel: naming the first job that cannot run.
    """
    from treespec.models.load import outline_pair

    outlines: dict[tuple[str, str | None], PairOutline] = {}
    encoded: dict[tuple[str, str | None, str], list[Prompt]] = {}
    for job in jobs:
        config, start = job.config, starts[job.name]
        pair = config.models.target, config.models.draft
        texts = [*start.measured, *start.spare]
        source = *pair, f"{len(texts)} of {config.prompts.model_dump_json()}"
        with _naming(grid, job):
            if pair not in outlines:
                outlines[pair] = outline_pair(*pair)
            if source not in encoded:
                encoded[source] = encode(texts, config.prompts, outlines[pair].tokenizer)
            outlines[pair] = outline_own_drafts(outlines[pair], start.experiment.methods)
            require_fits(start.experiment, outlines[pair], encoded[source])


@contextmanager
def _naming(grid: Grid, job: Job) -> Iterator[None]:
    """Say of what is refused in which file and job."""
    try:
        yield
    except (ConfigError, PromptError, LoadError, TokenizerMismatch, UnsupportedModel) as error:
        raise type(error)(f"{grid.path}: {error} (in the job {job.name})") from None
