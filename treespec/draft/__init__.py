"""Draft sources, one per file."""

from treespec.draft.cascade import Cascade
from treespec.draft.documents import Documents
from treespec.draft.growth import StaticGrowth
from treespec.draft.jacobi import Jacobi
from treespec.draft.layers import EarlyExit, LayerSkip
from treespec.draft.lookahead import Lookahead
from treespec.draft.lookup import PromptLookup
from treespec.draft.merge import Merge
from treespec.draft.model import ModelDrafter, make_drafter
from treespec.draft.nothing import NoDrafter
from treespec.draft.ranks_next import best_next
from treespec.draft.rates import acceptance_rates
from treespec.draft.recycling import TokenRecycling
from treespec.draft.retrieval import Retrieval
from treespec.draft.strings import StringDrafter
from treespec.draft.suffix_automaton import SuffixAutomaton
from treespec.draft.suffix_tree import SuffixTree
from treespec.draft.text.datastore import Datastore
from treespec.draft.text.suffix_counts import SuffixCounts
from treespec.draft.text.text_source import MatchingSource
from treespec.draft.trained.block_draft import BlockDraft
from treespec.draft.trained.eagle import Eagle
from treespec.draft.trained.eagle3 import Eagle3
from treespec.draft.trained.medusa import Medusa
from treespec.draft.trained.mtp import Mtp

__all__ = [
    "BlockDraft",
    "Cascade",
    "Datastore",
    "Documents",
    "Eagle",
    "Eagle3",
    "EarlyExit",
    "Jacobi",
    "LayerSkip",
    "Lookahead",
    "MatchingSource",
    "Medusa",
    "Merge",
    "ModelDrafter",
    "Mtp",
    "NoDrafter",
    "PromptLookup",
    "Retrieval",
    "StaticGrowth",
    "StringDrafter",
    "SuffixAutomaton",
    "SuffixCounts",
    "SuffixTree",
    "TokenRecycling",
    "acceptance_rates",
    "best_next",
    "make_drafter",
]
