"""treespec: a research framework for tree-based speculative decoding.

Draft source, tree shape, acceptance rule and attention kernel are independent parts over one tree type.
`treespec.step` holds the glossary. Each name below is imported on first use: importing this package costs
nothing, and the command line answers without torch.

With `TREESPEC_STRICT=1`, set before this package is imported, every call of the core, that is of all but
`treespec.search` and `treespec.experiments`, checks the types and shapes in its signature (jaxtyping and
beartype); it is slow.
"""

import os
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treespec import draft, plugins, target, testing, verify
    from treespec.batch import Failed, Text, decode_many
    from treespec.decoding import decode
    from treespec.generation import Generation, generate
    from treespec.models.load import Pair, load_pair
    from treespec.sampling.coins import TorchCoins
    from treespec.sampling.distributions import Sampling
    from treespec.step import Scores, Step, Verdict
    from treespec.tree import Law, TokenTree, TreeShape

__all__ = [
    "Failed",
    "Generation",
    "Law",
    "Pair",
    "Sampling",
    "Scores",
    "Step",
    "Text",
    "TokenTree",
    "TorchCoins",
    "TreeShape",
    "Verdict",
    "decode",
    "decode_many",
    "draft",
    "generate",
    "load_pair",
    "plugins",
    "target",
    "testing",
    "verify",
]

_MODULES = {
    "Failed": "batch",
    "Generation": "generation",
    "Law": "tree",
    "Pair": "models.load",
    "Sampling": "sampling.distributions",
    "Scores": "step",
    "Step": "step",
    "Text": "batch",
    "TokenTree": "tree",
    "TorchCoins": "sampling.coins",
    "TreeShape": "tree",
    "Verdict": "step",
    "decode": "decoding",
    "decode_many": "batch",
    "generate": "generation",
    "load_pair": "models.load",
}
"""The module that defines each name; names not listed here are subpackages or modules themselves."""


def _check_signatures() -> None:
    """Check types and shapes at run time in all modules of the core, from their import on."""
    try:
        import beartype  # noqa: F401
    except ImportError:
        raise ImportError("TREESPEC_STRICT=1 needs beartype: pip install beartype") from None
    from jaxtyping import install_import_hook

    core = {module.name for module in iter_modules(__path__)} - {"search", "experiments"}
    names = ["attention_masks", *(f"{__name__}.{name}" for name in core)]
    install_import_hook(names, "beartype.beartype")


if os.environ.get("TREESPEC_STRICT") == "1":
    _check_signatures()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    elif name in __all__:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
