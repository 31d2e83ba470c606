"""A run: prompts decoded by every method, measured and recorded."""
