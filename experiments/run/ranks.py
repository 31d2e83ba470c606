"""Runs under torchrun: every process decodes the same texts, and the first one writes the run's folder."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from treespec.experiments.config.schema import AssistedMethod, Config
from treespec.experiments.errors import ConfigError

COPIED = ("manifest.json", "prompts.jsonl", "steps.jsonl", "trees.jsonl")


def rank() -> int:
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ.get("RANK", "0")) if several else 0


def folder_of_rank(config: Config, folder: Path) -> Path:
    """The folder that this process writes to; for all but the first process, a temporary copy.

    The copy holds the finished units, so that all processes continue with the same unit. It is made before
    the models are loaded, which the processes do together; the first process writes only after that.
    """
    if not config.models.tensor_parallel:
        return folder
    tuned = [m for m in config.methods if isinstance(m, AssistedMethod) and len(m.grid) > 1]
    if config.search is not None or tuned:
        cause = "`search`" if config.search is not None else "assisted with several lengths"
        raise ConfigError(
            f"models.tensor_parallel: {cause} chooses by measured times, and the processes that share the "
            "target would choose differently: give fixed trees, and one length and one threshold"
        )
    if config.until is not None:
        raise ConfigError(
            "models.tensor_parallel: `until` ends a run by measured times, and the processes that share "
            "the target would end at different prompts: set prompts.count instead"
        )
    if rank() == 0:
        return folder
    temporary = Path(tempfile.mkdtemp(prefix="treespec-rank-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    copy = temporary / folder.name
    copy.mkdir()
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copy2(folder / name, copy / name)
    return copy
