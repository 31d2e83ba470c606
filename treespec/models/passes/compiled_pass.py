"""The pass over nodes of a tree as a function of tensors alone, compiled once for all caches of a model.

In an ordinary pass, Python runs between the operations. This takes most of the time of a small model, and
with a large model as much time as a tree could save. `torch.compile` reduces the pass to one call. It makes
one graph, in which the number of nodes, the rows of the cache and its capacity are free: no pass is padded,
no bucket is compiled later, and the caches of all methods share the graph. Models whose code depends on the
number of nodes have two graphs.

Graphs are kept by what is read of the hidden states (`treespec.features`). Those that return features are
compiled when the first text reads them; the graph of a pass that nobody reads returns logits alone.

The inputs of a pass are three small tensors: tokens, (committed rows, first node to run), and the tree's
intervals (`attention_masks.topology`) with its depths. The graph computes positions, rows and mask from
them. The mask is additive and shared by all layers with the same window. For mixtures of experts and for
layers with a softcap or sinks, the compiler would make code that holds for some sizes only; a bound on
sizes (`MOST_NODES`) or other operations (`compiled_attention`) avoid this. Probabilities and draws are
computed outside the graph (`treespec.draft.choosing`).
"""

import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from pathlib import Path
from typing import Any, no_type_check

import psutil
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.features import Features
from treespec.kernels.calls import calls
from treespec.models.cache import LayerShape, TreeCache, cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.packed_weights import PackedWeights
from treespec.models.passes.compiled_attention import MaskedAttention, Seen
from treespec.models.passes.direct_call import DirectCall
from treespec.models.passes.given_states import first_states, room_for_states, state_width
from treespec.models.passes.joined_pass import JoinedPass
from treespec.models.passes.packed_layers import packed_linears
from treespec.models.passes.tree_arrays import MOST_NODES, tree_arrays
from treespec.models.quantised import stored, stored_bytes
from treespec.models.routes import OwnAttention, Route

log = logging.getLogger("treespec")

Pass = Callable[..., tuple[Tensor, ...]]

OPTIONS = {"cpp_wrapper": True, "cpp.min_chunk_size": 16384}
"""No Python between kernels, and no threads for small kernels, which end before threads have started."""

LARGEST_SHARE_OF_FREE_MEMORY = 0.25
"""Packed copies of weights are not made if they would take more than this share of the free memory."""

CHANGING_ARGUMENTS = 4
"""Number of arguments that change from pass to pass: tokens, place, tree, slots (and states of a head)."""


