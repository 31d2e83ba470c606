"""Pages and parts of pages, from the templates beside this file. What they are given is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["environment", "render"]


@cache
def environment() -> Environment:
    """Where templates are found, and how they are read."""
    return Environment(
        loader=PackageLoader("treespec.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """A template filled in. Only drawings and scripts of our own may come in as `Markup`.

    Args:
        template: name of a file in `templates`.
        values: that it uses; one that is missing is an error.
    """
    return Markup(environment().get_template(template).render(values))
