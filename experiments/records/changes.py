"""What differs between two configs, two machines, and the methods of two runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.config.build import Experiment
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.manifest import NO_PART, method_data

__all__ = ["changes_of_machine", "differences", "drafted", "require_same_methods"]


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """The places in which two configs differ, as `path: before -> after`, but for where rows go."""
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
    """Packages and hardware of a session that are not those of the run's start; none if it kept none."""
    keys = [key for key in ("versions", "hardware") if key in session]
    before, after = ({key: side.get(key) for key in keys} for side in (manifest, session))
    return differences(before, after)


def require_same_methods(folder: Path, experiment: Experiment, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with other methods than a run was started with, as another version may make them.

    Raises:
        RunFolderError: with the first difference.
    """
    known = list(manifest["methods"])
    asked = json.loads(json.dumps([method_data(method) for method in experiment.methods]))
    if len(known) == len(asked):
        pairs = list(zip(known, asked, strict=True))
        known = [{"name": a["name"], **drafted(a, b)} for a, b in pairs]
        asked = [{"name": b["name"], **drafted(b, a)} for a, b in pairs]
    changed = differences(known, asked, "methods")
    if changed:
        raise RunFolderError(
            f"{folder}: this code makes other methods of the config than the run was started with "
            f"({changed[0]}): finish it with the code of then ({manifest.get('git_hash')}), give another "
            "folder with --out, or start over with --fresh"
        )


def drafted(method: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How a method drafts and decides, as far as both manifests say it.

    Files count by what is in them, as each run has its own. Older manifests have only their paths.
    """
    keys = ("draft", "parents", "growth", "law", "rule", "settings")
    told = {key: method[key] for key in keys if key in method and key in other}
    if told.get("growth") and other["growth"]:
        told["growth"] = {k: v for k, v in told["growth"].items() if k in other["growth"]}
    files = [side.get("files") or {} for side in (method, other)]
    known = [key for key in files[0] if files[0][key] and files[1].get(key)]
    if known:
        told["files"] = {key: files[0][key] for key in known}
        if told.get("growth"):
            told["growth"] = {k: v for k, v in told["growth"].items() if k not in known}
    return told
