"""Models with quantised weights: quantised while they are loaded, or stored that way, all by transformers.

Whether such a model can run trees is not told by the name of its quantisation but found out by the probe
(`treespec.models.separate_rows`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partialmethod
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from treespec.errors import InvalidArgument, Unavailable, in_words


def _torchao(name: str) -> Callable[[], Any]:
    def settings() -> Any:
        from torchao import quantization  # pyrefly: ignore[missing-import]
        from transformers import TorchAoConfig

        return TorchAoConfig(getattr(quantization, name)())

    return settings


def _bitsandbytes(**settings: Any) -> Callable[[], Any]:
    def made() -> Any:
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(**settings)

    return made


KINDS: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "int8-weight-only": ("torchao", _torchao("Int8WeightOnlyConfig")),
    "int8-dynamic": ("torchao", _torchao("Int8DynamicActivationInt8WeightConfig")),
    # Without the threshold columns are computed in 16 bits by the numbers of all rows of a pass.
    "bitsandbytes-int8": (
        "bitsandbytes",
        _bitsandbytes(load_in_8bit=True, llm_int8_threshold=0.0),
    ),
    "bitsandbytes-nf4": (
        "bitsandbytes",
        _bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    ),
}
"""How weights can be quantised while they are loaded: the package, and the settings for transformers."""


def require_quantisation(
    kind: str | None, device: torch.device | str, key: str = "quantised"
) -> None:
    """Refuse a quantisation that is not known or not available here.

    The device need not be of this machine.

    Raises:
        InvalidArgument: listing the known kinds.
        Unavailable: naming the package that is missing or cannot be used, or the missing device.
    """
    if kind is None:
        return
    if kind not in KINDS:
        raise InvalidArgument(f"{key}={kind!r} is not known: choose one of {', '.join(KINDS)}")
    package = KINDS[kind][0]
    if find_spec(package) is None:
        raise Unavailable(
            f"{key}={kind!r} needs the package {package}: pip install {package} accelerate"
        )
    if package == "bitsandbytes" and not str(device).startswith("cuda"):
        raise Unavailable(
            f"{key}={kind!r} is for CUDA devices, but the model is on {device}: use 'int8-weight-only'"
        )
    settings_of(kind, key)


def settings_of(kind: str, key: str = "quantised") -> Any:
    """The settings for transformers of a known kind.

    Raises:
        Unavailable: if its package cannot be used.
    """
    package, make = KINDS[kind]
    try:
        return make()
    except Exception as error:  # one that does not fit torch or transformers fails in many ways
        raise Unavailable(
            f"{key}={kind!r}: the package {package} is installed but cannot be used "
            f"({in_words(error, package)}): pip install --upgrade {package}, or leave the key out"
        ) from error


def quantisation_of(model: nn.Module) -> str | None:
    """The quantisation of a model, such as "torchao Int8WeightOnlyConfig"; None if it has none."""
    settings: Any = getattr(getattr(model, "config", None), "quantization_config", None)
    if settings is None:
        return None
    stated = settings if isinstance(settings, Mapping) else vars(settings)
    method, kind = stated.get("quant_method"), stated.get("quant_type")
    words = [str(getattr(method, "value", method))]
    return " ".join(words if kind is None else [*words, type(kind).__name__])


def stored(weight: Tensor) -> list[Tensor]:
    """The tensors that a weight is stored in: numbers and scales, if it is quantised; else itself."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [part for name in names for part in stored(getattr(weight, name))]


def stored_bytes(weight: Tensor) -> int:
    """Bytes of a weight, which of a quantised one are fewer than its dtype says."""
    return sum(part.nbytes for part in stored(weight))


def is_small(model: nn.Module) -> bool:
    """Whether some matrices are stored in fewer bits than two bytes a number."""
    return any(
        part.dim() > 1 and (part.dtype.itemsize == 1 or not part.is_floating_point())
        for weight in model.parameters()
        for part in stored(weight)
    )


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide progress bars of packages whose settings do not hide them."""
    from tqdm import tqdm

    silent = partialmethod(tqdm.__init__, disable=True)
    with patch.object(tqdm, "__init__", silent):
        yield
