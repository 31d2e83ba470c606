"""Draft sources, one a file."""

from treespec.draft.datastore import Datastore
from treespec.draft.documents import Documents
from treespec.draft.growth import StaticGrowth
from treespec.draft.jacobi import Jacobi
from treespec.draft.layers import EarlyExit, LayerSkip
from treespec.draft.lookahead import Lookahead
from treespec.draft.lookup import PromptLookup
from treespec.draft.make import make_drafter
from treespec.draft.model import ModelDrafter
from treespec.draft.nothing import NoDrafter
from treespec.draft.recycling import TokenRecycling
from treespec.draft.retrieval import Retrieval
from treespec.draft.suffix_automaton import SuffixAutomaton
from treespec.draft.suffix_counts import SuffixCounts
from treespec.draft.suffix_tree import SuffixTree

__all__ = [
    "Datastore",
    "Documents",
    "EarlyExit",
    "Jacobi",
    "LayerSkip",
    "Lookahead",
    "ModelDrafter",
    "NoDrafter",
    "PromptLookup",
    "Retrieval",
    "StaticGrowth",
    "SuffixAutomaton",
    "SuffixCounts",
    "SuffixTree",
    "TokenRecycling",
    "make_drafter",
]