class CompiledPass:
    """The compiled graph of a model, for any number of caches; two graphs for some models.

    Args:
        model: a model in eval mode, on the CPU, set to the route's attention. Its weights must not change:
            packed copies would not follow.
        route: how the model learns what each row may attend to.
        layout: layout of its caches.
        packed: packed copies of weights, including those of earlier graphs; new copies are added.

    Raises:
        Unavailable: if there is no C++ compiler, or no writable folder for compiled code.
        UnsupportedModel: if the model cannot be compiled as a whole.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None],
        packed: PackedWeights,
    ) -> None:
        if (missing := missing_for_compiling()) is not None:
            raise Unavailable(missing)
        if model.device.type != "cpu":
            raise Unavailable(
                f"compiled passes are for the CPU, but the model is on {model.device}: choose "
                "passes='captured' for the target there"
            )
        self._model, self._route, self._layout = model, route, layout
        self.unpacked = too_large_to_pack(model)
        """Why weights are not packed; None if they are."""
        self._packed = packed
        self._graphs: dict[tuple[int | str, ...], tuple[DirectCall, DirectCall]] = {}
        self._joined: dict[tuple[int | str, ...], JoinedPass | None] = {}
        self.tested: set[tuple[int | str, ...]] = set()
        """The features whose graphs were compared with ordinary passes."""
        start, bytes_before = time.perf_counter(), packed.bytes
        self.compile(Features())
        self.packed_bytes = packed.bytes - bytes_before
        """Memory of the copies of weights that were added for these graphs."""
        self.seconds = time.perf_counter() - start
        """Time that compiling took, without that of graphs for features."""
        self._parameters = [
            (module._parameters, name)
            for module in model.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]
        self._compiled_weights = self._current_weights()

    def compile(self, reads: Features) -> None:
        """Compile the graphs that return these features, if that was not done before.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the model cannot be compiled as a whole.
        """
        if reads.states in self._graphs:
            return
        states = HiddenStates(self._model, reads)
        with self._weights_read(), states.watched():
            self._graphs[reads.states] = self._compiled(OPTIONS | calls(), states)

    def joined(self, states: HiddenStates) -> JoinedPass | None:
        """The pass over several texts that returns these states, compiled when it is first asked for.

        None, with the reason in the log, if the model's cannot be compiled.
        """
        if states.states not in self._joined:
            options = OPTIONS | calls()
            frozen = self.unpacked is None
            try:
                with torch.inference_mode(False), self._weights_read(), states.watched():
                    made = JoinedPass(
                        self._model, self._route, self._layout, states, options, frozen=frozen
                    )
            except (TorchDynamoException, UnsupportedModel) as problem:
                model_type, why = self._model.config.model_type, in_words(problem, "the compiler")
                log.warning("passes of several texts of %s models are eager: %s", model_type, why)
                made = None
            self._joined[states.states] = made
        return self._joined[states.states]

    @contextmanager
    def _weights_read(self) -> Iterator[None]:
        """Context in which graphs are compiled: they read packed copies of weights, if there is room."""
        layers = (
            packed_linears(self._model, self._packed) if self.unpacked is None else nullcontext()
        )
        with self._packed.shared(), layers:
            yield

    def bound(self, cache: TreeCache, states: tuple[int | str, ...]) -> tuple[Pass, Pass]:
        """The passes over one node and over several nodes in this cache, valid until its memory moves.

        Both take tokens `[T]`, place `[2]` (committed rows, first node to run), tree `[3, N]`
        (`tree_arrays`) and slots `[S]`, the indices of all rows in use; of a trained head also states
        `[MOST_NODES, W]`, of which the first T are read. They write rows to the cache and
        return logits `[T, V]`, and features `[T, F, H]` if there are `states` that were compiled for.
        """
        rows = _rows(cache, self._layout)
        one, many = self._graphs[states]
        return one.bound(rows), many.bound(rows)

    def require_weights(self) -> None:
        """Check that the graphs read the weights that the model has now.

        Raises:
            UnsupportedModel: if weights were replaced, moved or converted. Values that changed in place are
                not detected.
        """
        if self._current_weights() != self._compiled_weights:
            raise UnsupportedModel(
                "the model's weights were replaced after its passes were compiled: load the pair again"
            )

    def _current_weights(self) -> tuple[list[int], list[torch.dtype]]:
        """Addresses and dtypes of the model's weights."""
        weights = [
            part
            for owner, name in self._parameters
            for part in stored(owner[name])  # pyrefly: ignore[bad-argument-type]
        ]
        return [*map(Tensor.data_ptr, weights)], [*map(attrgetter("dtype"), weights)]

    def _compiled(
        self, options: dict[str, Any], states: HiddenStates
    ) -> tuple[DirectCall, DirectCall]:
        """The graphs for a single node and for several nodes: the same graph if possible."""
        try:
            return (self._graph(options, states, 3, 5, alone=True),) * 2
        except (TorchDynamoException, UnsupportedModel) as problem:
            # The model's code depends on the number of nodes.
            model_type = self._model.config.model_type
            why = in_words(problem, "the compiler")
            log.info("%s models are compiled as two graphs: %s", model_type, why)
            one = self._graph(options, states, 1, 6, alone=False)
            return one, self._graph(options, states, 3, 5, alone=False)

    def _graph(
        self,
        options: dict[str, Any],
        states: HiddenStates,
        nodes: int,
        tree_nodes: int,
        alone: bool,
    ) -> DirectCall:
        """Compile one graph. Its two examples differ in every size that varies, and only in those."""
        example = self._example(nodes, tree_nodes, committed=13, capacity=320)
        other = self._example(nodes + (nodes > 1), tree_nodes + 2, committed=29, capacity=448)
        changing = CHANGING_ARGUMENTS + (state_width(self._model) > 0)
        fixed = len(example) - changing
        return DirectCall(
            self._pass(fixed // 2, states),
            example,
            other,
            fixed=fixed,
            below=[((3, 0), (changing, 2))],  # fewer slots than rows of any layer
            at_most={(0, 0): MOST_NODES},
            alone=(0, 0) if alone else None,
            options=options,
            frozen=self.unpacked is None,
        )

    @torch.inference_mode()
    def _example(self, nodes: int, tree_nodes: int, committed: int, capacity: int) -> list[Tensor]:
        """Arguments of a pass over the last `nodes` nodes of a chain of `tree_nodes`."""
        cache = TreeCache(self._layout)
        cache.begin(0, capacity)
        tokens = torch.ones(nodes, dtype=torch.long)
        tree = tree_arrays(tuple(range(-1, tree_nodes - 1)))
        slots = torch.arange(committed + tree_nodes)
        return [
            tokens,
            torch.tensor([committed, tree_nodes - nodes]),
            tree,
            slots,
            *room_for_states(self._model),
            *_rows(cache, self._layout),
        ]

    def _pass(self, layers: int, states: HiddenStates) -> Pass:
        """The function that is compiled."""
        model, route, layout = self._model, self._route, self._layout
        stored = [i for i, shape in enumerate(layout) if shape is not None]
        taken_as = cache_argument(model)
        width = state_width(model)

        def tree_pass(
            tokens: Tensor, place: Tensor, tree: Tensor, slots: Tensor, *rest: Tensor
        ) -> tuple[Tensor, ...]:
            count, used = tokens.shape[0], slots.shape[0]
            rows = rest[1:] if width else rest
            torch._check(count >= 1)
            torch._check(count <= MOST_NODES)
            torch._check(used < rows[0].shape[2])
            length, first = place[0], place[1]
            nodes = first + torch.arange(count, device=tokens.device)
            seen = Seen(tree, nodes, slots - length, length)
            cache_rows: list[tuple[Tensor, Tensor] | None] = [None] * len(layout)
            for k, i in enumerate(stored):
                cache_rows[i] = (rows[k], rows[layers + k])
            cache = Cache(layers=[_Rows(pair, length + nodes, used) for pair in cache_rows])
            attention: dict[str, Any]
            if isinstance(route, OwnAttention):
                attention = {"treespec_pass": MaskedAttention(seen)}
            else:
                attention = {"attention_mask": seen.bias(None, model.dtype)[None, None]}
            output = model(
                input_ids=tokens[None],
                position_ids=(tree[2][nodes].long() + length)[None],
                **{taken_as: cache},
                use_cache=True,
                **({"states": first_states(rest[0], count)} if width else {}),
                **attention,
            )
            features = states.taken()
            return (output.logits[0],) if features is None else (output.logits[0], features)

        return tree_pass


def too_large_to_pack(model: PreTrainedModel) -> str | None:
    """Why no packed copies of a model's weights are made; None if there is room for them."""
    copies = sum({id(p): stored_bytes(p) for p in model.parameters()}.values())
    free = psutil.virtual_memory().available
    if copies <= LARGEST_SHARE_OF_FREE_MEMORY * free:
        return None
    return (
        f"packed copies of its weights would take {copies / 2**20:,.0f} MiB, more than "
        f"{LARGEST_SHARE_OF_FREE_MEMORY:.0%} of the {free / 2**20:,.0f} MiB of free memory"
    )


def code_folder() -> Path:
    """The folder to which the compiler writes code, and where it finds code of earlier processes."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())


def missing_for_compiling() -> str | None:
    """Why nothing can be compiled here; None if compiling can be attempted."""
    compiler = next(iter(shlex.split(os.environ.get("CXX", ""))), "g++")
    if shutil.which(compiler) is None:
        return (
            f"compiled passes need a C++ compiler, but {compiler!r} is not found: install one (the package "
            "g++ on most systems), or name one in the environment variable CXX"
        )
    folder = code_folder()
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not (os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)):
        return (
            f"compiled passes are written to {str(folder)!r}, which is not writable: name another "
            "folder in the environment variable TORCHINDUCTOR_CACHE_DIR"
        )
    return None


@no_type_check
class _Rows(CacheLayerMixin):
    """The cache of one layer inside a graph: writes rows to slots, and returns all rows in use."""

    is_sliding = False

    def __init__(self, rows: tuple[Tensor, Tensor] | None, slots: Tensor, used: int) -> None:
        super().__init__()
        if rows is not None:
            self.keys, self.values = rows
        self.is_initialized = True
        self._slots, self._used = slots, used

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the rows are allocated."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        keys.index_copy_(2, self._slots, key_states)
        values.index_copy_(2, self._slots, value_states)
        return keys[:, :, : self._used], values[:, :, : self._used]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._used, 0

    def get_seq_length(self) -> int:
        return self._used - self._slots.shape[0]

    def get_max_length(self) -> int:
        return -1


def _rows(cache: TreeCache, layout: Sequence[LayerShape | None]) -> list[Tensor]:
    """Keys of all layers that store rows in this layout, then their values."""
    layers: list[Any] = [*cache.layers]
    storing = [layer for layer, shape in zip(layers, layout, strict=True) if shape is not None]
    return [layer.keys for layer in storing] + [layer.values for layer in storing]
