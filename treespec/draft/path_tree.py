"""A tree built from paths, in which equal siblings are one node."""


class PathTree:
    """Collects nodes identified by parent and token; adding an existing node returns its index.

    Deterministic children are distinct: a token that appeared twice below a node would be tested twice. So
    the common prefix of several paths is one node each.
    """

    def __init__(self) -> None:
        self.parents, self.tokens = [-1], list[int]()
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """The index of the node's child with this token, which is created if missing."""
        node = self._nodes.setdefault((parent, token), len(self.parents))
        if node == len(self.parents):
            self.parents.append(parent)
            self.tokens.append(token)
        return node
