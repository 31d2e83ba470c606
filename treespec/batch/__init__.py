"""Many texts in one pass: `decode_many` runs the ordinary decoding loop of each, and joins their passes."""

from treespec.batch.driver import Failed, Text, decode_many

__all__ = ["Failed", "Text", "decode_many"]
