"""What our attention costs beside transformers' own: time of a pass over one token, memory of a tree.

    python -m treespec.experiments.benchmarks.attention_overhead [--grow 100M] [--repeats 60]
        [--dtypes float32,bfloat16] [--prefixes 256,1024,4096] [--nodes 1,16,64] [--no-save]

Time: the embedded target, grown, runs one token behind a prefix, again and again at the same place. In one
loop and in changing order: our pass (`TransformersModel.run`, attention="sdpa": topology, masks, checks and
cache included), and transformers' sdpa with no more arguments than it needs, once with its `DynamicCache`,
which copies all keys and values at every step, and once with our cache, which does not. Ratios are medians
of the ratios of one round. Goal: at most 1.03 of plain transformers (DynamicCache).

Memory: one pass over a random tree, by our sdpa path and by the usual way (a 4D mask through transformers'
sdpa). Counted from inside: calls of PyTorch's attention, distinct masks given to it, keys and values given
to it that are copies and not the cache (`repeat_kv`), and by the profiler all that was allocated.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedModel

from treespec import load_pair
from treespec.experiments.benchmarks.results_file import save
from treespec.models.cache import TreeCache
from treespec.models.transformers_model import TransformersModel

GOAL = 1.03
OURS, THEIRS, STRICT = "ours", "transformers, DynamicCache", "transformers, our cache"
ROUTES = {"ours": "sdpa", "4D mask": "transformers"}
MB = 1e6


def _passes(model: PreTrainedModel, ids: Tensor) -> dict[str, tuple[str, Callable[[], float]]]:
    """For each way the attention implementation that it wants, and a pass over one token, in seconds."""
    prefix, token = ids[:-1], ids[-1:]
    ours = TransformersModel(model, attention="sdpa")
    ours.prefill(prefix)
    shared = TreeCache(ours.finding.layout)
    with ours.as_transformers(), torch.inference_mode():
        dynamic = DynamicCache(config=model.config)
        model(input_ids=prefix[None], past_key_values=dynamic, use_cache=True, logits_to_keep=1)
        shared.begin(0, len(prefix))
        model(input_ids=prefix[None], past_key_values=shared, use_cache=True, logits_to_keep=1)
        shared.keep(range(len(prefix)))
    position = torch.tensor([[len(prefix)]])

    def own() -> float:
        start = time.perf_counter()
        ours.run(token, (-1,))
        return time.perf_counter() - start

    @torch.inference_mode()
    def plain(cache: Any) -> float:
        start = time.perf_counter()
        model(input_ids=token[None], position_ids=position, past_key_values=cache, use_cache=True)
        return time.perf_counter() - start

    def with_dynamic() -> float:
        seconds = plain(dynamic)
        dynamic.crop(-1)
        return seconds

    def with_shared() -> float:
        shared.begin(0, 1)
        return plain(shared)

    of_ours, of_plain = ours.finding.route.implementation, ours.finding.plain
    return {
        OURS: (of_ours, own),
        THEIRS: (of_plain, with_dynamic),
        STRICT: (of_plain, with_shared),
    }


def measure_time(
    model: PreTrainedModel, ids: Tensor, repeats: int, title: str = ""
) -> dict[str, Any]:
    """Milliseconds of a pass over the last of these tokens behind the others, and ratios to ours.

    Args:
        model: any; it is left on our attention.
        ids: prefix and token.
        repeats: rounds that count; two more warm up.
        title: of the progress bar.
    """
    ways = _passes(model, ids)
    order, shuffle = list(ways), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in track(range(repeats + 2), description=title, transient=True):
        shuffle.shuffle(order)
        for name in order:
            implementation, run = ways[name]
            model.set_attn_implementation(implementation)
            run()  # after the switch, and with the caches of the processor as this way leaves them
            spent = run()
            if round_ >= 2:
                seconds[name].append(spent)
    model.set_attn_implementation(ways[OURS][0])
    return {
        "ms": {name: 1e3 * statistics.median(values) for name, values in seconds.items()},
        "ratio": {
            name: statistics.median(
                mine / other for mine, other in zip(seconds[OURS], seconds[name], strict=True)
            )
            for name in (THEIRS, STRICT)
        },
        "spread": {  # quartiles of the ratio: the machine's noise
            name: statistics.quantiles(
                [mine / other for mine, other in zip(seconds[OURS], seconds[name], strict=True)],
                n=4,
            )[::2]
            for name in (THEIRS, STRICT)
        },
    }


class AttentionCalls(TorchDispatchMode):
    """Notes what PyTorch's fused attention is given while it lasts.

    Args:
        cache: memory that keys and values may lie in without being copies.
    """

    def __init__(self, cache: TreeCache) -> None:
        super().__init__()
        layers: Any = cache.layers
        self._cache = {
            rows.untyped_storage().data_ptr()
            for layer in layers
            for rows in (layer.keys, layer.values)
            if rows is not None
        }
        self.calls = 0
        self.masks: dict[int, tuple[int, Tensor]] = {}
        self.copied = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Look at one operation, then do it."""
        kwargs = kwargs or {}
        if "scaled_dot_product" in str(func):
            self.calls += 1
            mask = kwargs.get("attn_mask")
            for tensor in args[3:]:
                mask = tensor if isinstance(tensor, Tensor) else mask
            if mask is not None:  # held, so that no other mask can come to its address
                held = mask.untyped_storage()
                self.masks[held.data_ptr()] = (held.nbytes(), mask)
            for rows in args[1:3]:
                held = rows.untyped_storage()
                self.copied += held.nbytes() * (held.data_ptr() not in self._cache)
        return func(*args, **kwargs)


