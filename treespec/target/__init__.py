"""Targets: the models whose distribution is preserved."""

from treespec.target.make import make_target
from treespec.target.model_target import ModelTarget

__all__ = ["ModelTarget", "make_target"]
