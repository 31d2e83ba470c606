"""What can go wrong, by name. Every message says what was given, what is allowed, and the way out."""

import re

from attention_masks.errors import AttentionMaskError

__all__ = [
    "CannotEnlarge",
    "ContextOverflow",
    "EmptyPrompt",
    "InvalidArgument",
    "InvalidBudget",
    "InvalidPlugin",
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
    "for_people",
    "in_words",
    "said",
]

_LONGEST = 300
"""Letters of what an error of others says."""

_CLASS = r"\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning)\b"
_LEADING = (
    rf"^(?:{_CLASS}(?: *[:,] *| +(?!(?:was|is|in|at|on|of|for|from|while|when|raised)\b)|$))+"
)
"""Classes before what is said, but not one that is the subject of a sentence."""
_NAMED = rf"\b(?:(?:(the|this|that|no)|an?) )?{_CLASS}"
_WORDS_OF_CODE = re.compile(
    _CLASS + r"|<class|\bobject\b.*\b(?:is not|has no)|__|\bNoneType\b|"
    r"argument|untagged|codec|\bindex out of|\bby zero|negative power|unhashable|not supported between"
)


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


class InvalidPlugin(TreespecError, ValueError):
    """A plug-in that cannot be loaded, or registers what it may not."""


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


class CannotEnlarge(TreespecError, ValueError):
    """A size that a model cannot be enlarged to."""


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


def said(error: BaseException) -> str | None:
    """The first sentence of an error, if it is one for people: nothing of classes, types and codes."""
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(str(error).split()))[0].rstrip(".")
    return text if _known(error) and for_people(text) else None


def in_words(error: BaseException, doing: str) -> str:
    """What went wrong in one line, without the name of a class: for messages, and for what is recorded.

    Of errors of others it is the first line: what follows is often frames of their code.

    Args:
        error: of ours, or what others raised.
        doing: what was going on, as in "an error inside ...": said where the error's own text is none for
            people, such as the name of a key.
    """
    if isinstance(error, TreespecError | AttentionMaskError):
        return " ".join(str(error).split())
    text = " ".join((str(error).strip().splitlines() or [""])[0].split())
    text = re.sub(rf"(?:{_CLASS}: )+", "", re.sub(_LEADING, "", text))
    text = re.sub(_NAMED, lambda match: f"{match[1] or 'an'} error", text)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        known = "out of memory" in text.lower()
        return text if known else f"out of memory: {text}" if text else "out of memory"
    if _known(error) and for_people(text):
        return text
    if isinstance(error, KeyError):
        text = f"there is no {text}"
    return (
        f"an error inside {doing}: {text}" if text else f"an error inside {doing}, without a word"
    )


def for_people(text: str) -> bool:
    """Whether a text is a sentence for people: nothing of classes, types and codes."""
    return " " in text and not _WORDS_OF_CODE.search(text)


def _known(error: BaseException) -> bool:
    """Whether errors of this kind have texts that are written for people."""
    return isinstance(error, OSError | ImportError | RuntimeError) or type(error) is ValueError
