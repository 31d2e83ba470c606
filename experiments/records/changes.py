"""Differences between two configs, two machines, or the methods of two runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.manifest import NO_PART, method_data

__all__ = ["changes_of_machine", "differences", "drafted", "require_same_methods"]


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """List where two configs differ, as `path: before -> after`, ignoring keys that say where rows go."""
    if isinstance(before, dict) and isinstance(after, dict):
        changed = []
        for key in dict.fromkeys([*before, *after]):
            if path or key not in NO_PART:
                inner = f"{path}.{key}" if path else key
                changed += differences(before.get(key), after.get(key), inner)
        return changed
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]")]
    if before == after:
        return []
    if isinstance(before, list) and isinstance(after, list):
        return [f"{path}: {len(before)} entries -> {len(after)} entries"]
    return [f"{path}: {json.dumps(before)} -> {json.dumps(after)}"]


def changes_of_machine(manifest: Mapping[str, Any], session: Mapping[str, Any]) -> list[str]:
    """List where a session's packages and hardware differ from the run's start; empty if not recorded."""
    keys = [key for key in ("versions", "hardware") if key in session]
    before = {key: manifest.get(key) for key in keys}
    after = {key: session.get(key) for key in keys}
    return differences(before, after)


def require_same_methods(folder: Path, experiment: Experiment, manifest: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other methods than it was started with.

    Another version of the code may build other methods from the same config.

    Raises:
        RunFolderError: if the methods differ; gives the first difference.
    """
    before = list(manifest["methods"])
    after = json.loads(json.dumps([method_data(method) for method in experiment.methods]))
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        before = [{"name": old["name"], **drafted(old, new)} for old, new in pairs]
        after = [{"name": new["name"], **drafted(new, old)} for old, new in pairs]
    changed = differences(before, after, "methods")
    if changed:
        raise RunFolderError(
            f"{folder}: this code builds other methods from the config than the run was started with "
            f"({changed[0]}): finish it with the earlier code ({manifest.get('git_hash')}), choose another "
            "folder with --out, or start over with --fresh"
        )


def drafted(method: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How a method drafts and decides, limited to what both methods' manifests record.

    Files are compared by content, as each run has its own copies. Older manifests have only their paths.
    """
    keys = ("draft", "parents", "growth", "law", "rule", "settings")
    described = {key: method[key] for key in keys if key in method and key in other}
    if described.get("growth") and other["growth"]:
        growth = described["growth"]
        described["growth"] = {k: v for k, v in growth.items() if k in other["growth"]}
    files, other_files = method.get("files") or {}, other.get("files") or {}
    hashed = [key for key in files if files[key] and other_files.get(key)]
    if hashed:
        described["files"] = {key: files[key] for key in hashed}
        if described.get("growth"):
            growth = described["growth"]
            described["growth"] = {k: v for k, v in growth.items() if k not in hashed}
    return described
