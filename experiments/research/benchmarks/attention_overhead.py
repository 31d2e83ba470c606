"""Compare our attention with that of transformers: time of a pass over one token, memory of a tree.

    python -m treespec.experiments.research.benchmarks.attention_overhead [--enlarge 100M] [--repeats 60]
        [--dtypes float32,bfloat16] [--prefixes 256,1024,4096] [--nodes 1,16,64] [--no-save]

Time: the enlarged embedded target runs one token after a prefix, repeatedly at the same position. One loop
runs in changing order: our pass (`TransformersModel.run`, attention="sdpa", including topology, masks,
checks and cache), and transformers' sdpa with the minimal arguments, once with its `DynamicCache`, which
copies all keys and values at every step, and once with our cache, which does not. Ratios are medians of the
ratios of each round. Goal: at most 1.03 of plain transformers (DynamicCache).

Memory: one pass over a random tree, with our sdpa path and in the usual way (a 4D mask through
transformers' sdpa). The benchmark counts calls of PyTorch's attention, distinct masks that it gets, and
keys and values that it gets as copies instead of the cache (`repeat_kv`); the profiler counts all
allocations.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, PreTrainedModel

from treespec import load_pair
from treespec.experiments.measure.timing import in_turns, seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.models.cache import TreeCache, cache_argument
from treespec.models.transformers_model import TransformersModel

GOAL = 1.03
OURS, THEIRS, STRICT = "ours", "transformers, DynamicCache", "transformers, our cache"
ROUTES = {"ours": "sdpa", "4D mask": "transformers"}
BYTES_OF_MB = 1e6

TIME_COLUMNS = (
    keyed("dtype", "dtype", left=True),
    keyed("prefix", "prefix"),
    keyed("ours", OURS, ".2f"),
    keyed("DynamicCache", THEIRS, ".2f"),
    keyed("our cache", STRICT, ".2f"),
    keyed("ratio", "ratio", ".3f"),
    keyed("quartiles", "quartiles"),
    keyed("ratio,\nour cache", "ratio, our cache", ".3f"),
    keyed("quartiles", "quartiles, our cache"),
    keyed("goal", "goal", left=True),
)
MEMORY_COLUMNS = (
    keyed("dtype", "dtype", left=True),
    keyed("prefix", "prefix"),
    keyed("nodes", "nodes"),
    keyed("path", "path", left=True),
    keyed("layers", "layers"),
    keyed("masks", "masks"),
    keyed("mask MB", "mask_bytes", ".2f"),
    keyed("copied K, V MB", "copied_key_value_bytes", ".2f"),
    keyed("allocated MB", "allocated_bytes", ".2f"),
    keyed("peak MB", "peak_bytes", ".2f"),
)


def _passes(model: PreTrainedModel, ids: Tensor) -> dict[str, tuple[str, Callable[[], float]]]:
    """For each way, the attention implementation it needs and a timer of a pass over one token."""
    prefix, token = ids[:-1], ids[-1:]
    ours = TransformersModel(model, attention="sdpa")
    ours.prefill(prefix)
    shared, taken_as = TreeCache(ours.finding.layout), cache_argument(model)
    with ours.as_transformers(), torch.inference_mode():
        dynamic = DynamicCache(config=model.config)
        model(input_ids=prefix[None], **{taken_as: dynamic}, use_cache=True, logits_to_keep=1)
        shared.begin(0, len(prefix))
        model(input_ids=prefix[None], **{taken_as: shared}, use_cache=True, logits_to_keep=1)
        shared.keep(range(len(prefix)))
    arguments = {
        "input_ids": token[None],
        "position_ids": torch.tensor([[len(prefix)]]),
        "use_cache": True,
    }

    @torch.inference_mode()
    def plain(cache: Any) -> float:
        return seconds_of(lambda: model(**arguments, **{taken_as: cache}))

    def with_dynamic() -> float:
        seconds = plain(dynamic)
        dynamic.crop(-1)
        return seconds

    def with_shared() -> float:
        shared.begin(0, 1)
        return plain(shared)

    plain_route = ours.finding.plain
    return {
        OURS: (
            ours.finding.route.implementation,
            lambda: seconds_of(lambda: ours.run(token, (-1,))),
        ),
        THEIRS: (plain_route, with_dynamic),
        STRICT: (plain_route, with_shared),
    }


def measure_time(
    model: PreTrainedModel, ids: Tensor, repeats: int, title: str = ""
) -> dict[str, Any]:
    """Milliseconds of a pass over the last token after the others, and ratios of our pass to the others."""
    passes = _passes(model, ids)

    def measured(implementation: str, run: Callable[[], float]) -> float:
        model.set_attn_implementation(implementation)
        run()  # warm up after the switch, with the processor caches as this way leaves them
        return run()

    seconds = in_turns(
        {name: partial(measured, *way) for name, way in passes.items()},
        repeats,
        warm_up=2,
        title=title,
    )
    model.set_attn_implementation(passes[OURS][0])
    ratios = {
        name: [ours / other for ours, other in zip(seconds[OURS], seconds[name], strict=True)]
        for name in (THEIRS, STRICT)
    }
    return {
        "ms": {name: 1e3 * statistics.median(values) for name, values in seconds.items()},
        "ratio": {name: statistics.median(values) for name, values in ratios.items()},
        # Quartiles of the ratio: the machine's noise.
        "spread": {name: statistics.quantiles(r, n=4)[::2] for name, r in ratios.items()},
    }


class AttentionCalls(TorchDispatchMode):
    """Records the inputs of PyTorch's fused attention while it is active."""

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
        """Record one operation, then run it."""
        kwargs = kwargs or {}
        if "scaled_dot_product" in str(func):
            self.calls += 1
            candidates = (kwargs.get("attn_mask"), *args[3:])
            mask = next((tensor for tensor in candidates if isinstance(tensor, Tensor)), None)
            if mask is not None:  # keep the mask, so that no later one can reuse its address
                storage = mask.untyped_storage()
                self.masks[storage.data_ptr()] = (storage.nbytes(), mask)
            for rows in args[1:3]:
                storage = rows.untyped_storage()
                self.copied += storage.nbytes() * (storage.data_ptr() not in self._cache)
        return func(*args, **kwargs)


