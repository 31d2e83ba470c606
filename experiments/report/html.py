"""Pages and parts of pages, rendered from the templates beside this file; all values are escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def environment() -> Environment:
    return Environment(
        loader=PackageLoader("treespec.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template. Only drawings and scripts of our own may be passed as `Markup`."""
    return Markup(environment().get_template(template).render(values))
