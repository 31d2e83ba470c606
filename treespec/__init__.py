"""treespec: a research framework for tree-based speculative decoding.

Draft source, tree shape, acceptance rule and attention kernel are independent parts over one tree type.
`treespec.step` holds the glossary. Importing this package loads torch and nothing heavier; what needs
transformers loads it when first used.

`treespec.decode` and `treespec.generate` are the functions, which shadow the modules of the same name; what
else these modules hold is had by `from treespec.decode import ...`. The packages `draft`, `target`,
`testing` and `verify` are attributes of this one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treespec import verify
from treespec.coins import TorchCoins
from treespec.decode import decode
from treespec.distributions import Sampling
from treespec.generate import Generation, generate
from treespec.step import Scores, Step, Verdict
from treespec.tree import Law, TokenTree, TreeShape

if TYPE_CHECKING:
    from treespec import draft, target, testing
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
    "draft",
    "generate",
    "load_pair",
    "target",
    "testing",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in ("Pair", "load_pair"):
        from treespec.models import load

        return getattr(load, name)
    if name in ("draft", "target", "testing"):
        return import_module(f"treespec.{name}")
    raise AttributeError(f"module 'treespec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
