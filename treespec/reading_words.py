"""Rephrase pydantic's messages in the words of ours."""

import re

__all__ = ["plain_words"]

_WORDS = (
    (r"Input should be a valid integer.*", "must be an integer"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"Input should be a valid string.*", "must be text"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (
        r"Input should be a valid (?:dictionary|mapping).*|Input should be an object.*",
        "must be a mapping",
    ),
    (r"Input should be a valid (?:list|tuple|array).*", "must be a list"),
    (r"Unable to parse input string as an integer.*", "must be an integer of fewer digits"),
    (r"String should have at least 1 character", "must not be empty"),
    (r"Field required", "is missing"),
    (r"Extra inputs are not permitted", "is unknown"),
    (r"Invalid JSON.*", "it is not JSON"),
    (r"(?:Value|Assertion) error, (.*)", r"\1"),
    (r"(?:Input|Tuple|List|String|Dictionary) should (.*)", r"must \1"),
)


def plain_words(message: str) -> str:
    """A pydantic message rephrased as `must be ...`.

    Example:
        >>> plain_words("Input should be a valid integer, unable to parse string as an integer")
        'must be an integer'
        >>> plain_words("Tuple should have at least 1 item after validation, not 0")
        'must have at least 1 item, not 0'
    """
    for pattern, words in _WORDS:
        if match := re.fullmatch(pattern, message, re.DOTALL):
            return match.expand(words).replace(" after validation", "")
    return message
