"""rates: to be said."""
