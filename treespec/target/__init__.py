"""Targets: the models whose distribution is kept."""

from treespec.target.model import ModelTarget

__all__ = ["ModelTarget"]
