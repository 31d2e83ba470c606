"""Targets: the models whose distribution is preserved."""

from treespec.target.model import ModelTarget, make_target

__all__ = ["ModelTarget", "make_target"]
