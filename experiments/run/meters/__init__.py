"""Meters: what is read around every prompt of every method, besides times."""
