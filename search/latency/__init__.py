"""How long the parts of a step take: measured times, what lies between them, and their file."""
