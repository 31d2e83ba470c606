"""Many texts in one pass: `decode_many` runs the ordinary decoding loop of each, and joins their passes."""

from treespec.batch.driver import Failed, Text, Watch, decode_many, decode_rounds

__all__ = ["Failed", "Text", "Watch", "decode_many", "decode_rounds"]
