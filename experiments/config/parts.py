"""List the parts that configs can name, with a line about each: built-in ones and those of plug-ins."""

from typing import Any, get_args

from treespec import plugins
from treespec.experiments.config import schema as _ours  # noqa: F401  (registers built-in parts)
from treespec.experiments.config.base import about_law
from treespec.experiments.config.shapes import AnyShape
from treespec.models.known_models import KNOWN
from treespec.plugins import Part, first_line
from treespec.tree import Law
from treespec.verify import Rule


def listed() -> dict[str, list[dict[str, Any]]]:
    """The parts of each kind: name, one line about it, origin, and facts specific to the kind."""
    return {
        "rules": [_rule(part) for part in plugins.parts("rule").values()],
        "laws": [
            {"name": str(law), "about": about_law(law), "origin": plugins.OURS} for law in Law
        ],
        "shapes": [
            {
                "name": get_args(shape.model_fields["kind"].annotation)[0],
                "about": first_line(shape),
                "origin": plugins.OURS,
                "settings": [key for key in shape.model_fields if key != "kind"],
            }
            for shape in get_args(get_args(AnyShape)[0])
        ],
        "growths": [_with_settings(part, "kind") for part in plugins.parts("growth").values()],
        "sources": [
            _with_settings(part, "source")
            | {"laws": sorted(map(str, part.laws)), "trees": part.trees}
            for part in plugins.parts("source").values()
        ],
        "processors": [
            _with_settings(part, "processor") for part in plugins.parts("processor").values()
        ],
        "metrics": [_plain(part) for part in plugins.parts("metric").values()],
        "models": [
            {"name": name, "about": f"from the wheel {model.wheel}", "origin": plugins.OURS}
            for name, model in KNOWN.items()
        ],
    }


def _plain(part: Part) -> dict[str, Any]:
    return {"name": part.name, "about": part.about, "origin": part.origin}


def _with_settings(part: Part, key: str) -> dict[str, Any]:
    assert part.settings is not None
    settings = [name for name in part.settings.model_fields if name != key]
    return _plain(part) | {"settings": settings}


def _rule(part: Part) -> dict[str, Any]:
    rule: Rule = part.make
    return _plain(part) | {
        "laws": sorted(map(str, rule.laws)),
        "lossless": rule.lossless,
        "settings": list(rule.settings),
        "reference": rule.reference,
    }
