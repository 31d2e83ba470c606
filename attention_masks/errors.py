"""What can go wrong, by name. Every message says what was given and what is allowed."""

__all__ = ["AttentionMaskError", "InvalidInput", "NotATree", "Unavailable", "Unsupported"]


class AttentionMaskError(Exception):
    """Base class of all errors that attention_masks raises on purpose."""


class NotATree(AttentionMaskError, ValueError):
    """A parent array in which some node has no parent before it, or node 0 is no root."""


class InvalidInput(AttentionMaskError, ValueError):
    """An argument whose value or shape does not fit the tree, the cache or the other tensors."""


class Unsupported(AttentionMaskError, NotImplementedError):
    """The implementation that was asked for cannot do what was asked of it; another one can."""


class Unavailable(AttentionMaskError, NotImplementedError):
    """The implementation that was asked for is not there: not written, not installed, no device."""