def measure_memory(
    model: PreTrainedModel, ids: Tensor, nodes: int, attention: str
) -> dict[str, float]:
    """What one pass over a random tree behind these tokens gives to attention and allocates, in bytes.

    Args:
        model: any.
        ids: the prefix.
        nodes: of the tree.
        attention: as `TransformersModel` takes it.
    """
    wrapped = TransformersModel(model, attention=attention)
    wrapped.prefill(ids)
    draws = random.Random(nodes)
    parents = (-1, *(draws.randrange(i) for i in range(1, nodes)))
    tokens = torch.arange(nodes) % wrapped.vocab_size
    wrapped.run(tokens, parents)
    with AttentionCalls(wrapped._runner.cache) as seen:
        wrapped.run(tokens, parents)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        wrapped.run(tokens, parents)
    held = peak = total = 0
    recorded: Any = profiler.profiler
    for event in recorded.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak, total = max(peak, held), total + max(event.nbytes(), 0)
    return {
        "layers": model.config.num_hidden_layers,
        "attention_calls": seen.calls,
        "masks": len(seen.masks),
        "mask_bytes": sum(size for size, _ in seen.masks.values()),
        "copied_key_value_bytes": seen.copied,
        "allocated_bytes": total,
        "peak_bytes": peak,
    }


def grown(size: str, dtype: str, longest: int) -> PreTrainedModel:
    """The embedded target with so many parameters and a context of at least `longest` tokens."""
    model = load_pair("embedded", dtype=dtype, grow=size).target.model
    config: Any = model.config
    config.max_position_embeddings = max(config.max_position_embeddings, longest)
    return model


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(
        prog="python -m treespec.experiments.benchmarks.attention_overhead"
    )
    parser.add_argument("--grow", default="100M")
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--prefixes", default="256,1024,4096")
    parser.add_argument("--nodes", default="1,16,64")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    prefixes = [int(text) for text in options.prefixes.split(",")]
    sizes = [int(text) for text in options.nodes.split(",")]
    console = Console()
    times = Table("dtype", "prefix", "ours", "DynamicCache", "our cache", "ratio", "quartiles",
                  "ratio, our cache", "quartiles", "goal",
                  title=f"milliseconds of a pass over one token ({options.grow})")  # fmt: skip
    memory = Table("dtype", "prefix", "nodes", "path", "layers", "masks", "mask MB", "copied K, V MB",
                   "allocated MB", "peak MB", title="memory of a pass over a tree")  # fmt: skip
    figures: dict[str, Any] = {"time": {}, "memory": {}}
    for dtype in options.dtypes.split(","):
        model = grown(options.grow, dtype, max(prefixes) + max(sizes) + 1)
        figures["parameters"] = sum(weight.numel() for weight in model.parameters())
        for prefix in prefixes:
            ids = torch.arange(7, 7 + prefix + 1) % model.config.vocab_size
            place = f"{dtype}, {prefix}"
            found = figures["time"][place] = measure_time(model, ids, options.repeats, place)
            ratio, spread, ms = found["ratio"], found["spread"], found["ms"]
            times.add_row(
                dtype, str(prefix), *(f"{ms[name]:.2f}" for name in (OURS, THEIRS, STRICT)),
                f"{ratio[THEIRS]:.3f}", " - ".join(f"{q:.3f}" for q in spread[THEIRS]),
                f"{ratio[STRICT]:.3f}", " - ".join(f"{q:.3f}" for q in spread[STRICT]),
                "met" if ratio[THEIRS] <= GOAL else "MISSED",
            )  # fmt: skip
            for nodes in sizes:
                for name, attention in ROUTES.items():
                    row = measure_memory(model, ids[:-1], nodes, attention)
                    figures["memory"][f"{place}, {nodes} nodes, {name}"] = row
                    memory.add_row(
                        dtype, str(prefix), str(nodes), name, str(row["layers"]), str(row["masks"]),
                        *(f"{row[key] / MB:.2f}" for key in
                          ("mask_bytes", "copied_key_value_bytes", "allocated_bytes", "peak_bytes")),
                    )  # fmt: skip
    console.print(times)
    console.print(memory)
    if not options.no_save:
        setting = {"grow": options.grow, "repeats": options.repeats}
        console.print(
            f"written: {save('attention_overhead', {'setting': setting, **figures})}",
            soft_wrap=True,
        )
    return figures


if __name__ == "__main__":
    main()
