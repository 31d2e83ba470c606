"""Choose the dtype in which this machine decodes fastest: `models.dtype: fastest`.

Which dtype wins depends on the processor and on how many nodes a pass verifies, so it is measured: passes
of the target and of the drafts over 1 to 64 nodes, in each dtype, in turns. Where passes are compiled, only
their matrix products are timed: they take most of a pass, and need no compiling. A method's seconds per
token are the passes of its drafts plus the pass that verifies its tree, over the tokens per step that the
embedded draft gives on code. These hardly depend on the dtype, so they need not be exact. Nothing depends
on the length of the run.

The choice is kept beside the machine code of compiled passes, so that runs, sweeps, `treespec trace` and
`treespec profile` of the same models and methods use the same dtype.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from treespec.draft.growth import nodes_of
from treespec.errors import CannotEnlarge, TokenizerMismatch, TreespecError, Unavailable
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.model_draft import all_of, label_of_draft
from treespec.experiments.config.schema import ModelsConfig, TreeMethod
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.machine_load import BUSY_RUN_PERCENT, LoadWatch
from treespec.experiments.run import notes
from treespec.experiments.run.models import part_name
from treespec.experiments.run.notes import keep, kept
from treespec.experiments.run.progress import Reporter
from treespec.models.quantised import quantisation_of
from treespec.tree.shape import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.transformers_model import TransformersModel

DTYPES = ("float32", "bfloat16")
"""The first is taken unless the other is clearly faster: it rounds less."""

CLEAR = 1.02
"""Ratio of two times from which one counts as longer."""

NODES = (1, 2, 4, 8, 16, 32, 64)
"""Nodes of the timed passes; times between are interpolated."""

ROUNDS, LEAST_S, TRIES = 5, 1.5, 3
"""Rounds of timing, how many seconds they take at least, and how often they are repeated beside a load."""

PREFIX = 64
"""Cached tokens before a timed pass."""

BY_MODEL, BY_TEXT = (0.63, 0.1, 0.06, 0.04), (0.3, 0.1, 0.06, 0.03)
"""How often the k-th child of a node is accepted: drafted by the embedded draft model, or by a source
without a model (`experiments/configs/merged.yaml`)."""

PLAIN = "plain decoding"

Times = Mapping[str, Mapping[int, float]]
"""Seconds of a pass by model and number of nodes."""


@dataclass(frozen=True)
class Step:
    """What a method does in a step, and the tokens that it is expected to keep.

    Args:
        method: its name.
        verified: nodes that the target verifies.
        drafted: the model and the nodes of each draft pass.
        tokens: expected tokens per step.
    """

    method: str
    verified: int
    drafted: tuple[tuple[str, int], ...]
    tokens: float


@dataclass(frozen=True)
class Choice:
    """The chosen dtype.

    Args:
        dtype: its name.
        why: the reason, as a sentence without a full stop.
        plain_dtype: the dtype in which plain decoding by itself is clearly faster; None if there is none.
        plain_ratio: how many times as fast it is there.
    """

    dtype: str
    why: str
    plain_dtype: str | None = None
    plain_ratio: float = 1.0


def decide(steps: Sequence[Step], times: Mapping[str, Times]) -> Choice:
    """Choose the dtype whose best method has the fewest predicted seconds per token.

    Example:
        >>> chain = Step("chain 2", 3, (("draft", 1),) * 2, 2.0)
        >>> slow = {"target": {1: 5.0, 3: 9.0}, "draft": {1: 0.5}}
        >>> fast = {"target": {1: 6.0, 3: 6.2}, "draft": {1: 0.5}}
        >>> decide([chain], {"float32": fast, "bfloat16": slow}).dtype
        'float32'
    """
    plain = Step(PLAIN, 1, (), 1.0)
    best = {
        dtype: min((_seconds_per_token(step, of_dtype), step.method) for step in [plain, *steps])
        for dtype, of_dtype in times.items()
    }
    dtype, *others = sorted(best, key=lambda name: best[name])
    if others and best[others[0]][0] <= CLEAR * best[dtype][0]:
        dtype, *others = sorted(best, key=DTYPES.index)
    if not others:
        return Choice(dtype, f"only {dtype} can be run here")
    other = others[0]
    methods = "; ".join(dict.fromkeys((best[dtype][1], best[other][1])))
    why = (
        f"a token takes {best[dtype][0] / best[other][0]:.2f} of the time that it takes in {other}, each "
        f"by its fastest method ({methods})"
    )
    ratio = _seconds_per_token(plain, times[dtype]) / _seconds_per_token(plain, times[other])
    return Choice(dtype, why, other, ratio) if ratio > CLEAR else Choice(dtype, why)


def _seconds_per_token(step: Step, times: Times) -> float:
    passes = [("target", step.verified), *step.drafted]
    return sum(_seconds(times[model], nodes) for model, nodes in passes) / step.tokens


def _seconds(curve: Mapping[int, float], nodes: int) -> float:
    """Seconds of a pass over these nodes, interpolated, and beyond the last in proportion."""
    last = max(curve)
    at = float(np.interp(min(nodes, last), list(curve), list(curve.values())))
    return at * max(1.0, nodes / last)


def step_of(method: BuiltMethod, layers: int) -> Step | None:
    """The step of a method of our own loop; None for methods of transformers, whose passes stay eager."""
    if not isinstance(method.config, TreeMethod):
        return None
    drafts = ["draft" if name is None else name for name in method.draft_models]
    for source in all_of(method.config.draft):
        if isinstance(source, PartOfTarget):
            with suppress(TreespecError):  # refused by name when the drafter is made
                drafts.append(part_name(source.skipped(layers), layers))
        if isinstance(source, TrainedHead) and source.runs_passes:
            drafts.append(label_of_draft(source))
    nodes, rates = nodes_of(method.tree), BY_MODEL if drafts else BY_TEXT
    if isinstance(method.tree, TreeShape):
        shape = method.tree
        kept = [1.0]
        for node in range(1, shape.size):
            rank = shape.ranks[node]
            rate = rates[rank] if rank < len(rates) else rates[-1] / 2
            kept.append(kept[shape.parents[node]] * rate)
        levels = [0] * shape.depth
        for node in shape.internal:
            levels[shape.depths[node]] += 1
        tokens = sum(kept)
    else:
        levels = [max(1, (nodes - 1) // max(1, method.max_depth))] * method.max_depth
        tokens = sum(sum(rates[:2]) ** depth for depth in range(method.max_depth + 1))
    verified = getattr(method.tree, "size", None) or nodes
    return Step(method.name, verified, tuple(product(drafts, levels)), tokens)


def choose(
    config: ModelsConfig,
    methods: Iterable[BuiltMethod],
    load: Callable[[ModelsConfig], "Pair"],
    models_of: Callable[["Pair"], Mapping[str, "TransformersModel"]],
    reporter: Reporter,
) -> tuple[Choice, "Pair | None"]:
    """Choose the dtype of a config whose dtype is `fastest`; also the pair in it, if it had to be loaded.

    Raises:
        ConfigError: if the machine is too busy to tell.
        LoadError, UnsupportedModel: if the models cannot be loaded in any dtype.

    `load` gives the pair with all drafts and eager passes, `models_of` the models of a pair by the names
    that steps use.
    """
    methods = list(methods)

    if config.device != "cpu" or config.device_map is not None or config.tensor_parallel:
        why = f"it is not measured for models on {config.device} or on several devices"
        return Choice("bfloat16", why), None
    note = _note(config, methods)
    with suppress(TypeError):  # nothing was kept, or something else
        return Choice(**kept(note)), None
    pairs: dict[str, Pair] = {}
    refused: dict[str, TreespecError] = {}
    for dtype in reversed(DTYPES):  # the smaller numbers first
        if any(map(_too_large_in_float32, pairs.values())):
            refused[dtype] = Unavailable("the models would take more than half of the memory")
            break
        with reporter.task(f"loading the models in {dtype}"):
            try:
                pairs[dtype] = load(config.model_copy(update={"dtype": dtype}))
            except (TokenizerMismatch, CannotEnlarge):
                raise
            except TreespecError as error:
                refused[dtype] = error
    pairs = {dtype: pairs[dtype] for dtype in DTYPES if dtype in pairs}
    for dtype, pair in pairs.items():
        given = str(pair.target.model.dtype).removeprefix("torch.")
        if given != dtype:  # `load` gives models that were loaded before
            return Choice(given, "the models were loaded in it"), pair
    if not pairs:
        raise next(iter(refused.values()))
    if refused:
        why = "; ".join(f"{dtype} cannot be used: {error}" for dtype, error in refused.items())
        choice = Choice(next(iter(pairs)), why)
        return choice, pairs[choice.dtype]
    layers = next(iter(pairs.values())).target.layer_count
    steps = [step for method in methods if (step := step_of(method, layers)) is not None]
    models = {dtype: models_of(pair) for dtype, pair in pairs.items()}
    known = {"target", *next(iter(models.values()))}
    steps = [step for step in steps if {name for name, _ in step.drafted} <= known]
    with reporter.task("timing passes in " + " and ".join(pairs)):
        choice = decide(steps, _quiet_times(models, config))
    keep(note, asdict(choice))
    return choice, pairs[choice.dtype]


def forget(config: ModelsConfig, methods: Iterable[BuiltMethod]) -> None:
    """Forget an earlier choice for these models and methods, so that it is made again."""
    with suppress(OSError):
        _note(config, methods).unlink(missing_ok=True)


def _too_large_in_float32(pair: "Pair") -> bool:
    """Judged by the machine's memory, not by what is free, so that the choice does not change."""
    size = sum(4 * p.numel() for model in pair.models for p in model.model.parameters())
    return size > psutil.virtual_memory().total / 2


