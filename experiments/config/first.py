"""The config that `treespec init` writes: small, commented, and ready to run."""

import json
import shlex
from pathlib import Path

from treespec.experiments.config.files import require_new, write_new
from treespec.experiments.errors import ConfigError

__all__ = ["first_config", "write_first"]

TEMPLATE = Path(__file__).with_name("first.yaml")


def first_config(file: Path) -> str:
    """The text of the config for this file; the experiment is named after the file."""
    plain = file.stem.isidentifier() and file.stem.lower() not in (
        "null", "true", "false", "yes", "no", "on", "off", "y", "n",
    )  # fmt: skip
    return TEMPLATE.read_text(encoding="utf-8").format(
        name=file.stem if plain else json.dumps(file.stem, ensure_ascii=False),
        file=shlex.quote(str(file)),
    )


def write_first(file: Path) -> None:
    """Write the first config to a file.

    Raises:
        ConfigError: if the file exists, its folder does not, or its name cannot be that of an experiment.
    """
    from treespec.experiments.config.file import validated
    from treespec.reading_yaml import parse_yaml

    require_new(file, option="")
    if not str(file).isprintable():
        raise ConfigError(f"{str(file)!r}: give a name without control characters")
    text = first_config(file)
    validated(file, parse_yaml(text))
    write_new(file, text)
