"""The files of a published head: its settings and its tensors, each asked for by name.

Heads are published without code: a `config.json` and weights, as safetensors or as a pickle, of which
tensors alone are read and no code is run. Whoever reads a checkpoint takes each tensor by its name and
states its shape; a tensor that nobody took is one whose meaning is unknown, and is refused too. So a head
of another format, size or flag gets one sentence, never wrong numbers.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from safetensors import safe_open
from torch import Tensor

from treespec.draft.trained.shipped import place_of_head, shipped_heads
from treespec.errors import LoadError, TreespecError
from treespec.files import brief, in_json
from treespec.models.reading import AGAIN, INDEX, PICKLES, WEIGHTS, Files
from treespec.models.source import is_hub_id

MOST_NAMED = 4
"""Tensors that a message names at most."""

_MISSING: Any = object()


class Checkpoint:
    """A head's settings and tensors.

    Args:
        name: its folder or hub id, for messages.
        config: the content of its config.json.
        tensors: its tensors by name.
    """

    def __init__(self, name: str, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.name, self.config = name, config
        self._tensors, self._taken = dict(tensors), set[str]()
        self._stored_as: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return sorted(self._tensors)

    def setting(self, key: str, kind: type | tuple[type, ...], default: Any = _MISSING) -> Any:
        """A value of config.json; a dot in the key leads into a nested object.

        Args:
            key: such as `eagle_config.norm_before_fc`.
            kind: the type that the value must have.
            default: the value where the file has none, or null.

        Raises:
            LoadError: if the value is of another type, or is missing and has no default.
        """
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            if default is _MISSING:
                raise LoadError(f"config.json of {self.name!r} does not state {key!r}: add it")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        no_number = isinstance(value, bool) and not {bool, object} & set(kinds)
        if no_number or not isinstance(value, kinds):
            wanted = " or ".join(each.__name__ for each in kinds)
            raise LoadError(
                f"config.json of {self.name!r}: {key} = {in_json(value)}, but must be of type {wanted}"
            )
        return value

    def rename(self, rename: Callable[[str], str]) -> None:
        """Know all tensors by other names; messages keep those of the file."""
        names = {rename(name): name for name in self._tensors}
        self._tensors = {new: self._tensors[old] for new, old in names.items()}
        self._stored_as = {new: self._stored_as.get(old, old) for new, old in names.items()}

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._tensors

    def require_family(self, family: str, marker: str) -> None:
        """Refuse files without a tensor that every head of a family has, such as those of a whole model.

        Raises:
            LoadError: naming the family and the tensor.
        """
        if not self.has(marker):
            raise LoadError(
                f"{self.name!r} is no {family} head, each of which has a tensor {marker!r} (or that of "
                "another layout): is it a whole model, or a head of another family? It has "
                f"{_some([self._stored_as.get(name, name) for name in self.names])}"
            )

    def take(self, name: str, shape: Sequence[int]) -> Shaped[Tensor, "..."]:
        """A weight, which must be there and have this shape.

        Raises:
            LoadError: naming the tensor, if it is missing, has another shape, is quantised, or
                holds NaN.
        """
        tensor = self.maybe(name, shape)
        if tensor is None:
            stored = [self._stored_as.get(each, each) for each in self.names]
            raise LoadError(
                f"{self.name!r} has no tensor {name!r}, which a head of this format needs; it has "
                f"{_some(stored)}"
            )
        return tensor

    def maybe(
        self,
        name: str,
        shape: Sequence[int],
        holds: Literal["weights", "integers", "flags"] = "weights",
    ) -> Shaped[Tensor, "..."] | None:
        """A tensor that may be missing; see `take`.

        `holds`: what must stand in it. Weights of a byte need scales, which are not read.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        stored = self._stored_as.get(name, name)
        if tuple(tensor.shape) != tuple(shape):
            raise LoadError(
                f"tensor {stored!r} of {self.name!r} has the shape {list(tensor.shape)}, but must have "
                f"{list(shape)}: is the head for another target, or its config.json another head's?"
            )
        floats, flags = tensor.is_floating_point(), tensor.dtype == torch.bool
        if floats != (holds == "weights") or (flags and holds == "integers") or _is_small(tensor):
            way = (
                "quantised weights are not read, give a checkpoint in bfloat16"
                if holds == "weights"
                else f"it must hold {holds}"
            )
            raise LoadError(
                f"tensor {stored!r} of {self.name!r} is of dtype {str(tensor.dtype)[6:]}: {way}"
            )
        if holds == "weights" and not bool(torch.isfinite(tensor).all()):
            raise LoadError(
                f"tensor {stored!r} of {self.name!r} holds NaN or infinite numbers: the head is "
                "damaged, or its training failed"
            )
        self._taken.add(name)
        return tensor

    def ignore(self, *names: str) -> None:
        """Do without these tensors, whether they are there or not."""
        self._taken.update(names)

    def require_all_taken(self) -> None:
        """Refuse tensors that nobody asked for.

        Raises:
            LoadError: naming the first of them.
        """
        unknown = sorted(
            self._stored_as.get(name, name) for name in set(self._tensors) - self._taken
        )
        if unknown:
            raise LoadError(
                f"{self.name!r} has tensors that a head of this format does not have: {_some(unknown)}; "
                "with them left out, it would compute something else"
            )


