"""Record the draft's predictions along texts and off their path (`search.traces.draft_rows`)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import integer
from treespec.draft import ModelDrafter
from treespec.files import ARRAY_BYTES
from treespec.protocols import Growth, TreeModel
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.search.errors import InvalidTrace
from treespec.search.growth.eagle2 import Eagle2
from treespec.search.traces.draft_rows import DraftRows
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TreeShape

BEAM = 8
"""Nodes per level with rows in the traces before a run, and children per row; growths may need more."""
DEPTH = 8
"""Default number of levels that have rows."""


class _RecordingGrowth:
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
    """Number of rows that are recorded at each position."""
    return 1 + (depth - 1) * beam


def require_room_for_rows(positions: int, beam: int, depth: int) -> None:
    """Refuse rows that are too large for a trace file."""
    integer("beam", beam, 1, InvalidTrace)
    integer("beam_depth", depth, 1, InvalidTrace)
    size = positions * (12 + rows_of_position(beam, depth) * (4 * beam + 8))
    if size > ARRAY_BYTES // 2:
        raise InvalidTrace(
            f"draft rows of {positions:,} positions, {depth} levels and {beam} children each take up to "
            f"{size / 2**20:,.0f} MiB, more than the {ARRAY_BYTES / 2**21:.0f} MiB that a trace has room "
            "for: record fewer or shorter texts, or use a smaller --beam or --beam-depth"
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
    """Record the draft's predictions at and below each position of texts, with the drafter's own code.

    Each prompt is followed by its text. `depth` levels get rows, so growths of up to this depth can be
    replayed.
    """
    require_room_for_rows(sum(map(len, texts)), beam, depth)
    counts: list[int] = []
    parts: dict[str, list[np.ndarray]] = {"parents": [], "ranks": [], "probs": []}
    text_ranks: list[int] = []
    growth = _RecordingGrowth(beam, depth)
    coins = TorchCoins(0)  # unused: children are deterministic
    drafter = ModelDrafter(draft, growth, Law.DETERMINISTIC, sampling)
    with torch.inference_mode():
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            progress(f"draft rows of text {i + 1}/{len(texts)}")
            drafter.prefill(torch.tensor(prompt, dtype=torch.long, device=device))
            for token in text:
                tree = drafter.propose(coins)
                inner = tree.shape.internal
                row_of = {node: row for row, node in enumerate(inner)}
                children = np.array([tree.shape.children[node] for node in inner])
                above = [row_of[tree.shape.parents[node]] if node else -1 for node in inner]
                parts["parents"].append(np.array(above))
                parts["ranks"].append(np.array([tree.shape.ranks[node] for node in inner]))
                parts["probs"].append(growth.probs.double().cpu().numpy()[children].clip(0, 1))
                first = [tree.token_ids[child] for child in children[0]]
                text_ranks.append(first.index(token) if token in first else beam)
                counts.append(len(inner))
                no_scores = Scores(torch.empty(0, 0))
                drafter.commit(Step(tree, Verdict((0,), int(token)), no_scores, (int(token),)))
    return DraftRows(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        text_ranks=np.array(text_ranks),
        **{name: np.concatenate(blocks) for name, blocks in parts.items()},
    )
