"""The looks of a run with `until`, as recorded in its manifest, and their effect on the verdict."""

from collections.abc import Mapping
from typing import Any

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.sequential import boundary_at

__all__ = ["ENDED_EARLY", "REPEATED", "boundary_of", "ended_early", "ending"]

ENDED_EARLY = (
    "The run ended early because this interval excluded 1: an estimate that ends a run lies too far from 1 "
    "on average. The interval allows for that."
)

REPEATED = "Repeated intervals allow for all looks that a run may take."


def boundary_of(
    manifest: Mapping[str, Any], sampling: str, samples: int, tried: int
) -> float | None:
    """The boundary of repeated intervals at the current state of a run, through Student's t.

    Between two looks it is the boundary of a look taken now.

    Args:
        manifest: manifest of the run.
        sampling: name of the setting.
        samples: number of prompts, or files, compared under the setting.
        tried: number of prompts decoded under the setting.

    Returns:
        None for runs without `until`; infinity if nothing can be decided yet.
    """
    if manifest["config"].get("until") is None:
        return None
    planned = manifest["planned"]
    earlier = [
        look["samples"]
        for look in manifest.get("looks") or ()
        if look["sampling"] == sampling and look["prompts"] < tried
    ]
    return boundary_at(samples, planned["samples"], earlier, last=tried >= planned["prompts"])


def ending(manifest: Mapping[str, Any]) -> str | None:
    """The state of a run with `until`, such as `stopped after 18 of 60 prompts: decided`.

    None before the first look and for runs without `until`.
    """
    looks = manifest.get("looks") or []
    if not looks:
        return None
    after, planned = looks[-1]["prompts"], manifest["planned"]["prompts"]
    met = all(look["decided"] for look in looks if look["prompts"] == after)
    until = manifest["config"]["until"]
    if until["decided"]:
        outcome = "decided" if met else "not decided"
    else:
        narrower = "narrower" if met else "not narrower"
        outcome = f"half the interval is {narrower} than {until['half_width']:g}"
    if after == planned:
        return f"went through all {planned} prompts: {outcome}"
    return f"{'stopped' if met else 'looked'} after {after} of {planned} prompts: {outcome}"


def ended_early(run: RunRecords) -> bool:
    """Whether the run ended before its last planned prompt because the verdict was decided."""
    looks = run.manifest.get("looks") or []
    until = run.manifest["config"].get("until")
    if not run.finished or not looks or until is None or not until["decided"]:
        return False
    return looks[-1]["prompts"] < run.manifest["planned"]["prompts"]
