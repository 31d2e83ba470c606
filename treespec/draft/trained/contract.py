"""What a head reads and how: the facts that a format leaves open, printed and recorded with every run.

Each of them has been got wrong by others without an error: such a head loads, runs and accepts almost
nothing. So they stand in one line, which whoever compares two tools can compare too.
"""

from dataclasses import dataclass
from typing import Literal

from treespec.features import Features


@dataclass(frozen=True)
class Contract:
    """The conventions by which a head is run.

    Args:
        family: medusa, eagle, eagle3, mtp or block.
        reads: the target's features, counted as in `treespec.features`.
        order: what the first layer reads side by side, in this order; empty if it reads one thing.
        gain: what a norm multiplies by, for a stored weight w.
        recycled: the state that stands in for the target's features at drafted tokens.
        vocabulary: number of the target's tokens that the head has rows for; None for all.
        head: whose matrix gives the logits.
        embedding: whose embeddings are read.
        flags: those of config.json that are on, by which the head computes otherwise.
        notes: further facts, in words.
    """

    family: str
    reads: Features
    order: tuple[str, ...] = ()
    gain: Literal["w", "1 + w"] = "w"
    recycled: Literal["before the norm", "after the norm", "none"] = "none"
    vocabulary: int | None = None
    head: Literal["own", "target's"] = "target's"
    embedding: Literal["own", "target's", "none"] = "target's"
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        boundaries = ", ".join(map(str, self.reads.boundaries))
        states = [
            f"boundar{'y' if len(self.reads.boundaries) == 1 else 'ies'} {boundaries}"
            if boundaries
            else "",
            "the state after the final norm" if self.reads.final else "",
        ]
        facts = [
            f"reads {', '.join(filter(None, states))}",
            f"order [{', '.join(self.order)}]" if self.order else "",
            f"norm gain {self.gain}",
            "" if self.recycled == "none" else f"recycles the state {self.recycled}",
            "all tokens" if self.vocabulary is None else f"rows for {self.vocabulary:,} tokens",
            f"{self.head} head",
            "" if self.embedding == "none" else f"{self.embedding} embedding",
            *self.flags,
            *self.notes,
        ]
        return f"{self.family}: " + "; ".join(fact for fact in facts if fact)
