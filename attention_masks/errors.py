"""The package's errors. Every message says what was given and what is allowed."""

__all__ = ["AttentionMaskError", "InvalidInput", "NotATree", "Unavailable", "Unsupported"]


class AttentionMaskError(Exception):
    """Base class of all errors that attention_masks raises on purpose."""


class NotATree(AttentionMaskError, ValueError):
    """A parent array in which a node has no parent before it, or node 0 is not the root."""


class InvalidInput(AttentionMaskError, ValueError):
    """An argument whose value or shape does not fit the tree, the cache or the other tensors."""


class Unsupported(AttentionMaskError, NotImplementedError):
    """The requested implementation does not support what was asked; another one does."""


class Unavailable(AttentionMaskError, NotImplementedError):
    """The requested implementation is not available: not written, not installed, or no device for it."""
