"""records: to be said."""
