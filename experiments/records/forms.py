"""Forms of JSON data: declare what a file must hold, and find the first place where it does not.

A form is a type that pydantic can check, such as `dict[str, COUNT | None]`, or an object by `with_keys`.
No value is converted: 1 is not text, and neither true nor 1.0 is a whole number.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from treespec.errors import TreespecError, Unreadable
from treespec.files import parse_json, read_bytes
from treespec.reading_models import problems

__all__ = ["COUNT", "DATA", "NAME", "NUMBER", "misfit", "parsed", "with_keys"]

COUNT = Annotated[int, Field(ge=0, lt=2**63)]
NUMBER = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NAME = Annotated[str, Field(min_length=1)]
DATA = dict[str, Any]


def with_keys(forms: Mapping[str, Any]) -> Any:
    """The form of an object with these keys; one that ends with `?` may be missing.

    Keys that are not named are ignored, because newer versions may write more.
    """
    fields: dict[str, Any] = {
        key.removesuffix("?"): (form, None if key.endswith("?") else ...)
        for key, form in forms.items()
    }
    return create_model("Form", __config__=ConfigDict(strict=True), **fields)


def parsed(path: Path, error: type[TreespecError], way_out: str = "", form: Any = Any) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        error: the class of the error to raise.
        way_out: what the user can do, for the message; empty if the caller adds it or handles the error.
        form: what the file must hold; by default anything.

    Raises:
        TreespecError: `error`, if the file cannot be read, is not JSON, or does not have this form.
    """
    advice = f"; {way_out}" if way_out else ""
    try:
        content = read_bytes(path)
    except Unreadable as problem:
        raise error(f"{problem}{advice}") from problem
    try:
        data = parse_json(content, constants=True)
    except Unreadable as problem:
        raise error(f"{path} is damaged: not JSON: {problem}{advice}") from problem
    if wrong := misfit(data, form):
        raise error(f"{path} is damaged: {wrong}{advice}")
    return data


def misfit(data: Any, form: Any) -> str | None:
    """Where data departs from a form first, such as `key = value: must be ...`; None if it has the form."""
    try:
        TypeAdapter(form).validate_python(data, strict=True)
    except ValidationError as error:
        return problems(data, error, "it")[0]
    return None