def _quiet_times(
    models: Mapping[str, Mapping[str, "TransformersModel"]], config: ModelsConfig
) -> Mapping[str, Times]:
    """Times of passes by dtype, measured while other processes used little of the CPU."""
    runs: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for name in dict.fromkeys(name for of_dtype in models.values() for name in of_dtype):
        asked = config.passes if name == "target" else config.draft_passes
        versions = {dtype: of_dtype[name] for dtype, of_dtype in models.items() if name in of_dtype}
        products = all(_will_be_compiled(model, asked) for model in versions.values())
        for dtype, model in versions.items():
            timed = _products(model) if products else _passes(model)
            runs |= {(dtype, name, nodes): run for nodes, run in timed}
    # Dtypes take turns at each size.
    order = sorted(runs, key=lambda key: key[1:])
    loads = []
    for _ in range(TRIES):
        watch, begin = LoadWatch(), time.perf_counter()
        seconds: dict[Any, list[float]] = {key: [] for key in order}
        for key in order:
            runs[key]()
        while len(seconds[order[0]]) < ROUNDS or time.perf_counter() - begin < LEAST_S:
            for key in order:
                start = time.perf_counter()
                runs[key]()
                seconds[key].append(time.perf_counter() - start)
        busy = watch.busy_percent()
        if busy is None or busy <= BUSY_RUN_PERCENT:
            times: dict[str, dict[str, dict[int, float]]] = {}
            for dtype, name, nodes in order:
                middle = statistics.median(seconds[dtype, name, nodes])
                times.setdefault(dtype, {}).setdefault(name, {})[nodes] = middle
            return times
        loads.append(busy)
    raise ConfigError(
        f"models.dtype = fastest: other processes used {min(loads):.0f} % of the CPU or more in each of "
        f"{TRIES} measurements, so the faster dtype cannot be told: try again on a quiet machine, or name "
        "it (models.dtype=float32 or models.dtype=bfloat16)"
    )


