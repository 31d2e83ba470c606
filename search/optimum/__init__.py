"""optimum: to be said."""
