"""Read external YAML within stated limits; see `treespec.reading`."""

import math
from typing import Any

import yaml

from treespec.errors import Unreadable
from treespec.reading import DEEPEST_NESTING, LONGEST_NUMBER, brief

__all__ = ["MOST_CHARACTERS", "MOST_NODES", "NotYaml", "parse_yaml"]

MOST_CHARACTERS = 2**18
"""Largest number of characters of a text; PyYAML takes up to a second for this many."""

MOST_NODES = 20_000
"""Largest number of values of a text, keys included; the content of an alias counts at every use. The
largest tree of a config, 16,384 nodes, can be written as a list of parents."""

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class NotYaml(Unreadable):
    """A text that is not valid YAML, regardless of our limits."""


def parse_yaml(text: str) -> Any:
    """The plain data in a YAML text: one document without repeated keys.

    Raises:
        NotYaml: if the text is not valid YAML.
        Unreadable: if it has more than `MOST_CHARACTERS` or `MOST_NODES`, is nested more than
            `treespec.reading.DEEPEST_NESTING` levels deep, or holds a number that is too large or has more
            than `LONGEST_NUMBER` characters, a key twice, two keys that mean the same (1 and true), or a
            type such as !!set.
    """
    if len(text) > MOST_CHARACTERS:
        raise Unreadable(f"{len(text):,} characters of YAML: at most {MOST_CHARACTERS:,}")
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        position = () if mark is None else (mark.line + 1, mark.column + 1)
        error_class = Unreadable if isinstance(error, _Refused) else NotYaml
        raise error_class(reason or "not YAML", *position) from None
    except yaml.YAMLError as error:
        raise NotYaml(" ".join(str(error).split())) from None


class _Refused(yaml.constructor.ConstructorError):
    """Valid YAML that we refuse."""


class _Loader(yaml.SafeLoader):
    """Loads safe YAML within the limits and refuses repeated keys."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth, self._nodes = 0, 0
        self._sizes: dict[str, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node after counting it against the limits."""
        event = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._sizes:
                raise _problem(f"the alias {brief(event.anchor, 60)} contains itself", event)
            self._count(self._sizes.get(event.anchor, 1), event)
            return super().compose_node(parent, index)
        before = self._nodes
        self._count(1, event)
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            raise _problem(f"nested more than {DEEPEST_NESTING} levels deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct the value of a node; an invalid number or date is named in the error."""
        if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
            length = f"{len(node.value):,} characters"
            raise _problem(f"a number of {length}: at most {LONGEST_NUMBER:,}", node)
        try:
            built = super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            kind = node.tag.rpartition(":")[2]
            raise _problem(f"{brief(node.value, 60)} is not a valid {kind}", node) from None
        if isinstance(built, float) and math.isinf(built) and "inf" not in node.value.lower():
            raise _problem(f"{brief(node.value, 60)} is too large for a number", node)
        return built

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            raise _problem(
                f"more than {MOST_NODES:,} values, counting the content of each alias", event
            )


def _problem(reason: str, source: Any) -> _Refused:
    return _Refused(None, None, reason, source.start_mark)


def _unique_keys(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    written: set[str] = set()
    spellings: dict[Any, str] = {}  # by the value of the key
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _problem("a key must be plain text, not a list or a mapping", key)
        if key.value == "<<":
            continue
        if key.value in written:
            raise _problem(f"key {brief(key.value, 60)} appears twice", key)
        written.add(key.value)
        first = spellings.setdefault(loader.construct_object(key), key.value)
        if first != key.value:  # such as 1, 1.0 and true
            pair = f"{brief(first, 60)} and {brief(key.value, 60)}"
            raise _problem(f"the keys {pair} mean the same: quote them, or leave one out", key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _refuse(loader: _Loader, node: yaml.Node) -> Any:
    kind = node.tag.rpartition(":")[2]
    raise _problem(f"!!{kind} is not plain data: write a list, a mapping or text", node)


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_keys)
for _tag in ("set", "omap", "pairs", "binary"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse)
