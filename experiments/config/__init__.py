"""config: to be said."""
