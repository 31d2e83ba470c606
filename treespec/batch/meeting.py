"""Decisions that the texts of a batch take together, once each of them has drafted what it could."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

Decision = Callable[[Sequence[Any]], Sequence[Any]]
"""A pure function from the bids of several texts to an answer for each. It can be hashed: texts whose
decisions are equal meet each other."""

MEET: ContextVar[Callable[[Decision, Any], Any] | None] = ContextVar("MEET", default=None)
"""Hands a bid to the driver of the batch in which this text is decoded; None outside of a batch."""


def meet(decision: Decision, bid: Any) -> Any:
    """Wait until no text of the batch drafts any more, and decide together; alone, decide at once.

    All texts that wait with an equal decision at this moment are asked together. Drafters and growths may
    meet any number of times a step, and texts need not meet equally often: whoever does not wait when the
    others do is not asked.

    Args:
        decision: maps the bids of all texts that meet, in the order of the texts, to their answers.
        bid: what this text brings.

    Raises:
        Exception: what the decision raises; every text that meets gets it.

    Example:
        >>> meet(lambda bids: [max(bids)] * len(bids), 3)
        3
    """
    wait = MEET.get()
    return decision([bid])[0] if wait is None else wait(decision, bid)
