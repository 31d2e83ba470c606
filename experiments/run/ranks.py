"""Runs under torchrun: every process decodes the same, the first one writes the run's folder."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from treespec.experiments.config.schema import AssistedMethod, Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.mark import MARK

__all__ = ["folder_of_rank", "rank"]

COPIED = (MARK, "manifest.json", "prompts.jsonl", "steps.jsonl", "trees.jsonl")


def rank() -> int:
    """The number of this process among those of torchrun; 0 outside of it."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ.get("RANK", "0")) if several else 0


def folder_of_rank(config: Config, folder: Path) -> Path:
    """Where this process writes: the folder, or for all but the first process a copy that is thrown away.

    The copy holds what is finished, so that all processes go on at the same unit. It is taken before the
    models are loaded, which they do together, and the first process writes only after that.

    Args:
        config: the experiment.
        folder: of the run.

    Raises:
        ConfigError: if the clock would choose something: each process has its own.
    """
    if not config.models.tensor_parallel:
        return folder
    tuned = [m for m in config.methods if isinstance(m, AssistedMethod) and len(m.grid) > 1]
    if config.search is not None or tuned:
        what = "`search`" if config.search is not None else "assisted with several lengths"
        raise ConfigError(
            f"models.tensor_parallel: {what} chooses by the clock, and the processes that share the "
            "target would choose differently; give trees, and one length and one threshold"
        )
    if config.until is not None:
        raise ConfigError(
            "models.tensor_parallel: `until` ends a run by the clock, and the processes that share the "
            "target would end at different prompts; give prompts.count instead"
        )
    if rank() == 0:
        return folder
    aside = Path(tempfile.mkdtemp(prefix="treespec-rank-"))
    atexit.register(shutil.rmtree, aside, ignore_errors=True)
    copy = aside / folder.name
    copy.mkdir()
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copy2(folder / name, copy / name)
    return copy
