"""latency: to be said."""
