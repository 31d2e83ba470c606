"""Models in GGUF files, which transformers reads by dequantising their weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treespec.errors import LoadError

SUFFIX = ".gguf"


def gguf_in(folder: Path) -> Path | None:
    """The only model of a folder that holds one GGUF file and no config.json; None otherwise.

    Raises:
        LoadError: if there are several.
    """
    if (folder / "config.json").is_file():
        return None
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.is_file())
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:3])
        raise LoadError(
            f"{str(folder)!r} holds {len(files)} GGUF files ({names}): name one of them"
        )
    return files[0] if files else None


def require_package() -> None:
    """Raise a LoadError if a package that transformers reads GGUF files with is missing."""
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise LoadError(
            f"reading GGUF files needs the package {missing[0]}: pip install gguf accelerate"
        )


def require_gguf(path: Path) -> None:
    """Raise a LoadError if there is no such file, or a package that reads it is missing."""
    if not path.is_file():
        raise LoadError(
            f"there is no GGUF file {str(path)!r} (searched from {str(Path.cwd())!r}): check the path"
        )
    require_package()


def is_damaged(path: Path) -> bool:
    """Whether a file is truncated or no GGUF file, found by reading all of it but the weights: seconds."""
    from gguf import GGUFReader

    try:
        return not GGUFReader(path).tensors
    except Exception:  # of many kinds: wrong magic numbers, ends in the middle of a value
        return True


def dequantised() -> dict[str, Any]:
    """Arguments of `from_pretrained` by which all weights are unpacked, as older releases always do."""
    import transformers

    settings = getattr(transformers, "GgufConfig", None)
    return {} if settings is None else {"quantization_config": settings(dequantize=True)}


@contextmanager
def without_bar() -> Iterator[None]:
    """Hide transformers' progress bar of dequantising, which none of its settings hides."""
    from transformers import modeling_gguf_pytorch_utils as reader

    shown = reader.tqdm
    reader.tqdm = lambda tensors, **about: tensors  # pyrefly: ignore[bad-assignment]
    try:
        yield
    finally:
        reader.tqdm = shown
