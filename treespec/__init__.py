"""treespec: a research framework for tree-based speculative decoding.

Draft source, tree shape, acceptance rule and attention kernel are independent parts over one tree type.
`treespec.step` holds the glossary. Importing this package loads torch and nothing heavier; what needs
transformers loads it when first used.
"""

from typing import TYPE_CHECKING, Any

from treespec import verify
from treespec.coins import TorchCoins
from treespec.decode import decode
from treespec.distributions import Sampling
from treespec.generate import Generation, generate
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair, load_pair

__all__ = [
    "Generation",
    "Law",
    "Pair",
    "Sampling",
    "Scores",
    "Step",
    "TokenTree",
    "TorchCoins",
    "TreeShape",
    "Verdict",
    "decode",
    "generate",
    "load_pair",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in ("Pair", "load_pair"):
        from treespec.models import load

        return getattr(load, name)
    raise AttributeError(f"module 'treespec' has no attribute {name!r}")
