"""lossless: to be said."""
