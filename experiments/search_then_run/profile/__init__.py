"""profile: to be said."""
