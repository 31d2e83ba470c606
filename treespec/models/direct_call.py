"""A function compiled by torch, and called without asking before every call whether it still fits.

What `torch.compile` gives checks its guards at each call, takes the sizes of all tensors and goes through
several wrappers: 0.2 ms for the pass of a small model that takes 0.3 ms. Whoever calls with arguments
of one kind only need not pay that. So the function is compiled by `torch.compile(fullgraph=True)`, the code
that it would run is caught at its first call, and is called directly from then on.

That code takes a flat row of tensors and integers (sizes, strides). Which argument each tensor is, one sees
by identity; what each integer is, by comparing two rows of example arguments whose varying sizes differ:
an integer whose meaning two candidates could have is never guessed, but refused.

Nobody asks the guards again, so they are read once: those on sizes must hold for all sizes of 2 and more
that are as the caller promises (`below`, `at_most`), or the function is refused. One size may be 1 too
(`alone`): of it the compiler is told nothing, so that what it makes asks nothing of it. Where code of
torch's own could not do without an answer it takes the size for another than 1, and tells nobody: who
compiles has to try one (`treespec.models.passes`).
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.compiled_code import without_addresses

__all__ = ["DirectCall"]

Varying = tuple[int, str, int]
"""An integer that varies: of which argument, "size", "stride" or "offset", in which dimension."""


class DirectCall:
    """A compiled function of tensors, which gives one tensor.

    Args:
        function: all its control flow must be known from its arguments' shapes.
        example: arguments to compile for. Dimensions that vary together have one size, and others another.
        other: arguments in which everything that varies has another size. They are not run.
        fixed: how many of the last arguments stay the same from call to call (`bound`).
        below: pairs of (argument, dimension), of which the first will always be smaller than the second.
        at_most: the largest size that an (argument, dimension) will ever have.
        alone: the (argument, dimension) whose size may be 1 too.
        options: of the compiler.
        frozen: the weights are constants: copied into the order in which they are read, and not looked at
            again.

    Raises:
        UnsupportedModel: if it cannot be seen what the compiled code wants to be given, or if it holds for
            some sizes only.
        Unavailable: if the compiler was told not to check strides or sizes.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
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
        self._place, self._narrow = 0, None
        # Functions of one code share what was compiled: each gets a code of its own.
        code: Any = getattr(function, "__code__")  # noqa: B009
        setattr(function, "__code__", code.replace(co_name=f"{code.co_name}_{id(self)}"))  # noqa: B010

        def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            from torch._inductor.compile_fx import compile_fx

            with without_addresses():
                self._code: Any = compile_fx(graph, inputs, config_patches=options)
            # What is raised here is wrapped by torch.
            self._narrow = _narrow_guard(example, other, below, at_most or {}, alone)
            return self._first

        for one, two in zip(example, other, strict=True):
            for dim, (size, elsewhere) in enumerate(zip(one.shape, two.shape, strict=True)):
                if size == elsewhere:
                    torch._dynamo.mark_static(one, dim)
        if alone is not None:
            number, dim = alone
            usual = example[number].shape[dim]
            torch._dynamo.decorators.mark_unbacked(example[number], dim, hint_override=usual)
        # Numbers of the model are constants: torch makes them inputs first, and then begins anew.
        dynamo: Any = torch._dynamo.config
        with (
            torch.inference_mode(),
            inductor.patch(freezing=frozen),
            dynamo.patch(specialize_float=True),
        ):
            run = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
            result = run(*example)
        if self._narrow is not None:
            raise UnsupportedModel(
                f"its compiled pass would be right for some sizes only, those with {self._narrow}"
            )
        self._place = next(i for i, one in enumerate(self._results) if one is result)
        self._first_fixed = len(example) - fixed
        assert self._given is not None
        self._read = [_reading(one, example, other) for one in self._given]
        # Nothing of the examples is kept.
        self._constants = [
            one if read is None else None for one, read in zip(self._given, self._read, strict=True)
        ]
        self._given, self._results = None, ()

    def _first(self, *given: Any) -> Any:
        self._given, self._results = given, self._code(*given)
        return self._results

    def bound(self, fixed: Sequence[Shaped[Tensor, "..."]]) -> Callable[..., Shaped[Tensor, "..."]]:
        """The function of its first arguments; the last ones are these."""
        begin = self._first_fixed
        row, changing = list(self._constants), []
        for i, read in enumerate(self._read):
            if read is None:
                continue
            if read[0] < begin:
                changing.append((i, *read))
            else:
                row[i] = _value(fixed[read[0] - begin], read)
        tensors = [(i, number) for i, number, what, _ in changing if what == "tensor"]
        sizes = [(i, number, dim) for i, number, what, dim in changing if what == "size"]
        others = [one for one in changing if one[2] not in ("tensor", "size")]
        code, place = self._code, self._place

        def call(*arguments: Tensor) -> Tensor:
            for i, number in tensors:
                row[i] = arguments[number]
            for i, number, dim in sizes:
                row[i] = arguments[number].shape[dim]
            for i, *read in others:
                row[i] = _value(arguments[read[0]], read)
            return code(*row)[place]

        return call


