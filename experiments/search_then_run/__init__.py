"""search_then_run: to be said."""
