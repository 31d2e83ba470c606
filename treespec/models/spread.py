"""Targets larger than one device: their layers on several GPUs, or each layer split over several processes.

Both are done by transformers (with accelerate) while it reads the weights; here is what must be there
first, and what must hold afterwards. Every layer's rows stay on that layer's device: the cache has memory
of its own for each device.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import LoadError, TreespecError

__all__ = [
    "DeviceMap",
    "ProcessesDiffer",
    "device_map_arguments",
    "require_whole",
    "tensor_parallel_arguments",
    "watch_processes",
]

DeviceMap = str | Mapping[str, int | str]
"""`auto`, or from names of modules to devices, as transformers takes it."""

ELSEWHERE = ("cpu", "disk", "meta")


class ProcessesDiffer(TreespecError, RuntimeError):
    """The processes that share a model were about to run it on different tokens."""


def device_map_arguments(device_map: DeviceMap) -> dict[str, Any]:
    """What `from_pretrained` is told to spread a model over devices.

    Args:
        device_map: "auto" fills all GPUs evenly; a mapping says where each module goes.

    Raises:
        LoadError: if accelerate is missing, the value is no device map, or "auto" finds no GPU.
    """
    what = f"device_map={device_map!r}"
    if isinstance(device_map, str) and device_map != "auto":
        raise LoadError(
            f"{what} is not known: 'auto', or a mapping of modules to devices such as "
            "{'': 'cuda:0'}"
        )
    _require_accelerate(what)
    if device_map == "auto" and not torch.cuda.is_available():
        raise LoadError(
            f"{what} spreads the target over GPUs, but torch finds none here: leave it out"
        )
    return {"device_map": device_map if isinstance(device_map, str) else dict(device_map)}


def tensor_parallel_arguments(device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` is told to split every layer over the processes of torchrun.

    Args:
        device: where the user wants the models; its type must be the one that the processes share.

    Raises:
        LoadError: outside torchrun, with more processes than GPUs, without accelerate, or where this
            transformers cannot do it.
    """
    what = "tensor_parallel=True"
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2 or "RANK" not in os.environ or "LOCAL_RANK" not in os.environ:
        raise LoadError(
            f"{what} splits the target over processes that torchrun starts, and this is not one of "
            "several: torchrun --nproc-per-node 2 --no-python treespec run CONFIG "
            "models.tensor_parallel=true"
        )
    _require_accelerate(what)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    shared = "cuda" if torch.cuda.is_available() else "cpu"
    if device.type != shared:
        raise LoadError(
            f"{what} runs on {shared} here, but device={str(device)!r}: say models.device={shared}"
        )
    if shared == "cuda" and here > torch.cuda.device_count():
        raise LoadError(
            f"{what}: {here} processes on a machine with {torch.cuda.device_count()} GPUs; "
            "each needs one of its own"
        )
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError) as error:
        raise LoadError(f"{what}: this version of transformers cannot do it ({error})") from None


def require_whole(model: PreTrainedModel, name: str) -> None:
    """Refuse a model of which a part did not fit on the GPUs.

    Such a part would be copied to a GPU in every pass: what is measured then is the bus.

    Raises:
        LoadError: naming a module that is elsewhere.
    """
    places = getattr(model, "hf_device_map", None) or {}
    elsewhere = [module for module, place in places.items() if str(place) in ELSEWHERE]
    if elsewhere and len(set(map(str, places.values()))) > 1:
        raise LoadError(
            f"{name!r} does not fit on the GPUs: {len(elsewhere)} of its modules ({elsewhere[0]!r} first) "
            "would be kept elsewhere and copied in at every pass; use more GPUs or a smaller dtype"
        )


def watch_processes(model: PreTrainedModel) -> None:
    """Let every pass first compare its tokens over all processes.

    The processes decode the same text from the same seeds. Were one of them to draw another token, its part
    of every layer would be added to the others' parts for another text, and nobody would notice.
    """
    model.base_model.register_forward_pre_hook(_require_same_tokens, with_kwargs=True)


def _require_same_tokens(
    module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    ids = keywords.get("input_ids", arguments[0] if arguments else None)
    if not isinstance(ids, Tensor):
        return
    flat = ids.flatten().to(torch.int64)
    places = torch.arange(1, len(flat) + 1, device=flat.device)
    mark = ((flat + 1) * (places * 2_654_435_761 % 2_147_483_647)).sum()
    # The largest and, by its negative, the smallest mark: one exchange.
    both = torch.stack([mark, -mark])
    torch.distributed.all_reduce(both, op=torch.distributed.ReduceOp.MAX)
    largest, smallest = both[0], -both[1]
    if bool(largest != smallest):
        raise ProcessesDiffer(
            "the processes of torchrun were about to run the target on different tokens: they no longer "
            "decode the same text (different GPUs, versions or prompts?), so nothing that follows would be "
            "right"
        )


def _require_accelerate(what: str) -> None:
    if find_spec("accelerate") is None:
        raise LoadError(
            f"{what} needs the package accelerate: pip install 'treespec-decoding[large]', or "
            "pip install accelerate"
        )
