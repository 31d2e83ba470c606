"""Texts that draft models and heads are trained on: written by the target itself, or given as files."""
