"""Test once whether a model's pass can be captured, and say why if it cannot.

A model's configuration does not tell whether its pass can be captured. There are three obstacles:

1. The pass reads a value back from the device, or makes tensors whose shape depends on values (experts that
   gather their tokens, rotary scaling by the longest position). A graph cannot do this. `NoHostReads`
   checks every operation of a pass, on any device; on CUDA, torch's own synchronisation check is on too.
2. The model takes a length from the cache as a Python number, which every replay would repeat. During a
   static pass the cache returns constants only (`TreeCache.static`), so the logits of such a model are
   wrong here at once.
3. The model does not run on our attention, or not with the kernel.

The trial: a short prompt and a tree of 5 nodes in a bucket of 8, by a static pass and by an ordinary one;
then the static pass again under `NoHostReads`, and the same tree in parts, as drafters run it, again under
`NoHostReads`. Logits must agree within the probe's tolerance (`probe.TOLERANCE`).
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from attention_masks.tree_attention.triton import available
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.models.cache import LayerShape
from treespec.models.logit_errors import errors, of_its_tokens
from treespec.models.passes.given_states import state_width
from treespec.models.passes.static_joined import StaticTogether
from treespec.models.passes.static_pass import StaticRunner
from treespec.models.probe import TOLERANCE
from treespec.models.routes import OwnAttention, Route
from treespec.models.runner import TreeRunner
from treespec.models.support import embedding_count
from treespec.models.transformers_model import TransformersModel
from treespec.models.waiting import Nodes

PREFIX = 3
PARENTS = (-1, 0, 0, 2, 1)
PARTS = ((0, 1), (1, 3), (3, 5))
"""Ranges of nodes of the tree: the parents of each range precede it."""


def require_static(model: TransformersModel) -> None:
    """Check that static passes of a model are correct and never wait for a value from the device.

    Raises:
        UnsupportedModel: if they are not, with the reason.
        Unavailable: if the kernel does not run on the model's device.
    """
    model_type = model.model.config.model_type
    route = model.finding.route
    if not isinstance(route, OwnAttention):
        raise UnsupportedModel(
            f"{model_type} models take trees as a mask through their own attention, and the size of the "
            "mask changes with every step: their pass cannot be captured"
        )
    if route.impl not in ("auto", "triton"):
        raise UnsupportedModel(
            f"the model was loaded with attention={route.impl!r}, but a captured pass needs the kernel: "
            "'auto' or 'triton'"
        )
    if (missing := available(model.device)) is not None:
        raise Unavailable(missing)
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        raise UnsupportedModel(
            f"its weights are on {', '.join(sorted(map(str, devices)))}: "
            "a captured pass runs on one device"
        )
    try:
        error = _error(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever the error, the pass cannot be captured
        why = in_words(problem, "a pass in fixed memory")
        raise UnsupportedModel(f"{model_type} models cannot be captured: {why}") from problem
    tolerance = TOLERANCE.get(model.model.dtype, TOLERANCE[torch.bfloat16])
    if not error <= tolerance:
        raise UnsupportedModel(
            f"{model_type} models: logits of a pass in fixed memory differ from those of an ordinary one "
            f"by {error:.2g} of their norm ({tolerance:.2g} is allowed in {model.model.dtype})"
        )


def _error(model: TransformersModel) -> float:
    """The largest error of static passes against an ordinary one; repeats them under `NoHostReads`.

    A head reads states of tokens alone.
    """
    tokens = torch.arange(1, PREFIX + len(PARENTS) + 1, device=model.device) % model.vocab_size
    ordinary, static = model.fresh(), model.fresh(runner=StaticRunner)
    states = None
    if state_width(model.model):
        net: Any = model.model
        with torch.inference_mode():
            states = net.states_of(tokens[PREFIX:])
    ordinary.prefill(tokens[:PREFIX])
    static.prefill(tokens[:PREFIX])
    expected = ordinary.run(tokens[PREFIX:], PARENTS, 0, states).logits
    in_one_pass = static.run(tokens[PREFIX:], PARENTS, 0, states).logits
    with NoHostReads(), _no_synchronisation(model.device):
        static.run(tokens[PREFIX:], PARENTS, 0, states)
    static.prefill(tokens[:PREFIX])
    in_parts = []
    for first, end in PARTS:
        nodes = tokens[PREFIX + first : PREFIX + end]
        part = None if states is None else states[first:end]
        in_parts.append(static.run(nodes, PARENTS[:end], first, part).logits)
        with NoHostReads(), _no_synchronisation(model.device):
            static.run(nodes, PARENTS[:end], first, part)
    expected, *found = (
        of_its_tokens(model.model, logits)
        for logits in (expected, in_one_pass, torch.cat(in_parts))
    )
    return max(float(errors(logits, expected).max()) for logits in found)


def require_joined(
    model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None]
) -> None:
    """Check that static passes over several texts are correct and never wait for a value from the device.

    Two texts, whole trees and parts of them; `require_static` has approved of passes of one text.

    Raises:
        UnsupportedModel: if they are not, with the reason.
    """
    if state_width(model):
        raise UnsupportedModel(
            "a trained head reads states beside its tokens, which passes of several texts in fixed memory "
            "do not hold"
        )
    tokens = torch.arange(1, PREFIX + len(PARENTS) + 2, device=model.device) % embedding_count(
        model
    )
    together = StaticTogether(model, layout)
    ordinary = [TreeRunner(model, route, layout) for _ in range(2)]
    static = [StaticRunner(model, route, layout, together) for _ in range(2)]
    largest = []
    try:
        for i, runners in enumerate(zip(ordinary, static, strict=True)):
            for runner in runners:
                runner.prefill(tokens[: PREFIX - i])
        for first, end in (PARTS[0], (PARTS[0][1], PARTS[-1][1])):
            nodes = [
                Nodes(tokens[PREFIX - i + first : PREFIX - i + end], PARENTS[:end], first)
                for i in range(2)
            ]
            expected = ordinary[0].run_together([*zip(ordinary, nodes, strict=True)])
            found = static[0].run_together([*zip(static, nodes, strict=True)])
            for mine, right in zip(found, expected, strict=True):
                largest.append(float(errors(mine.logits, right.logits).max()))
            with NoHostReads(), _no_synchronisation(model.device):
                static[0].run_together([*zip(static, nodes, strict=True)])
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever the error, the pass cannot be captured
        why = in_words(problem, "a pass in fixed memory")
        raise UnsupportedModel(f"passes of several texts cannot be captured: {why}") from problem
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    if not max(largest) <= tolerance:
        raise UnsupportedModel(
            f"logits of passes of several texts in fixed memory differ from those of ordinary ones by "
            f"{max(largest):.2g} of their norm ({tolerance:.2g} is allowed in {model.dtype})"
        )


class NoHostReads(TorchDispatchMode):
    """Context in which operations that return a value or a shape from the device to the host raise.

    Covers PyTorch's operations on any device, but not what custom kernels do. The kernels of
    `attention_masks` wait for nothing.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Check an operation, then run it."""
        kwargs = kwargs or {}
        with self:  # in inference mode composite operations arrive undecomposed
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if _reads_back(func, args, kwargs):
            raise UnsupportedModel(
                f"its pass reads values back from the device ({func}), which a captured pass cannot do"
            )
        return func(*args, **kwargs)


def _reads_back(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    name = func.overloadpacket.__name__
    if name in (
        "index",
        "index_put",
        "index_put_",
    ):  # the shape depends on the values of a mask index
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
    """Context in which, on CUDA, waiting for the device raises; copies from pageable memory wait too."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # torch warns that the mode does not detect everything
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise UnsupportedModel(
            "its pass waits for the device, which a captured pass cannot do"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
