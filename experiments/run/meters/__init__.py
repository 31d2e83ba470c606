"""Meters of memory and energy, which are read while a method decodes a prompt by itself."""
