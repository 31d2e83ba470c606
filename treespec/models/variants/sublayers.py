"""Names of a decoder's sublayers, which a shortened model can skip."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from treespec.checks import sequence, shown
from treespec.errors import InvalidArgument

Part = Literal["attention", "mlp"]
"""The parts of a layer, in order: each adds its output to the residual stream."""


class Sublayer(NamedTuple):
    """One of the two parts of a layer.

    Args:
        layer: its number, from 0.
        part: `attention` or `mlp`.

    Example:
        >>> str(Sublayer(3, "mlp")), Sublayer.of("mlp.3")
        ('mlp.3', Sublayer(layer=3, part='mlp'))
    """

    layer: int
    part: Part

    def __str__(self) -> str:
        return f"{self.part}.{self.layer}"

    @classmethod
    def of(cls, value: "str | Sublayer") -> "Sublayer":
        """Parse the name of a sublayer, such as `attention.3`."""
        if isinstance(value, cls):
            return value
        part, _, layer = value.partition(".") if isinstance(value, str) else ("", "", "")
        is_number = layer.isascii() and layer.isdigit() and len(layer) <= 6
        if part not in get_args(Part) or not is_number:
            raise InvalidArgument(
                f"{shown(value)} is not a sublayer: give a name like attention.3 or mlp.0, layers from 0"
            )
        return cls(int(layer), part)  # pyrefly: ignore[bad-argument-type]


def sublayers_of(layers: int) -> list[Sublayer]:
    """All sublayers of a model of `layers` layers, in the order in which they are computed."""
    return layers_from(0, layers)


def layers_from(first: int, layers: int) -> list[Sublayer]:
    """All sublayers of the layers first .. layers - 1."""
    return [Sublayer(i, part) for i in range(first, layers) for part in get_args(Part)]


def require_sublayers(
    name: str, skip: Iterable[str | Sublayer], layers: int
) -> frozenset[Sublayer]:
    """Parse the sublayers to skip, and check that the model has them and that at least one remains.

    `skip`: sublayers, or their names, in any order.
    """
    items = sorted(skip) if isinstance(skip, frozenset | set) else sequence(name, skip, "sublayers")
    named = Counter(map(Sublayer.of, items))
    sublayers = frozenset(named)
    if len(sublayers) < len(items):
        twice = next(sublayer for sublayer in named if named[sublayer] > 1)
        raise InvalidArgument(f"{name} names {twice} twice: name each sublayer once")
    beyond = sorted(sublayer for sublayer in sublayers if sublayer.layer >= layers)
    if beyond:
        raise InvalidArgument(
            f"{name} names {beyond[0]}, but the model has {layers} layers: 0 to {layers - 1}"
        )
    if len(sublayers) == len(sublayers_of(layers)):
        raise InvalidArgument(f"{name} names every sublayer of the model: keep at least one")
    return sublayers
