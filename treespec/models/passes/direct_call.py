"""A function compiled by torch and called without checking its guards at every call.

The result of `torch.compile` checks its guards at each call, reads the sizes of all tensors and goes
through several wrappers: 0.2 ms for the pass of a small model that itself takes 0.3 ms. A caller whose
arguments are always of the same kind can avoid this cost. So the function is compiled by
`torch.compile(fullgraph=True)`, the generated code is captured at its first call, and is called directly
from then on.

This code takes a flat list of tensors and integers (sizes, strides). Each tensor is matched with an
argument by identity. Each integer is identified by comparing two lists of example arguments whose varying
sizes differ; if its meaning is ambiguous, the function is refused.

Since the guards are not checked again, they are examined once: the guards on sizes must hold for all sizes
from 2 on that the caller promises (`below`, `at_most`), or the function is refused. One size may also be 1
(`alone`): the compiler is told nothing about it, so that the generated code does not depend on it. Where
torch's own code needs to decide, it silently assumes that this size is not 1; so whoever compiles has to
test size 1.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.passes.compiled_code import without_addresses

Varying = tuple[int, str, int]
"""Source of a varying integer: argument number; "size", "stride" or "offset"; dimension."""


class DirectCall:
    """A compiled function of tensors that returns a tuple of tensors.

    `function`: a function whose control flow depends on its arguments' shapes only. `example`: arguments to
    compile for. Dimensions that vary together have equal sizes, all others different ones. `other`:
    arguments in which everything that varies has another size. They are not run. `fixed`: number of last
    arguments that stay the same from call to call (`bound`). `below`: pairs of (argument, dimension); the
    first size is always smaller than the second. `frozen`: whether weights are constants: copied into the
    order in which they are read, and never read again from the model.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        example: Sequence[Tensor],
        other: Sequence[Tensor],
        *,
        fixed: int,
        below: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
        at_most: Mapping[tuple[int, int], int] | None = None,
        alone: tuple[int, int] | None = None,
        options: dict[str, Any],
        frozen: bool,
    ) -> None:
        inductor: Any = torch._inductor.config
        for name in ("size", "scalar"):
            if not getattr(inductor, f"{name}_asserts"):
                raise Unavailable(
                    "compiled passes need the checks of strides and sizes that are switched off by "
                    f"TORCHINDUCTOR_{name.upper()}_ASSERTS=0: remove it from the environment"
                )
        self._given: tuple[Any, ...] | None = None
        self._narrow = None
        # Functions that share a code object share compiled code, so each gets a code object of its own.
        code: Any = getattr(function, "__code__")  # noqa: B009
        setattr(function, "__code__", code.replace(co_name=f"{code.co_name}_{id(self)}"))  # noqa: B010

        def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            from torch._inductor.compile_fx import compile_fx

            with without_addresses():
                self._code: Any = compile_fx(graph, inputs, config_patches=options)
            # The guard is refused later: torch would wrap an error raised here.
            self._narrow = _narrow_guard(example, other, below, at_most or {}, alone)
            return self._first_call

        for tensor, resized in zip(example, other, strict=True):
            for dim, (size, other_size) in enumerate(zip(tensor.shape, resized.shape, strict=True)):
                if size == other_size:
                    torch._dynamo.mark_static(tensor, dim)
        if alone is not None:
            number, dim = alone
            hint = example[number].shape[dim]
            torch._dynamo.decorators.mark_unbacked(example[number], dim, hint_override=hint)
        # The model's numbers are constants; otherwise torch first makes them inputs and then starts over.
        dynamo: Any = torch._dynamo.config
        with (
            torch.inference_mode(),
            inductor.patch(freezing=frozen),
            dynamo.patch(specialize_float=True, specialize_int=True),
        ):
            run = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
            results = run(*example)
        if self._narrow is not None:
            raise UnsupportedModel(
                f"its compiled pass would be right for some sizes only, those with {self._narrow}"
            )
        self._indices = tuple(
            next(i for i, tensor in enumerate(self._results) if tensor is result)
            for result in results
        )
        self._first_fixed = len(example) - fixed
        assert self._given is not None
        self._sources = [_source(value, example, other) for value in self._given]
        # Do not hold on to the examples.
        self._constants = [
            value if source is None else None
            for value, source in zip(self._given, self._sources, strict=True)
        ]
        self._given, self._results = None, ()

    def _first_call(self, *inputs: Any) -> Any:
        """Run the compiled code, and remember its inputs and results."""
        self._given, self._results = inputs, self._code(*inputs)
        return self._results

    def bound(
        self, fixed: Sequence[Shaped[Tensor, "..."]]
    ) -> Callable[..., tuple[Shaped[Tensor, "..."], ...]]:
        """The function of its first arguments, with these as its last arguments."""
        begin = self._first_fixed
        inputs, changing = list(self._constants), []
        for i, source in enumerate(self._sources):
            if source is None:
                continue
            if source[0] < begin:
                changing.append((i, *source))
            else:
                inputs[i] = _value(fixed[source[0] - begin], source)
        tensors = [(i, number) for i, number, what, _ in changing if what == "tensor"]
        sizes = [(i, number, dim) for i, number, what, dim in changing if what == "size"]
        layouts = [entry for entry in changing if entry[2] not in ("tensor", "size")]
        code, indices = self._code, self._indices

        def call(*arguments: Tensor) -> tuple[Tensor, ...]:
            for i, number in tensors:
                inputs[i] = arguments[number]
            for i, number, dim in sizes:
                inputs[i] = arguments[number].shape[dim]
            for i, *source in layouts:
                inputs[i] = _value(arguments[source[0]], source)
            results = code(*inputs)
            return tuple([results[i] for i in indices])

        return call


