"""cli: to be said."""
