"""The errors that treespec raises. Every message says what was given, what is allowed, and what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

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
    "about",
    "for_people",
    "in_words",
    "one_line",
    "said",
    "text_of",
    "visible",
]

_LONGEST_QUOTE = 300
"""Characters quoted of the message of another library's error."""


class TreespecError(Exception):
    """Base class of all errors that treespec raises on purpose."""

    role: str | None = None
    """The model of a pair that an error in loading is about, `target` or `draft`. Without one its message
    begins with the name of an argument."""

    def __format__(self, spec: str) -> str:
        return format(text_of(self), spec)


@contextmanager
def about(role: str) -> Iterator[None]:
    """Let errors that are raised within say which model of a pair they are about."""
    try:
        yield
    except TreespecError as error:
        error.role = error.role or role
        raise


class InvalidArgument(TreespecError, TypeError):
    """An argument of a type that a function cannot use: a list for a tensor, a tensor for a tree."""


class InvalidTree(TreespecError, ValueError):
    """A parent array, path list or token tree that is not a tree in the sense of `TreeShape`."""


class RefusedTree(TreespecError, TypeError):
    """An acceptance rule was given a tree whose law or shape it does not cover."""


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
    """A number of new tokens that is not a positive integer."""


class InvalidPlugin(TreespecError, ValueError):
    """A plug-in that cannot be loaded, or registers something it must not."""


class InvalidSampling(TreespecError, ValueError):
    """A sampling setting outside its range."""


class InvalidSetting(TreespecError, ValueError):
    """A setting that an acceptance rule does not have, or a value outside its range."""


class InvalidPrompt(TreespecError, ValueError):
    """A prompt that is not a row of token ids of the model."""


class NotADistribution(TreespecError, ArithmeticError):
    """Values given as probabilities that are not a distribution; no token is ever drawn from them."""


class InvalidStop(TreespecError, ValueError):
    """A stop string that would end every text."""


class EmptyPrompt(TreespecError, ValueError):
    """A prompt without tokens: there is no committed token to serve as the root of a tree."""


class ContextOverflow(TreespecError, ValueError):
    """Prompt, new tokens and tree together do not fit in a model's context."""


class LoadError(TreespecError, OSError):
    """A model or tokenizer that cannot be read from the given location."""


class TokenizerMismatch(TreespecError, ValueError):
    """Draft and target use different tokenizers, so drafted ids mean different text."""


class CannotEnlarge(TreespecError, ValueError):
    """A size that a model cannot be enlarged to."""


class UnsupportedModel(TreespecError, TypeError):
    """A model that cannot verify trees exactly; the message gives the reason."""


class StaleScores(TreespecError, RuntimeError):
    """Logits were read after a later step had reused their memory."""


class Unavailable(TreespecError, NotImplementedError):
    """The requested implementation does not exist here, or cannot handle its input; or a quantity cannot be
    read on this machine."""


class Unreadable(TreespecError, ValueError):
    """A file or text that cannot be read: missing, of the wrong kind, or beyond the stated limits."""

    def __init__(self, said: str, line: int | None = None, column: int | None = None) -> None:
        self.said, self.line, self.column = said, line, column
        super().__init__(said if line is None else f"line {line}, column {column}: {said}")


_WRITTEN_FOR_PEOPLE = (OSError, ImportError, RuntimeError, ValueError)
"""Errors of other libraries whose messages are sentences."""


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys instead of showing it, but for line ends and tabs; and halves of characters."""


def visible(text: str) -> str:
    """The text with all control characters as Python writes them, such as `\\x1b`; lines stay lines."""
    return _CONTROL.sub(
        lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n")
    )


def one_line(text: str) -> bool:
    """Whether a text has no line ends, tabs or other control characters."""
    return visible(text) == text and not {"\n", "\t"} & set(text)


def text_of(error: BaseException) -> str:
    """What an error says; errors of plug-ins may fail even at that."""
    try:
        return str(error)
    except (Exception, SystemExit):
        return f"{type(error).__name__}, whose message cannot be printed"


def said(error: BaseException) -> str | None:
    """The first sentence of an error of another library, if its message is written for people."""
    text = re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(text_of(error).split()))[0].rstrip(".")
    return text if isinstance(error, _WRITTEN_FOR_PEOPLE) and for_people(text) else None


def in_words(error: BaseException, doing: str) -> str:
    """What went wrong, in one line, for messages and records; `doing` says what was running.

    Of the messages of other libraries only the first line is used: later lines are often stack frames.
    """
    from attention_masks.errors import AttentionMaskError  # which imports torch: seconds

    if isinstance(error, TreespecError | AttentionMaskError):
        return " ".join(text_of(error).split())
    if isinstance(error, SystemExit):
        return f"{doing} ends the program (sys.exit)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = (text_of(error).strip().splitlines() or [""])[0][:_LONGEST_QUOTE]
    if isinstance(error, _WRITTEN_FOR_PEOPLE) and for_people(text):
        return text
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}".strip()
    return f"an error inside {doing}: {text}"


def for_people(text: str) -> bool:
    """Whether a text is a sentence for people, without the names of classes."""
    return " " in text and not re.search(r"Error\b|Exception\b|<class|__|\bobject\b", text)
