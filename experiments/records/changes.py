"""Differences between two configs, two machines, or the methods of two runs."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.manifest import NO_PART, method_data


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """List where two configs differ, as `path: before -> after`, ignoring keys that say where rows go."""
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [
            (before.get(key), after.get(key), f"{path}.{key}" if path else key)
            for key in dict.fromkeys([*before, *after])
            if path or key not in NO_PART
        ]
    elif not isinstance(before, list) or not isinstance(after, list):
        return [] if before == after else [f"{path}: {json.dumps(before)} -> {json.dumps(after)}"]
    elif len(before) != len(after):
        return [f"{path}: {len(before)} entries -> {len(after)} entries"]
    else:
        parts = [
            (old, new, f"{path}[{i}]")
            for i, (old, new) in enumerate(zip(before, after, strict=True))
        ]
    return [line for part in parts for line in differences(*part)]


def changes_of_machine(manifest: Mapping[str, Any], session: Mapping[str, Any]) -> list[str]:
    """List where a session's packages and hardware differ from the run's start; empty if not recorded."""
    recorded = {key: session[key] for key in ("versions", "hardware") if key in session}
    return differences({key: manifest.get(key) for key in recorded}, recorded)


def require_same_methods(folder: Path, experiment: Experiment, manifest: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other methods than it was started with.

    Another version of the code may build other methods from the same config.
    """
    before = list(manifest["methods"])
    after = json.loads(json.dumps([method_data(method) for method in experiment.methods]))
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        before = [{"name": old["name"], **drafted(old, new)} for old, new in pairs]
        after = [{"name": new["name"], **drafted(new, old)} for old, new in pairs]
    changed = differences(before, after, "methods")
    if changed and (head := re.match(r"methods\[\d+\]\.files\.head (.*?): ", changed[0])):
        raise RunFolderError(
            f"{folder}: the files of the head {head[1]!r} have changed since the run was started: bring "
            "them back, choose another folder with --out, or start over with --fresh"
        )
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
    files, other_files = method.get("files") or {}, other.get("files") or {}
    hashed = {key: digest for key, digest in files.items() if digest and other_files.get(key)}
    if growth := described.get("growth"):
        shared = (other["growth"] or growth).keys() - hashed.keys()
        described["growth"] = {key: value for key, value in growth.items() if key in shared}
    return described | ({"files": hashed} if hashed else {})
