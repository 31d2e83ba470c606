"""The manifest of a run: config, code, versions, hardware, models, methods."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from treespec.errors import Unreadable
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.places import texts_in
from treespec.experiments.config.plugged import told
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.config.trained import heads_in
from treespec.experiments.records.machine_load import allowed_cores
from treespec.experiments.records.schema_version import SCHEMA_VERSION
from treespec.files import open_file
from treespec.plugins import parts

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "triton",
    "numpy",
    "scipy",
    "polars",
    "scikit-learn",
)

GROWTH_FILES = ("calibration", "latency")

_DRAFT_FILES = ("warm", "datastore", "file", "files", "texts")

_ROOT = Path(__file__).resolve().parents[2]

NO_PART = ("output", "tracker")
"""Keys of a config that say where rows go, but do not affect the rows."""


def new_manifest(
    experiment: Experiment,
    prompts_hash: str,
    samples: Sequence[int] | None,
    prompts_revision: str | None,
    prompt_texts: Sequence[str],
    models: Mapping[str, Any],
    tuning: Mapping[str, Any],
    warmup: Mapping[str, Any],
    meters: Mapping[str, Any],
    together: int,
    twins: Mapping[str, str],
    groups: Sequence[Sequence[str]],
    planned: Mapping[str, int],
) -> dict[str, Any]:
    config = experiment.config
    session = session_data(meters)
    return {
        "schema_version": SCHEMA_VERSION,
        "name": config.name,
        "config": config_data(config),
        "config_hash": config_hash(config),
        **told(),
        "metrics": {name: part.about for name, part in parts("metric").items()},
        "prompts_hash": prompts_hash,
        "samples": samples,
        "prompts_revision": prompts_revision,
        "prompt_texts": list(prompt_texts),
        "created": session["started"],
        "finished": None,
        "sessions": [session],
        **environment(),
        "seed": config.seed,
        "models": dict(models),
        "methods": [method_data(method) for method in experiment.methods],
        "samplings": [{"name": s.name, **s.model_dump()} for s in config.samplings],
        "tuning": dict(tuning),
        "warmup": dict(warmup),
        "together": together,
        "twins": dict(twins),
        "groups": [list(names) for names in groups],
        "planned": dict(planned),
        "looks": [],
        "meters": dict(meters),
        "errors": 0,
    }


def environment() -> dict[str, Any]:
    return {
        "treespec_version": _version("treespec-decoding"),
        "git_hash": git_hash(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "hardware": _hardware(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def session_data(meters: Mapping[str, Any]) -> dict[str, Any]:
    about = environment()
    return {
        "started": now(),
        "git_hash": about["git_hash"],
        "versions": about["versions"],
        "hardware": about["hardware"],
        "idle_w": meters.get("idle_w", {}),
        "busy_percent": None,
    }


def with_load(manifest: dict[str, Any], busy_percent: float | None) -> dict[str, Any]:
    *earlier, latest = manifest["sessions"]
    return manifest | {"sessions": [*earlier, latest | {"busy_percent": busy_percent}]}


def config_data(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json")


def config_hash(config: Config) -> str:
    data = {key: value for key, value in config_data(config).items() if key not in NO_PART}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def method_data(method: BuiltMethod) -> dict[str, Any]:
    config = method.config if isinstance(method.config, TreeMethod) else None
    shape = method.shape if config else None
    choices, size = method.choices, getattr(method.tree, "size", None)
    growth = config.shape.model_dump(mode="json") if config and shape is None else {}
    files = {key: sha256_of(growth[key]) for key in GROWTH_FILES if growth.get(key) is not None}
    if config:
        files |= {
            path: sha256_of(file)
            for path, key, file in texts_in(config.draft.model_dump(mode="json"), "draft")
            if key in _DRAFT_FILES
        }
        heads = [head for head in heads_in([config.draft]) if head.model is not None]
        files |= {f"head {head.model}": head.sha256 for head in heads}
    return {
        "name": method.name,
        "kind": method.kind,
        "parents": None if shape is None else list(shape.parents),
        # A growth of a plug-in need not state the size of its trees.
        "size": size if config and isinstance(size, int) else None,
        "depth": method.max_depth if config else None,
        "draft": config.draft.model_dump() if config else None,
        "growth": growth or None,
        "files": files or None,
        "state": method.state,
        "law": {name: str(choice.law) for name, choice in choices.items()} or None,
        "rule": {name: str(choice.rule) for name, choice in choices.items()} or None,
        "settings": getattr(method.config, "settings", None) or None,
        "lossless": method.lossless,
    }


def sha256_of(path: str) -> str | None:
    try:
        with open_file(path, None) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # pyrefly: ignore[bad-argument-type]
    except (Unreadable, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


_RESULTS = ":(exclude)experiments/research/results"


def git_hash(root: Path = _ROOT) -> str | None:
    """The commit of a repository, with `-dirty` if tracked files differ (as in `git describe`).

    Untracked files and results of benchmarks do not count: they change no code, and a benchmark that writes
    results while it runs should not make its own commit dirty.
    """
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout

    try:
        head = git("rev-parse", "HEAD").strip()
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", _RESULTS).strip()
        return head + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware() -> dict[str, Any]:
    import psutil
    import torch

    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "cpu": _cpu_name(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cores": len(allowed_cores()),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