def _narrow_guard(
    example: Sequence[Tensor],
    other: Sequence[Tensor],
    below: Sequence[tuple[tuple[int, int], tuple[int, int]]],
    at_most: Mapping[tuple[int, int], int],
    alone: tuple[int, int] | None,
) -> str | None:
    """Find a guard of the code being compiled that does not hold for all sizes; None if there is none.

    A guard is a relation between symbols: sizes and strides of the arguments, and numbers that the function
    gets from elsewhere, which are constant. Each size is written as 2 (or 1, for the size that may be 1)
    plus a nonnegative number, a size that must exceed another one as that one plus 1 plus a nonnegative
    number, and strides and offsets as products of sizes. A guard that always holds then simplifies to True.
    Sizes that are the same in `other` are constants, even if a varying size happens to have the same value.
    """
    import sympy
    from torch._dynamo.source import TensorProperty, TensorPropertySource
    from torch._guards import TracingContext

    mode = TracingContext.get().fake_mode
    assert mode is not None
    shapes: Any = mode.shape_env
    assert shapes is not None
    values: dict[Any, Any] = {
        s: int(v) for s, v in shapes.backed_var_to_val.items() if s.is_integer
    }
    known = {s: v for s, v in shapes.backed_var_to_val.items() if s not in values}
    symbol_of_size: dict[int, Any] = {}
    strides: dict[Any, int] = {}
    for symbol, value in values.items():
        source = shapes.var_to_sources[symbol][0]
        if not isinstance(source, TensorPropertySource):
            known[symbol] = value
        elif source.prop is TensorProperty.SIZE:
            symbol_of_size[value] = symbol
        else:
            strides[symbol] = value
    free: dict[int, Any] = {}
    largest = {example[number].shape[dim]: size for (number, dim), size in at_most.items()}
    bounds: dict[Any, int] = {}
    single = 0 if alone is None else example[alone[0]].shape[alone[1]]
    for value in {*symbol_of_size, single} - {0}:
        least = 1 if value == single else 2
        more = sympy.Symbol(f"more_{value}", integer=True, nonnegative=True)
        free[value] = sympy.Add(more, sympy.Integer(least))
        if value in largest:
            bounds[more] = largest[value] - least
    for (lesser, lesser_dim), (greater, greater_dim) in below:
        small, large = example[lesser].shape[lesser_dim], example[greater].shape[greater_dim]
        more = sympy.Symbol(f"beyond_{small}_{large}", integer=True, nonnegative=True)
        free[large] = free.get(small, small) + 1 + more
    constants = dict(known)
    known |= {symbol: free[value] for value, symbol in symbol_of_size.items()}
    known |= dict.fromkeys(shapes.unbacked_inputs, free.get(single))
    for symbol, value in strides.items():
        known[symbol] = _by_sizes(value, example, other, free)
    # Assertions on the size that may be 1 are checked at run time, like some on other numbers.
    assertions = [a.expr for group in shapes.deferred_runtime_asserts.values() for a in group]
    assertions = [expr for expr in assertions if expr.free_symbols <= set(known)]
    for guard in (*(guard.expr for guard in shapes.guards), *assertions):
        relation = guard.subs(known)
        if relation in (True, sympy.true) or sympy.simplify(relation) is sympy.true:
            continue
        if not _holds_within(relation, bounds):
            return str(guard.subs(constants))
    return None


