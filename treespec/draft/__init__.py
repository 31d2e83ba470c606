"""Draft sources, one a file."""

from treespec.draft.documents import Documents
from treespec.draft.growth import StaticGrowth
from treespec.draft.lookup import PromptLookup
from treespec.draft.make import make_drafter
from treespec.draft.model import ModelDrafter
from treespec.draft.nothing import NoDrafter

__all__ = [
    "Documents",
    "ModelDrafter",
    "NoDrafter",
    "PromptLookup",
    "StaticGrowth",
    "make_drafter",
]