def _will_be_compiled(model: "TransformersModel", asked: str | None) -> bool:
    """Whether a model's passes will be compiled, by products that can be timed before."""
    from treespec.models.passes.choosing_passes import COMPILED_ATTENTION
    from treespec.models.passes.compiled_pass import missing_for_compiling, too_large_to_pack
    from treespec.models.passes.packed_layers import linear_work

    if (
        model.needs_source
        or quantisation_of(model.model) is not None
        or model.attention not in COMPILED_ATTENTION
        or asked not in ("compiled", "auto")
        or missing_for_compiling()
        or too_large_to_pack(model.model)
    ):
        return False
    try:
        linear_work(model.model)(1)()
    except Unavailable:  # the kernel cannot be compiled
        return False
    return True


def _products(model: "TransformersModel") -> Iterable[tuple[int, Callable[[], Any]]]:
    """The matrix products of a pass, for each number of nodes."""
    from treespec.models.passes.packed_layers import linear_work

    work = linear_work(model.model)
    return [(nodes, work(nodes)) for nodes in NODES]


def _passes(model: "TransformersModel") -> Iterable[tuple[int, Callable[[], Any]]]:
    """Eager passes, for each number of nodes."""
    fresh = model.condition(torch.arange(1)) if model.needs_source else model.fresh()
    sizes = [nodes for nodes in NODES if nodes < model.max_length]
    fresh.prefill(torch.arange(min(PREFIX, model.max_length - sizes[-1])) % model.vocab_size)

    def tree_pass(nodes: int) -> Callable[[], None]:
        tokens, parents = torch.arange(nodes) % model.vocab_size, (-1, *[0] * (nodes - 1))

        def run() -> None:
            fresh.run(tokens, parents)
            fresh.keep(())

        return run

    return [(nodes, tree_pass(nodes)) for nodes in sizes]


def _folder(name: str | None) -> list[str] | None:
    """The place and the config of a model in a folder, so that another model there is another model."""
    file = Path(name or "", "config.json")
    if name is None or not file.is_file():
        return None
    return [str(file.resolve()), file.read_text(encoding="utf-8", errors="replace")]


def _note(config: ModelsConfig, methods: Iterable[BuiltMethod]) -> Path:
    """The file of the choice for these models and methods on this machine."""
    from treespec.experiments.records.manifest import environment
    from treespec.kernels import build
    from treespec.models.passes.compiled_pass import missing_for_compiling

    about = environment()
    depends = [
        config.model_dump(mode="json"),
        [method.config.model_dump(mode="json") for method in methods],
        about["versions"],
        missing_for_compiling(),
        build.source(),
        about["treespec_version"],
        [_folder(name) for name in (config.target, config.draft)],
    ]
    return notes.note("dtype", depends)