def _holds_within(relation: Any, bounds: Mapping[Any, int]) -> bool:
    """Whether a linear inequality of one bounded number holds at both ends, and so in between."""
    import sympy

    inequality = isinstance(relation, sympy.StrictLessThan | sympy.LessThan)
    inequality = inequality or isinstance(relation, sympy.StrictGreaterThan | sympy.GreaterThan)
    if not inequality or len(relation.free_symbols) != 1:
        return False
    if not relation.free_symbols <= set(bounds):
        return False
    (more,) = relation.free_symbols
    left: Any = relation.lhs
    linear = (left - relation.rhs).as_poly(more)
    if linear is None or linear.degree() > 1:
        return False
    return all(relation.subs(more, end) is sympy.true for end in (0, bounds[more]))


def _by_sizes(
    stride: int, example: Sequence[Tensor], other: Sequence[Tensor], free: Mapping[int, Any]
) -> Any:
    """A stride or offset as a product of sizes; arguments are whole tensors, or equal parts of one."""
    for tensor, resized in zip(example, other, strict=True):
        if not tensor.is_contiguous():
            continue
        sizes = [
            free.get(size, size) if size != other_size else size
            for size, other_size in zip(tensor.shape, resized.shape, strict=True)
        ]
        if stride in tensor.stride():
            return prod(sizes[tensor.stride().index(stride) + 1 :])
        if stride == tensor.storage_offset() and stride % tensor.numel() == 0:
            return stride // tensor.numel() * prod(sizes)
    return stride


def _source(
    value: Any, example: Sequence[Tensor], other: Sequence[Tensor]
) -> tuple[int, str, int] | None:
    """Where an input of the compiled code comes from; None for a constant."""
    if isinstance(value, Tensor):
        number = next((i for i, tensor in enumerate(example) if tensor is value), None)
        return None if number is None else (number, "tensor", 0)
    candidates: dict[int, Varying] = {}
    for i, (tensor, resized) in enumerate(zip(example, other, strict=True)):
        for source in _integers_of(i, tensor.ndim):
            here, there = _value(tensor, source), _value(resized, source)
            if here != there and here == value:
                candidates.setdefault(there, source)
    if len(candidates) != 1:
        raise UnsupportedModel(
            "the compiled pass takes an integer whose meaning cannot be identified"
        )
    return next(iter(candidates.values()))


def _integers_of(number: int, dims: int) -> list[Varying]:
    """All integers that describe an argument of `dims` dimensions."""
    integers = [(number, what, dim) for what in ("size", "stride") for dim in range(dims)]
    return [*integers, (number, "offset", 0)]


def _value(tensor: Tensor, source: Sequence[Any]) -> Any:
    """The tensor itself, or the integer that a source names."""
    _, what, dim = source
    if what == "tensor":
        return tensor
    if what == "size":
        return tensor.shape[dim]
    return tensor.stride(dim) if what == "stride" else tensor.storage_offset()
