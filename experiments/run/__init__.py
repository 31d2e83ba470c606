"""run: to be said."""
