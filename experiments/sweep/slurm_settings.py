"""The settings of `--slurm KEY=VALUE`: text for sbatch, and not YAML, in which 1:00:00 is 3600."""

import re
from collections.abc import Sequence
from typing import Any

from treespec.experiments.sweep.errors import SweepError
from treespec.reading import brief

__all__ = ["parse_settings"]

LISTS = ("setup", "teardown", "srun_args")
"""Settings of submitit that take several values: one for each time they are given."""

SWITCHES = ("stderr_to_stdout", "use_srun")
"""Settings of submitit that can be turned off."""


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """Keys, with underscores, and values. Whole numbers are numbers, `true` is a switch, all else is text.

    Raises:
        SweepError: if one is no key=value, or `time` is no number of minutes.
    """
    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        key = key.lstrip("-").replace("-", "_")
        if not equals or not key or not value:
            raise SweepError(f"--slurm {brief(text)}: write key=value, such as partition=gpu")
        if key == "additional_parameters":
            raise SweepError(f"--slurm {brief(text)}: give each of them by --slurm KEY=VALUE")
        parsed = _parsed(key, value)
        if key == "time" and (not isinstance(parsed, int) or parsed is True):
            raise SweepError(
                f"--slurm {brief(text)}: must be a whole number of minutes, such as time=60 for an hour"
            )
        settings[key] = [*settings.get(key, []), value] if key in LISTS else parsed
    return settings


def _parsed(key: str, value: str) -> int | bool | str:
    if re.fullmatch(r"0|[1-9][0-9]{0,17}", value):
        return int(value)
    if value == "true":  # sbatch has switches without a value, such as --requeue
        return True
    return False if value == "false" and key in SWITCHES else value
