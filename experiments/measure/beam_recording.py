"""Record the draft's predictions along texts and off their path (`search.traces.draft_rows`)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import integer
from treespec.features import lend, prefill, reads_of
from treespec.files import ARRAY_BYTES
from treespec.protocols import Drafter, Growth, TreeModel
from treespec.sampling.coins import TorchCoins
from treespec.search.errors import InvalidTrace
from treespec.search.growth.eagle2 import Eagle2
from treespec.search.traces.draft_rows import DraftRows
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

BEAM = 8
"""Nodes per level with rows in the traces before a run, and children per row; growths may need more."""
DEPTH = 8
"""Default number of levels that have rows."""


class RecordingGrowth:
    """The growth whose rows are recorded; it remembers the probabilities of the last tree."""

    def __init__(self, beam: int, depth: int) -> None:
        all_nodes = 1 + beam + (depth - 1) * beam * beam
        self._growth: Growth = Eagle2(beam, depth, all_nodes)
        self.max_depth = depth
        self.probs = torch.ones(1)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        if shape.size > 1:
            self.probs = probs()
        return self._growth.next(shape, probs)


def rows_of_position(beam: int, depth: int) -> int:
    """Number of rows that are recorded at each position.

    Raises:
        InvalidTrace: if an argument is not a positive integer.
    """
    beam, depth = (
        integer("beam", beam, 1, InvalidTrace),
        integer("beam_depth", depth, 1, InvalidTrace),
    )
    return 1 + (depth - 1) * beam


def require_room_for_rows(positions: int, rows: int, width: int) -> None:
    """Refuse draft rows of so many positions that are too large for a trace file.

    `rows`: of each position. `width`: children of each row.
    """
    size = positions * (12 + rows * (4 * width + 8))
    if size > ARRAY_BYTES // 2:
        raise InvalidTrace(
            f"{rows:,} draft rows of {width} children at each of {positions:,} positions take up to "
            f"{size / 2**20:,.0f} MiB, more than the {ARRAY_BYTES / 2**21:.0f} MiB that a trace has room "
            "for: record fewer or shorter texts, or use a smaller --beam or --beam-depth"
        )


class RowsOfPositions:
    """The draft rows of one position after the other."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._parts: dict[str, list[np.ndarray]] = {"parents": [], "ranks": [], "probs": []}
        self._text_ranks: list[int] = []

    def add(
        self, parents: Sequence[int], ranks: Sequence[int], probs: Float[np.ndarray, "R width"],
        text_rank: int,
    ) -> None:  # fmt: skip
        """The rows of the next position; see `DraftRows`."""
        self._counts.append(len(parents))
        for name, values in (("parents", parents), ("ranks", ranks), ("probs", probs.clip(0, 1))):
            self._parts[name].append(np.array(values))
        self._text_ranks.append(min(text_rank, probs.shape[1]))

    def add_beam(self, tree: TokenTree, growth: RecordingGrowth, token: int) -> None:
        """The rows of a tree that the growth has just grown, where the text goes on with a token."""
        shape, inner = tree.shape, tree.shape.internal
        row_of = {node: row for row, node in enumerate(inner)}
        children = np.array([shape.children[node] for node in inner])
        first = [tree.token_ids[child] for child in children[0]]
        self.add(
            [row_of[shape.parents[node]] if node else -1 for node in inner],
            [shape.ranks[node] for node in inner],
            growth.probs.double().cpu().numpy()[children],
            first.index(token) if token in first else len(first),
        )

    def rows(self) -> DraftRows:
        """All of them."""
        return DraftRows(
            offsets=np.concatenate([[0], np.cumsum(self._counts)]),
            text_ranks=np.array(self._text_ranks),
            **{name: np.concatenate(blocks) for name, blocks in self._parts.items()},
        )


def record_draft_rows(
    make: Callable[[int, Growth], Drafter],
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    beam: int,
    depth: int = DEPTH,
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DraftRows:
    """Record the draft's predictions at and below each position of texts, with the drafter's own code.

    Each prompt is followed by its text. `depth` levels get rows, so growths of up to this depth can be
    replayed. `make`: the drafter of deterministic children of a text, by its number, along a growth.
    """
    require_room_for_rows(sum(map(len, texts)), rows_of_position(beam, depth), beam)
    found, growth, coins = RowsOfPositions(), RecordingGrowth(beam, depth), TorchCoins(0)
    for i, given in enumerate(zip(prompts, texts, strict=True)):
        progress(f"draft rows of text {i + 1}/{len(texts)}")
        drafter = make(i, growth)
        for _, rest in positions(drafter, *given, device=device):
            found.add_beam(drafter.propose(coins), growth, rest[0])
    return found.rows()


def positions(
    drafter: Drafter,
    prompt: Sequence[int],
    text: Sequence[int],
    *,
    target: TreeModel | None = None,
    device: torch.device | None = None,
) -> Iterator[tuple[int, Sequence[int]]]:
    """Lead a drafter to every position of a text; yields the root there, and the rest of the text.

    At each of them it must draft something before it is led on.

    Args:
        drafter: any whose drafts depend on the text alone.
        prompt: token ids, followed by the text.
        text: token ids.
        target: lends the features that the drafter reads, of all positions in one pass over the text.
        device: of the models.
    """
    reads = reads_of(drafter)
    with torch.inference_mode():
        ids, features = torch.tensor([*prompt, *text], dtype=torch.long, device=device), None
        if target is not None:
            lend(target, reads)
            features = target.prefill(ids[:-1])
        last = len(prompt) - 1
        of_prompt = None if features is None else features[:last]
        prefill(drafter, ids[: last + 1], of_prompt, reads)
        for at, token in enumerate(text, last):
            root = int(ids[at])
            yield root, text[at - last :]
            bare = TokenTree.of(TreeShape.chain(0), [root], None, Law.DETERMINISTIC, ids.device)
            of_root = None if features is None else features[at : at + 1]
            scores = Scores(torch.empty(1, 0), of_root)
            drafter.commit(Step(bare, Verdict((0,), int(token)), scores, (int(token),)))
