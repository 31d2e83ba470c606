"""What can go wrong, by name. Every message says what was given, what is allowed, and the way out."""

__all__ = [
    "CannotGrow",
    "ContextOverflow",
    "EmptyPrompt",
    "InvalidArgument",
    "InvalidBudget",
    "InvalidPrompt",
    "InvalidSampling",
    "InvalidSetting",
    "InvalidStop",
    "InvalidTree",
    "LoadError",
    "NonFiniteLogits",
    "NotADistribution",
    "RefusedTree",
    "StaleScores",
    "TokenizerMismatch",
    "TreespecError",
    "Unavailable",
    "Unreadable",
    "UnsupportedModel",
]


class TreespecError(Exception):
    """Base class of all errors that treespec raises on purpose."""


class InvalidArgument(TreespecError, TypeError):
    """An argument of a kind that a function cannot use: a list for a tensor, a tensor for a tree."""


class InvalidTree(TreespecError, ValueError):
    """A parent array, path list or token tree that is not a tree in the sense of `TreeShape`."""


class RefusedTree(TreespecError, TypeError):
    """An acceptance rule was given a tree of a law or shape that it does not cover."""


class NonFiniteLogits(TreespecError, ArithmeticError):
    """A model returned NaN or infinite logits; no token is ever drawn from them."""

    def __init__(self, node: int, model: str = "target", step: int | None = None) -> None:
        self.node, self.model, self.step = node, model, step
        where = f"node {node}" if step is None else f"step {step}, node {node}"
        super().__init__(
            f"the {model} model returned NaN or infinite logits at {where}; "
            "check its weights and dtype (float16 overflows easily: try bfloat16 or float32)"
        )


class InvalidBudget(TreespecError, ValueError):
    """A number of new tokens that is no positive integer."""


class InvalidSampling(TreespecError, ValueError):
    """A sampling setting outside its range."""


class InvalidSetting(TreespecError, ValueError):
    """A setting that an acceptance rule does not have, or a value outside its range."""


class InvalidPrompt(TreespecError, ValueError):
    """A prompt that is no row of token ids of the model."""


class NotADistribution(TreespecError, ArithmeticError):
    """What was given as probabilities and is none: no token is ever drawn from it."""


class InvalidStop(TreespecError, ValueError):
    """A stop string that would end every text."""


class EmptyPrompt(TreespecError, ValueError):
    """A prompt without tokens: there is no committed token to be the root of a tree."""


class ContextOverflow(TreespecError, ValueError):
    """Prompt, new tokens and tree together do not fit in a model's context."""


class LoadError(TreespecError, OSError):
    """A model or tokenizer that cannot be read from where the user said."""


class TokenizerMismatch(TreespecError, ValueError):
    """Draft and target use different tokenizers, so drafted ids mean different text."""


class CannotGrow(TreespecError, ValueError):
    """A size that a model cannot be grown to."""


class UnsupportedModel(TreespecError, TypeError):
    """A model that cannot verify trees exactly, with the reason."""


class StaleScores(TreespecError, RuntimeError):
    """Logits that were asked for after their memory had gone to a later step."""


class Unavailable(TreespecError, NotImplementedError):
    """The implementation that was asked for is not there, or cannot take what it was given."""


class Unreadable(TreespecError, ValueError):
    """A file or text that is not read: none, of another kind than is needed, or beyond stated limits."""

    def __init__(self, said: str, line: int | None = None, column: int | None = None) -> None:
        self.said, self.line, self.column = said, line, column
        super().__init__(said if line is None else f"line {line}, column {column}: {said}")
