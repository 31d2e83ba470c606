"""The folder of a training: it belongs to one config, and each draft in it to one process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from treespec.experiments.errors import TrainingError
from treespec.experiments.records.held_folder import LOCK
from treespec.experiments.training.settings import TrainingConfig, as_yaml
from treespec.files import write_whole


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Keep the folder of a draft from other processes; jobs train several drafts of one config at once.

    Raises:
        TrainingError: if another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise TrainingError(
            f"{folder} is being trained by another process: wait for it, or choose another folder (--out)"
        ) from None
    try:
        yield
    finally:
        lock.release()


def claim(config: TrainingConfig, out: Path) -> None:
    """Take a folder for a training, or go on in it.

    Raises:
        TrainingError: if it holds a training of another config, or anything else.
    """
    text, path = as_yaml(config), out / "config.yaml"
    if not path.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TrainingError(
            f"{out} exists and is no folder of a training: choose another one with --out"
        )
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise TrainingError(
            f"{out} holds a training of another config (see its config.yaml): choose another folder with "
            "--out, or remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
