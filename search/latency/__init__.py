"""How long the parts of a step take: measured times, interpolation between them, and their file."""
