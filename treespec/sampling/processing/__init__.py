"""Processors: changes of the logits that depend on the text, applied to target and draft alike."""
