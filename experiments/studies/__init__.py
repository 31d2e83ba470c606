"""studies: to be said."""
