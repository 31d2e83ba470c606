"""Drafts while they are trained, one family a file."""