def _narrow_guard(
    example: Sequence[Tensor],
    other: Sequence[Tensor],
    below: Sequence[tuple[tuple[int, int], tuple[int, int]]],
    at_most: Mapping[tuple[int, int], int],
    alone: tuple[int, int] | None,
) -> str | None:
    """A guard of what is being compiled that does not hold for all sizes; None if there is none.

    A guard is a relation of symbols: of sizes and strides of the arguments, and of numbers that the
    function has from elsewhere, which stay as they are. Sizes are written as 2 (the one that may be 1: as
    1) and a number that is not negative, those that have others below them as one more than these, and
    strides and offsets as products of sizes: a guard that always holds is then simplified to a truth.
    Sizes that are the same in `other` are numbers, also where one that varies happens to have the same
    value.
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
    of_size: dict[int, Any] = {}
    strides: dict[Any, int] = {}
    for symbol, value in values.items():
        source = shapes.var_to_sources[symbol][0]
        if not isinstance(source, TensorPropertySource):
            known[symbol] = value
        elif source.prop is TensorProperty.SIZE:
            of_size[value] = symbol
        else:
            strides[symbol] = value
    free: dict[int, Any] = {}
    bounds = {example[one].shape[dim]: most for (one, dim), most in at_most.items()}
    most_more: dict[Any, int] = {}
    single = 0 if alone is None else example[alone[0]].shape[alone[1]]
    for value in {*of_size, single} - {0}:
        least = 1 if value == single else 2
        more = sympy.Symbol(f"more_{value}", integer=True, nonnegative=True)
        free[value] = sympy.Add(more, sympy.Integer(least))
        if value in bounds:
            most_more[more] = bounds[value] - least
    for (lesser, dim), (greater, elsewhere) in below:
        small, large = example[lesser].shape[dim], example[greater].shape[elsewhere]
        more = sympy.Symbol(f"beyond_{small}_{large}", integer=True, nonnegative=True)
        free[large] = free.get(small, small) + 1 + more
    constants = dict(known)
    known |= {symbol: free[value] for value, symbol in of_size.items()}
    known |= dict.fromkeys(shapes.unbacked_inputs, free.get(single))
    for symbol, value in strides.items():
        known[symbol] = _contiguous(value, example, other, free)
    # What is asked of the size that may be 1 is asked while the code runs; so is more, of other numbers.
    asked = [one.expr for some in shapes.deferred_runtime_asserts.values() for one in some]
    asked = [one for one in asked if one.free_symbols <= set(known)]
    for guard in (*(guard.expr for guard in shapes.guards), *asked):
        told = guard.subs(known)
        if told in (True, sympy.true) or sympy.simplify(told) is sympy.true:
            continue
        if not _holds_up_to(told, most_more):
            return str(guard.subs(constants))
    return None


def _holds_up_to(told: Any, most: Mapping[Any, int]) -> bool:
    """Whether a linear inequality of one bounded number holds at both ends, and so in between."""
    import sympy

    inequality = isinstance(told, sympy.StrictLessThan | sympy.LessThan)
    inequality = inequality or isinstance(told, sympy.StrictGreaterThan | sympy.GreaterThan)
    if not inequality or len(told.free_symbols) != 1 or not told.free_symbols <= set(most):
        return False
    (more,) = told.free_symbols
    left: Any = told.lhs
    linear = (left - told.rhs).as_poly(more)
    if linear is None or linear.degree() > 1:
        return False
    return all(told.subs(more, end) is sympy.true for end in (0, most[more]))


def _contiguous(
    stride: int, example: Sequence[Tensor], other: Sequence[Tensor], free: Mapping[int, Any]
) -> Any:
    """A stride or offset of the examples by sizes: arguments are whole, or equal parts of a whole."""
    for one, two in zip(example, other, strict=True):
        if not one.is_contiguous():
            continue
        sizes = [
            free.get(size, size) if size != elsewhere else size
            for size, elsewhere in zip(one.shape, two.shape, strict=True)
        ]
        if stride in one.stride():
            return prod(sizes[one.stride().index(stride) + 1 :])
        if stride == one.storage_offset() and stride % one.numel() == 0:
            return stride // one.numel() * prod(sizes)
    return stride


def _reading(
    given: Any, example: Sequence[Tensor], other: Sequence[Tensor]
) -> tuple[int, str, int] | None:
    """Where the code's argument comes from; None for a constant."""
    if isinstance(given, Tensor):
        at = next((i for i, one in enumerate(example) if one is given), None)
        return None if at is None else (at, "tensor", 0)
    readings: dict[int, Varying] = {}
    for i, (one, two) in enumerate(zip(example, other, strict=True)):
        for read in _varying(i, one.ndim):
            now, then = _value(one, read), _value(two, read)
            if now != then and now == given:
                readings.setdefault(then, read)
    if len(readings) != 1:
        raise UnsupportedModel(
            "the compiled pass asks for a number of which it cannot be seen what it is"
        )
    return next(iter(readings.values()))


def _varying(number: int, dims: int) -> list[Varying]:
    sizes = [(number, what, dim) for what in ("size", "stride") for dim in range(dims)]
    return [*sizes, (number, "offset", 0)]


def _value(tensor: Tensor, read: Sequence[Any]) -> Any:
    _, what, dim = read
    if what == "tensor":
        return tensor
    if what == "size":
        return tensor.shape[dim]
    return tensor.stride(dim) if what == "stride" else tensor.storage_offset()
