"""Why a text is no JSON, in words for people."""

import json

__all__ = ["why_no_json"]

_WORDS = {
    "Expecting value": "a value is missing",
    "Expecting property name": "a key in double quotes is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Unterminated string": "a text has no closing quote",
    "Invalid control character": "a text holds a line end or another control character",
    "Invalid \\": "a text holds a backslash that means nothing",
    "Extra data": "something follows the end",
    "Unexpected UTF-8 BOM": "it begins with a byte order mark",
    "Illegal trailing comma": "a comma stands before a closing bracket",
}


def why_no_json(error: Exception, place: bool = True) -> str:
    """What `json.loads` could not read, and where.

    Args:
        error: what it raised: a `ValueError`, or a `RecursionError` for deep nesting.
        place: whether line and column are named.

    Example:
        >>> try:
        ...     json.loads('{"a": }')
        ... except ValueError as error:
        ...     print(why_no_json(error))
        no JSON: a value is missing at line 1, column 7
    """
    if isinstance(error, RecursionError):
        return "no JSON that can be read: it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"no JSON: byte {error.start} is not UTF-8 text"
    if not isinstance(error, json.JSONDecodeError):
        return "no JSON that can be read: a number has too many digits"
    if not error.doc.strip():
        return "no JSON: it is empty"
    words = next((words for start, words in _WORDS.items() if error.msg.startswith(start)), None)
    where = f" at line {error.lineno}, column {error.colno}" if place else ""
    return f"no JSON: {words or 'it ends'}{where}"
