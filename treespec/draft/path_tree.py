"""A tree built of paths, in which equal siblings are one node."""

__all__ = ["PathTree"]


class PathTree:
    """Grows by nodes that are named by parent and token; one that is there is found again.

    Children chosen without chance are distinct: a token that stood twice below a node would be tested
    twice, and tested once it would have to count for both. So what several paths share is one node.
    """

    def __init__(self) -> None:
        self.parents, self.tokens = [-1], list[int]()
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """The child of a node with this token, made if there is none."""
        node = self._nodes.setdefault((parent, token), len(self.parents))
        if node == len(self.parents):
            self.parents.append(parent)
            self.tokens.append(token)
        return node