def read_checkpoint(
    source: str,
    weights: Collection[str] = (),
    only: Callable[[dict[str, Any]], Callable[[str], bool]] | None = None,
) -> Checkpoint:
    """Read a head from its folder, or from the local cache of the Hugging Face hub.

    Args:
        source: the folder, the name of a head that comes with treespec, or a hub id.
        weights: names under which a format stores its weights besides `model.safetensors`, its shards and
            `pytorch_model.bin`; files ending in `.safetensors` are not pickles.
        only: for a head that stands in another model's files: says of the content of config.json which
            names are the head's. No other tensor is read.

    Raises:
        LoadError: if there is no such head, or a file is damaged or would run code.
    """
    folder = Path(place_of_head(source)).expanduser()
    name = str(folder) if folder.exists() else source
    files = Files(name)
    if Path(name).is_file():
        raise LoadError(
            f"{source!r} is a file: give the folder that holds config.json and the weights"
        )
    if not (Path(name).is_dir() or is_hub_id(source)) or files.path("config.json") is None:
        raise LoadError(
            f"there is no head {source!r}: neither a folder with a config.json, nor one of treespec's "
            f"({', '.join(shipped_heads())}), nor in the local cache of the Hugging Face hub "
            f"(`hf download {source}` fetches one from there)"
        )
    try:
        config = files.data("config.json")
    except TreespecError as error:
        raise LoadError(str(error)) from None
    wanted = (lambda name: True) if only is None else only(config)
    return Checkpoint(name, config, _tensors(files, weights, wanted))


def _tensors(
    files: Files, weights: Collection[str], wanted: Callable[[str], bool]
) -> dict[str, Tensor]:
    for file in (*weights, WEIGHTS, INDEX, PICKLES[0]):
        path = files.path(file)
        if path is None:
            continue
        if file == INDEX:
            return _sharded(files, wanted)
        if path.suffix == ".safetensors":
            return _safe(path, wanted)
        return {name: tensor for name, tensor in _pickled(path).items() if wanted(name)}
    known = ", ".join((*weights, WEIGHTS, INDEX, PICKLES[0]))
    raise LoadError(f"{files.name!r} has no weights: none of {known}")


def _sharded(files: Files, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    places = dict(files.data(INDEX).get("weight_map") or {})
    for file in dict.fromkeys(place for name, place in places.items() if wanted(name)):
        shard = files.path(str(file))
        if shard is None:
            raise LoadError(
                f"{INDEX} of {files.name!r} names {file!r}, which does not exist: {AGAIN}"
            )
        tensors |= _safe(shard, wanted)
    return tensors


def _safe(path: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    with (
        _sentence(path, "is truncated, damaged, or not a safetensors file"),
        safe_open(path, "pt") as file,
    ):
        return {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118


def _pickled(path: Path) -> dict[str, Tensor]:
    with _sentence(path, "cannot be read as tensors alone, and no code in a pickle is ever run"):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise LoadError(f"{path} holds {brief(content, 60)}, but must hold tensors by name")
    return content


@contextmanager
def _sentence(path: Path, why: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of safetensors, pickle, zip or torch
        raise LoadError(f"{path} {why}: {AGAIN}, as safetensors") from error


def _is_small(tensor: Tensor) -> bool:
    """Whether it holds floating-point numbers of a byte or less, such as float8."""
    return tensor.is_floating_point() and tensor.dtype.itemsize < 2


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(json.dumps(name) for name in names[:MOST_NAMED])
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
