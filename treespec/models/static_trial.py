"""Whether a model's pass can be captured: tried once, and refused in words.

Three ways in which a model can be unfit, none of which its configuration tells:

1. It asks the device for a value, or makes tensors whose shape depends on values (experts that gather
   their tokens, rotary scalings that look at the longest position). A graph cannot. `NoHostReads` watches
   every operation of a pass for it, on any device; on CUDA torch's own synchronisation check joins in.
2. It takes a length from the cache as a Python number, which a graph would repeat for ever. While a static
   pass runs, the cache gives out constants only (`TreeCache.static`), so such a model's logits are wrong
   here, at once.
3. It does not run on our attention, or not by the kernel.

So: a short prompt, a tree of 5 nodes in a bucket of 8, by a static pass and by an ordinary one; then the
static pass once more, watched, and the same tree in parts, as drafters run it, watched too. Logits must
agree as well as the probe asks (`probe.TOLERANCE`).
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_masks.tree_attention.triton import available
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.models.probe import TOLERANCE
from treespec.models.routes import OwnAttention
from treespec.models.static_pass import StaticRunner
from treespec.models.transformers_model import TransformersModel

__all__ = ["NoHostReads", "require_static"]

PREFIX = 3
PARENTS = (-1, 0, 0, 2, 1)
PARTS = ((0, 1), (1, 3), (3, 5))
"""The nodes of the tree in parts, each of which has its parents before it."""


def require_static(model: TransformersModel) -> None:
    """Make sure that static passes of this model are right, and that nothing in them waits for a value.

    Raises:
        UnsupportedModel: with the reason.
        Unavailable: where the kernel is missing.
    """
    kind = model.model.config.model_type
    route = model.finding.route
    if not isinstance(route, OwnAttention):
        raise UnsupportedModel(
            f"{kind} models take trees as a mask through their own attention, whose size changes with "
            "every step: their pass cannot be captured"
        )
    if route.impl not in ("auto", "triton"):
        raise UnsupportedModel(
            f"the model was asked to run attention={route.impl!r}, but a captured pass needs the kernel: "
            "'auto' or 'triton'"
        )
    if (missing := available(model.device)) is not None:
        raise Unavailable(missing)
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        raise UnsupportedModel(
            f"its weights are on {', '.join(sorted(map(str, devices)))}: a captured pass is of one device"
        )
    try:
        error = _error(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever it raises, its pass cannot be captured
        why = in_words(problem, "a pass in fixed memory")
        raise UnsupportedModel(f"{kind} models cannot be captured: {why}") from problem
    tolerance = TOLERANCE.get(model.model.dtype, TOLERANCE[torch.bfloat16])
    if not error <= tolerance:
        raise UnsupportedModel(
            f"{kind} models: logits of a pass in fixed memory differ from those of an ordinary one by "
            f"{error:.2g} of their size ({tolerance:.2g} is allowed in {model.model.dtype})"
        )


def _error(model: TransformersModel) -> float:
    """How far static passes are from an ordinary one, where they are furthest; and watched passes."""
    tokens = torch.arange(1, PREFIX + len(PARENTS) + 1, device=model.device) % model.vocab_size
    ordinary, static = model.fresh(), model.fresh(runner=StaticRunner)
    ordinary.prefill(tokens[:PREFIX])
    static.prefill(tokens[:PREFIX])
    expected = ordinary.run(tokens[PREFIX:], PARENTS).double()
    whole = static.run(tokens[PREFIX:], PARENTS).double()
    with NoHostReads(), _no_synchronisation(model.device):
        static.run(tokens[PREFIX:], PARENTS)
    static.prefill(tokens[:PREFIX])
    parts = []
    for first, end in PARTS:
        nodes = tokens[PREFIX + first : PREFIX + end]
        parts.append(static.run(nodes, PARENTS[:end], first).double())
        with NoHostReads(), _no_synchronisation(model.device):
            static.run(nodes, PARENTS[:end], first)
    return max(_distance(whole, expected), _distance(torch.cat(parts), expected))


def _distance(logits: Float[Tensor, "N V"], expected: Float[Tensor, "N V"]) -> float:
    """Of centred rows, relative to the length of the true one, where it is longest."""
    expected, logits = (x - x.mean(-1, keepdim=True) for x in (expected, logits))
    return float(((logits - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)).max())


class NoHostReads(TorchDispatchMode):
    """While it lasts, operations that give the host a value or a shape from the device raise.

    It sees PyTorch's operations, whatever the device, and not what custom kernels do. `attention_masks`'
    kernels wait for nothing.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Look at one operation, then do it."""
        kwargs = kwargs or {}
        with self:  # in inference mode composite operations come whole, with what is inside unseen
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if _reads(func, args, kwargs):
            raise UnsupportedModel(
                f"its pass reads values back from the device ({func}), which a captured pass cannot"
            )
        return func(*args, **kwargs)


def _reads(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    name = func.overloadpacket.__name__
    if name in ("index", "index_put", "index_put_"):  # a mask as index is a search for what is true
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    if name == "copy_":
        return args[0].is_cpu and not args[1].is_cpu
    if name == "_to_copy":
        target = kwargs.get("device")
        return not args[0].is_cpu and target is not None and target.type == "cpu"
    if kwargs.get("output_size") is not None:
        return False
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return any(tag in func.tags for tag in tags)


@contextmanager
def _no_synchronisation(device: torch.device) -> Iterator[None]:
    """On CUDA, whatever waits for the device raises: copies from ordinary host memory too."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # that the mode does not see everything
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise UnsupportedModel(
            "its pass waits for the device, which a captured pass cannot"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
