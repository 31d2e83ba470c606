"""Recording what the draft thinks along texts and off their path (`search.rates.draft_rows`)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.coins import TorchCoins
from treespec.distributions import Sampling
from treespec.draft import ModelDrafter
from treespec.protocols import Growth, TreeModel
from treespec.search.errors import InvalidTrace
from treespec.search.growth.eagle2 import Eagle2
from treespec.search.integers import integer
from treespec.search.rates.archive import LARGEST_FILE
from treespec.search.rates.draft_rows import DraftRows
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TreeShape

__all__ = ["BEAM", "DEPTH", "record_draft_rows", "require_room_for_rows", "rows_of_position"]

BEAM = 8
"""Nodes of a level that have rows before a run, and children of each: more if a growth of the run asks."""
DEPTH = 8
"""Levels that have rows, unless others are asked for."""


class _Noted:
    """The expansion whose rows are recorded, and what it saw of the last tree.

    Args:
        beam: nodes of a level that get children, and children of each.
        depth: levels that get children.
    """

    def __init__(self, beam: int, depth: int) -> None:
        whole = 1 + beam + (depth - 1) * beam * beam
        self._growth: Growth = Eagle2(beam, depth, whole)
        self.max_depth = depth
        self.probs = torch.ones(1)
        self.shape = TreeShape((-1,))

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The best nodes of the last level."""
        if shape.size > 1:
            self.shape, self.probs = shape, probs()
        return self._growth.next(shape, probs)


def rows_of_position(beam: int, depth: int) -> int:
    """Rows that are recorded at each position."""
    return 1 + (depth - 1) * beam


def require_room_for_rows(positions: int, beam: int, depth: int) -> None:
    """Refuse rows that no file of a trace holds.

    Args:
        positions: of all texts together, at most.
        beam: children of a row, and rows of a level.
        depth: levels.

    Raises:
        InvalidTrace: with the sizes.
    """
    integer("beam", beam, 1, InvalidTrace)
    integer("beam_depth", depth, 1, InvalidTrace)
    size = positions * (12 + rows_of_position(beam, depth) * (4 * beam + 8))
    if size > LARGEST_FILE // 2:
        raise InvalidTrace(
            f"draft rows of {positions:,} positions, {depth} levels and {beam} children each take up to "
            f"{size / 2**20:,.0f} MiB, more than the {LARGEST_FILE / 2**21:.0f} that a trace has room for: "
            "record fewer or shorter texts, or a smaller --beam or --beam-depth"
        )


def record_draft_rows(
    draft: TreeModel,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    beam: int,
    depth: int = DEPTH,
    device: torch.device | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DraftRows:
    """What the draft thinks at each position of texts, and below it, by the drafter's own code.

    Args:
        draft: the draft's weights.
        prompts: token ids of each prompt.
        texts: the tokens after it.
        sampling: of target and draft.
        beam: nodes of a level that get a row, and children in each row.
        depth: levels that have rows: growths of up to so many edges can be replayed.
        device: of the draft; the CPU by default.
        progress: told as each text begins.

    Raises:
        InvalidTrace: if that is more than a trace holds.
        InvalidTree: if the vocabulary has fewer tokens than the beam.
        NonFiniteLogits: if the draft's logits are NaN or infinite.
    """
    require_room_for_rows(sum(map(len, texts)), beam, depth)
    counts: list[int] = []
    parts: dict[str, list[np.ndarray]] = {"parents": [], "ranks": [], "probs": []}
    text_ranks: list[int] = []
    noted, coins = _Noted(beam, depth), TorchCoins(0)  # deterministic children need no coin
    drafter = ModelDrafter(draft, noted, Law.DETERMINISTIC, sampling)
    with torch.inference_mode():
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            progress(f"draft rows of text {i + 1}/{len(texts)}")
            drafter.prefill(torch.tensor(prompt, dtype=torch.long, device=device))
            for token in text:
                tree = drafter.propose(coins)
                inner = tree.shape.internal
                place = {node: row for row, node in enumerate(inner)}
                children = np.array([tree.shape.children[node] for node in inner])
                above = [place[tree.shape.parents[node]] if node else -1 for node in inner]
                parts["parents"].append(np.array(above))
                parts["ranks"].append(np.array([tree.shape.ranks[node] for node in inner]))
                parts["probs"].append(noted.probs.double().cpu().numpy()[children].clip(0, 1))
                first = [tree.token_ids[child] for child in children[0]]
                text_ranks.append(first.index(token) if token in first else beam)
                counts.append(len(inner))
                none = Scores(torch.empty(0, 0))
                drafter.commit(Step(tree, Verdict((0,), int(token)), none, (int(token),)))
    return DraftRows(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        text_ranks=np.array(text_ranks),
        **{name: np.concatenate(blocks) for name, blocks in parts.items()},
    )
