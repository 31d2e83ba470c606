"""What the parts of a step take on a pair, timed."""
