"""Tree shapes: static optima, growth policies, acceptance estimates and latency models."""
