"""Targets larger than one device: layers on several GPUs, or every layer split over several processes.

transformers (with accelerate) does both while it reads the weights. This module checks the requirements
beforehand and the result afterwards. The rows of a layer stay on the device of that layer: the cache
allocates memory per device.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import LoadError, TreespecError

DeviceMap = str | Mapping[str, int | str]
"""`auto`, or a mapping from module names to devices, as in transformers."""

ELSEWHERE = ("cpu", "disk", "meta")
"""Devices of modules that did not fit on the GPUs."""


class ProcessesDiffer(TreespecError, RuntimeError):
    """The processes that share a model were about to run it on different tokens."""


def device_map_arguments(device_map: DeviceMap) -> dict[str, Any]:
    """Arguments for `from_pretrained` that spread a model over devices.

    `device_map`: "auto" fills all GPUs evenly; a mapping states the device of each module.
    """
    option = f"device_map={device_map!r}"
    if isinstance(device_map, str) and device_map != "auto":
        raise LoadError(
            f"{option} is not known: give 'auto', or a mapping of modules to devices such as "
            "{'': 'cuda:0'}"
        )
    if not device_map:
        raise LoadError(f"{option} names no module: leave it out, or map '' to a device")
    _require_accelerate(option)
    if device_map == "auto" and not torch.cuda.is_available():
        raise LoadError(
            f"{option} spreads the target over GPUs, but torch finds none here: leave it out"
        )
    return {"device_map": device_map if isinstance(device_map, str) else dict(device_map)}


def tensor_parallel_arguments(device: torch.device) -> dict[str, Any]:
    """Arguments for `from_pretrained` that split every layer over the processes of torchrun.

    `device`: device that the user chose; it must be of the type that the processes share.
    """
    option = "tensor_parallel=True"
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2 or "RANK" not in os.environ or "LOCAL_RANK" not in os.environ:
        raise LoadError(
            f"{option} splits the target over processes that torchrun starts, but this process is not one "
            "of several: run torchrun --nproc-per-node 2 --no-python treespec run CONFIG "
            "models.tensor_parallel=true"
        )
    _require_accelerate(option)
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device.type != device_type:
        raise LoadError(
            f"{option} runs on {device_type} here, but device={str(device)!r}: "
            f"set models.device={device_type}"
        )
    if device_type == "cuda" and local_processes > torch.cuda.device_count():
        raise LoadError(
            f"{option}: {local_processes} processes on a machine with {torch.cuda.device_count()} GPUs; "
            "each process needs a GPU of its own"
        )
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan="auto")}
    except (ImportError, TypeError) as error:
        raise LoadError(f"{option}: this version of transformers cannot do it ({error})") from None


def require_whole(model: PreTrainedModel, name: str, device_map: DeviceMap | None = None) -> None:
    """Refuse a model that does not fit on the GPUs as a whole.

    Every pass would copy the remaining modules to a GPU, and measurements would show the speed of the bus.
    Refuses a `device_map` with names that the model does not have, too: transformers ignores them.
    """
    known = [module for module, _ in (*model.named_modules(), *model.named_parameters())]
    mapped = () if device_map is None or isinstance(device_map, str) else device_map
    if (unknown := next((module for module in mapped if module not in known), None)) is not None:
        raise LoadError(
            f"device_map names {unknown!r}, but {name!r} has no such module: it has "
            f"{', '.join(module for module in known[1:] if module.count('.') < 2)}"
        )
    devices = getattr(model, "hf_device_map", None) or {}
    offloaded = [module for module, device in devices.items() if str(device) in ELSEWHERE]
    if offloaded and len(set(map(str, devices.values()))) > 1:
        raise LoadError(
            f"device_map: {name!r} does not fit on the GPUs: {len(offloaded)} of its modules "
            f"({offloaded[0]!r} first) would be stored elsewhere and copied to a GPU in every pass; "
            "use more GPUs or a smaller dtype"
        )


def watch_processes(model: PreTrainedModel) -> None:
    """Make every pass first compare its tokens across all processes.

    The processes decode the same text from the same seeds. If one of them drew a different token, the layer
    outputs of different texts would be added up, and no error would show it.
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
    checksum = ((flat + 1) * (places * 2_654_435_761 % 2_147_483_647)).sum()
    # One exchange gives the largest checksum and, by its negative, the smallest.
    extremes = torch.stack([checksum, -checksum])
    torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX)
    largest, smallest = extremes[0], -extremes[1]
    if bool(largest != smallest):
        raise ProcessesDiffer(
            "the processes of torchrun were about to run the target on different tokens: they no longer "
            "decode the same text (different GPUs, versions or prompts?), so all further output would be "
            "wrong"
        )


def _require_accelerate(option: str) -> None:
    if find_spec("accelerate") is None:
        raise LoadError(f"{option} needs the package accelerate: pip install accelerate")