def measure_memory(
    model: PreTrainedModel, ids: Tensor, nodes: int, attention: str
) -> dict[str, float]:
    """Measure the inputs of attention and the allocations of one pass over a random tree, in bytes."""
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
    recorded: Any = profiler.profiler
    changes = [
        event.nbytes() for event in recorded.kineto_results.events() if event.name() == "[memory]"
    ]
    return {
        "layers": model.config.num_hidden_layers,
        "attention_calls": seen.calls,
        "masks": len(seen.masks),
        "mask_bytes": sum(size for size, _ in seen.masks.values()),
        "copied_key_value_bytes": seen.copied,
        "allocated_bytes": sum(change for change in changes if change > 0),
        "peak_bytes": max(accumulate(changes, initial=0)),
    }


def enlarged(size: str, dtype: str, longest: int) -> PreTrainedModel:
    """The embedded target, enlarged to `size` parameters, with a context of at least `longest` tokens."""
    model = load_pair("embedded", dtype=dtype, enlarge=size).target.model
    config: Any = model.config
    config.max_position_embeddings = max(config.max_position_embeddings, longest)
    return model


def time_row(measured: dict[str, Any]) -> dict[str, Any]:
    """A table row from the result of `measure_time`."""
    ratio, spread = measured["ratio"], measured["spread"]
    quartiles = {name: " - ".join(f"{q:.3f}" for q in bounds) for name, bounds in spread.items()}
    return {
        **measured["ms"],
        "ratio": ratio[THEIRS],
        "quartiles": quartiles[THEIRS],
        "ratio, our cache": ratio[STRICT],
        "quartiles, our cache": quartiles[STRICT],
        "goal": "met" if ratio[THEIRS] <= GOAL else "MISSED",
    }


def in_megabytes(row: dict[str, float]) -> dict[str, float]:
    """The row with bytes converted to megabytes."""
    return {name: v / BYTES_OF_MB if name.endswith("bytes") else v for name, v in row.items()}


def main(
    enlarge: Annotated[str, typer.Option(help="Parameters of the enlarged target.")] = "100M",
    repeats: Annotated[int, typer.Option(min=2, help="Rounds that count.")] = 60,
    dtypes: Annotated[str, typer.Option(help="Dtypes, separated by commas.")] = "float32,bfloat16",
    prefixes: Annotated[str, typer.Option(help="Numbers of committed tokens.")] = "256,1024,4096",
    nodes: Annotated[str, typer.Option(help="Nodes of the trees for memory.")] = "1,16,64",
    no_save: Annotated[bool, typer.Option("--no-save", help="Print only.")] = False,
) -> None:
    """Compare the cost of our attention with that of transformers; print and save it."""
    lengths = [int(text) for text in prefixes.split(",")]
    sizes = [int(text) for text in nodes.split(",")]
    figures: dict[str, Any] = {
        "setting": {"enlarge": enlarge, "repeats": repeats},
        "time": {},
        "memory": {},
    }
    times, memory = [], []
    for dtype in dtypes.split(","):
        model = enlarged(enlarge, dtype, max(lengths) + max(sizes) + 1)
        figures["parameters"] = sum(weight.numel() for weight in model.parameters())
        for prefix in lengths:
            ids = torch.arange(7, 7 + prefix + 1) % model.config.vocab_size
            place, place_row = f"{dtype}, {prefix}", {"dtype": dtype, "prefix": prefix}
            figures["time"][place] = measured = measure_time(model, ids, repeats, place)
            times.append(place_row | time_row(measured))
            for count, (path, attention) in product(sizes, ROUTES.items()):
                row = measure_memory(model, ids[:-1], count, attention)
                figures["memory"][f"{place}, {count} nodes, {path}"] = row
                memory.append(place_row | {"nodes": count, "path": path} | in_megabytes(row))
    print_and_save(
        "attention_overhead",
        figures,
        Table(f"milliseconds of a pass over one token ({enlarge})", TIME_COLUMNS, times),
        Table("memory of a pass over a tree", MEMORY_COLUMNS, memory),
        saved=not no_save,
    )


if __name__ == "__main__":
    typer.run(main)
