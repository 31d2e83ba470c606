"""report: to be said."""
