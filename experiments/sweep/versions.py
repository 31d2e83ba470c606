"""Which code and packages a sweep was planned with: its workers must run the same."""

from collections.abc import Mapping
from typing import Any

from treespec.experiments.records.manifest import environment

__all__ = ["different_versions", "versions_here"]

PACKAGES = ("python", "torch", "transformers", "tokenizers", "triton")


def versions_here() -> dict[str, Any]:
    """What decides about results, of this process."""
    here = environment()
    return {
        "treespec": here["treespec_version"],
        "git": here["git_hash"],
        **{name: here["versions"][name] for name in PACKAGES},
    }


def different_versions(planned: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """`torch: 2.13.0 was planned, 2.12.1 is here`, for all that differ.

    What was not noted when the sweep was planned (by an older treespec) cannot be told to differ.
    """
    return [
        f"{name}: {planned[name]} was planned, {here.get(name)} is here"
        for name in planned
        if planned[name] != here.get(name)
    ]
