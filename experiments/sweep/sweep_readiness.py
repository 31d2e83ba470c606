"""Check all jobs of a sweep as `treespec run` would, before the first one starts."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from treespec.errors import LoadError, TokenizerMismatch, UnsupportedModel
from treespec.experiments.errors import ConfigError, PromptError, SweepError
from treespec.experiments.run.datastores import build_missing, missing_datastores
from treespec.experiments.run.models import outline_own_drafts
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import Prompt, encode
from treespec.experiments.run.readiness import Ready, ready, require_fits
from treespec.experiments.sweep.grid import Grid, Job

if TYPE_CHECKING:
    from treespec.models.load import PairOutline


def ready_jobs(grid: Grid) -> dict[str, Ready]:
    """Prepare every job, by name, as far as possible without models."""
    starts = {}
    for job in grid.jobs:
        if job.config.models.tensor_parallel:
            raise SweepError(
                f"{grid.path}: models.tensor_parallel in the job {job.name}: a sweep does not start "
                "torchrun; remove it, or run such experiments one by one (torchrun ... treespec run)"
            )
        with _naming(grid, job):
            starts[job.name] = ready(job.config, lambda text: None)
    return starts


def require_models(
    grid: Grid, jobs: Iterable[Job], starts: Mapping[str, Ready], reporter: Reporter
) -> None:
    """Reject models that cannot be loaded and texts that exceed their context, without reading weights.

    Datastores that jobs may build are built here, once for all jobs.

    The device is not checked here, because jobs may run on another machine.
    """
    from treespec.models.load import outline_pair

    outlines: dict[tuple[str, str | None], PairOutline] = {}
    encoded: dict[tuple[str, str | None, str], list[Prompt]] = {}
    for job in jobs:
        config, start = job.config, starts[job.name]
        pair = config.models.target, config.models.draft
        texts = [*start.measured, *start.spare]
        encoding = *pair, f"{len(texts)} of {config.prompts.model_dump_json()}"
        with _naming(grid, job):
            if pair not in outlines:
                outlines[pair] = outline_pair(*pair)
            if encoding not in encoded:
                encoded[encoding] = encode(texts, config.prompts, outlines[pair].tokenizer)
            methods = start.experiment.methods
            outlines[pair] = outline_own_drafts(outlines[pair], methods)
            build_missing(missing_datastores(methods), outlines[pair], reporter)
            require_fits(start.experiment, outlines[pair], encoded[encoding])


@contextmanager
def _naming(grid: Grid, job: Job) -> Iterator[None]:
    """Add the file and the job to the message of an error."""
    try:
        yield
    except (ConfigError, PromptError, LoadError, TokenizerMismatch, UnsupportedModel) as error:
        raise type(error)(f"{grid.path}: {error} (in the job {job.name})") from None
