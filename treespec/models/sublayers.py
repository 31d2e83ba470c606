"""The sublayers of a decoder by name: what a shortened model leaves out."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from treespec.door import sequence, shown
from treespec.errors import InvalidArgument

__all__ = ["Part", "Sublayer", "layers_from", "require_sublayers", "sublayers_of"]

Part = Literal["attention", "mlp"]
"""What a layer adds to its input: first what its attention gives, then what its feed-forward part gives."""


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
        """A sublayer by its name, such as `attention.3`.

        Raises:
            InvalidArgument: if it is none.
        """
        if isinstance(value, cls):
            return value
        part, _, layer = value.partition(".") if isinstance(value, str) else ("", "", "")
        plain = layer.isascii() and layer.isdigit() and len(layer) <= 6
        if part not in get_args(Part) or not plain:
            raise InvalidArgument(
                f"{shown(value)} is no sublayer: name one like attention.3 or mlp.0, layers from 0"
            )
        return cls(int(layer), part)  # pyrefly: ignore[bad-argument-type]


def sublayers_of(layers: int) -> list[Sublayer]:
    """All sublayers of so many layers, in the order in which they are computed."""
    return layers_from(0, layers)


def layers_from(first: int, layers: int) -> list[Sublayer]:
    """All sublayers of the layers first .. layers - 1."""
    return [Sublayer(i, part) for i in range(first, layers) for part in get_args(Part)]


def require_sublayers(
    name: str, skip: Iterable[str | Sublayer], layers: int
) -> frozenset[Sublayer]:
    """The sublayers that are to be left out, if a model of so many layers has them and keeps one.

    Args:
        name: of the argument.
        skip: sublayers, or their names; the order says nothing.
        layers: of the model.

    Raises:
        InvalidArgument: if one is none or of a layer that is not there, or none would be left.
    """
    given = sorted(skip) if isinstance(skip, frozenset | set) else sequence(name, skip, "sublayers")
    sublayers = frozenset(map(Sublayer.of, given))
    beyond = sorted(one for one in sublayers if one.layer >= layers)
    if beyond:
        raise InvalidArgument(
            f"{name} names {beyond[0]}, but the model has {layers} layers: 0 to {layers - 1}"
        )
    if len(sublayers) == len(sublayers_of(layers)):
        raise InvalidArgument(f"{name} names every sublayer of the model: leave it one at least")
    return sublayers
