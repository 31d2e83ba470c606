"""The looks of a run with `until`, as its manifest tells them, and what they mean for its verdict."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treespec.experiments.report.sequential import boundary_at

if TYPE_CHECKING:
    from treespec.experiments.records.loading import RunRecords

__all__ = ["ENDED_EARLY", "REPEATED", "boundary_of", "ended_early", "ending"]

ENDED_EARLY = (
    "The run ended early because this interval excluded 1: an estimate that ends a run lies too far from 1 "
    "on average. The interval allows for that."
)

REPEATED = "Repeated intervals allow for all looks that a run may take."


def boundary_of(
    manifest: Mapping[str, Any], sampling: str, samples: int, tried: int
) -> float | None:
    """The boundary of repeated intervals for what has been decoded, through Student's t.

    Between two looks it is that of a look that were taken now.

    Args:
        manifest: of the run.
        sampling: name of the setting.
        samples: prompts, or files, that are compared under it.
        tried: prompts that were decoded under it.

    Returns:
        None for runs without `until`; infinite where nothing could be decided yet.
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
    """How a run with `until` stands, such as `stopped after 18 of 60 prompts: decided`.

    None before the first look, and for runs without.
    """
    looks = manifest.get("looks") or []
    if not looks:
        return None
    after, planned = looks[-1]["prompts"], manifest["planned"]["prompts"]
    clear = all(look["decided"] for look in looks if look["prompts"] == after)
    until = manifest["config"]["until"]
    if until["decided"]:
        why = "decided" if clear else "not decided"
    else:
        wide = "narrower" if clear else "not narrower"
        why = f"half the interval is {wide} than {until['half_width']:g}"
    if after == planned:
        return f"went through all {planned} prompts: {why}"
    return f"{'stopped' if clear else 'looked'} after {after} of {planned} prompts: {why}"


def ended_early(run: "RunRecords") -> bool:
    """Whether the run ended before its last planned prompt because trees and chains were told apart."""
    looks = run.manifest.get("looks") or []
    until = run.manifest["config"].get("until")
    if not run.finished or not looks or until is None or not until["decided"]:
        return False
    return looks[-1]["prompts"] < run.manifest["planned"]["prompts"]
