"""What every shipped config gives for a fixed seed, as hashes: a change that keeps behaviour keeps them.

    python tests/helpers/result_hashes.py record FOLDER     # once, before the change: what clocks decide
    python tests/helpers/result_hashes.py print FOLDER      # before and after it; compare the two lists

`record` runs each config with two prompts and keeps its folder: what `search` measured, and which trees it
chose, depends on clocks. `print` runs each again from what was measured then, and hashes the columns of
prompts, steps and trees that no clock decides. Assisted generation has one length and one threshold.
`draft_quality` needs the drafts of `treespec train draft_quality`. Use the
interpreter that treespec is installed for.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars
import yaml

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"
TREESPEC = Path(sys.executable).with_name("treespec")
BY_CLOCK = ("_s", "_j", "_bytes", "_ns")
"""Ends of the names of columns that a clock or a meter decides."""

OF_PLUGINS = ("metrics",)
"""Columns that older runs lack, and that are empty without plug-ins."""


IN_BFLOAT16 = ("draft_sources", "merged", "search_then_run", "speed", "tree_vs_chain")
"""Configs whose hashes are in bfloat16; those of the others are in float32."""


def overrides(config: dict) -> Iterator[str]:
    """Two prompts, and nothing that a clock chooses."""
    yield "prompts.count=2"
    dtype = "bfloat16" if config["name"] in IN_BFLOAT16 else "float32"
    for key, value in (("dtype", dtype), ("passes", "eager"), ("draft_passes", "eager")):
        if config["models"].get(key, "fastest") in ("fastest", "auto"):
            yield f"models.{key}={value}"
    yield "meters=[]"
    for i, method in enumerate(config["methods"]):
        if method["kind"] == "assisted":
            yield f"methods.{i}.lengths=[4]"
            yield f"methods.{i}.thresholds=[0.0]"
    if "search" in config:
        yield "search.repeats=3"


def decode(name: str, folder: Path) -> list[Path]:
    """Run a shipped config into a folder, or go on there; the folders of its runs."""
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    command = "sweep" if "sweep" in config else "run"
    subprocess.run(
        [TREESPEC, command, name, *overrides(config), "--out", folder, "--quiet"], check=True
    )
    return sorted(folder.glob("jobs/*/run")) if command == "sweep" else [folder]


def forget(run: Path) -> None:
    """Take from a run all but what was measured before it, as if it had been killed then."""
    for name in ("prompts", "steps", "trees"):
        (run / f"{name}.jsonl").unlink(missing_ok=True)
        (run / f"{name}.parquet").unlink(missing_ok=True)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))


def hash_of(run: Path) -> str:
    """Of all rows of a run, but for what clocks decide."""
    digest = hashlib.sha256()
    for name in ("prompts", "steps", "trees"):
        table = polars.read_parquet(run / f"{name}.parquet")
        kept = sorted(
            column
            for column in table.columns
            if not column.endswith(BY_CLOCK) and column not in OF_PLUGINS
        )
        digest.update(json.dumps([kept, table.select(kept).rows()]).encode())
    return digest.hexdigest()[:16]


def main(command: str, folder: Path, *names: str) -> None:
    """Record, or print the hashes of, the configs named; all that are shipped by default."""
    for name in names or sorted(path.stem for path in CONFIGS.glob("*.yaml")):
        searched = "search:" in (CONFIGS / f"{name}.yaml").read_text()
        if command == "record":
            if searched and not (folder / name / "prompts.parquet").exists():
                decode(name, folder / name)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / name
            if searched:
                shutil.copytree(folder / name, copy)
                forget(copy)
            for run in decode(name, copy):
                print(name, run.parent.name if run != copy else "", hash_of(run), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
