"""The experiment that faults happen to, its unbroken run, and what is said of a fault."""

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.process import start
from fault_injection.rows import differences, unit_of

CONFIG = """\
name: faults
models: {target: embedded, dtype: float32}
prompts: {kind: embedded, count: PROMPTS, tokens: 16}
max_new_tokens: 3
warmup: 0
meters: [memory]
samplings:
  - {temperature: 0}
  - {temperature: 1}
methods:
  - {kind: generate}
  - {kind: plain}
  - {kind: assisted, lengths: [2], thresholds: [0.0]}
  - {kind: tree, shape: {kind: expansion, branching: [2, 1]}}
  - {kind: tree, draft: {source: repeat, n: 2}, shape: {kind: budget, depth: 3}, rule: mine}
  - {kind: tree, shape: {kind: twins, depth: 2}, law: deterministic}
"""
"""All take turns by steps. One length and one threshold: those of assisted generation would be tuned
by the clock."""

PLUGIN = Path(__file__).parents[1] / "plugins" / "four_parts.py"
"""Has the parts of the last two trees."""


@dataclass(frozen=True)
class Case:
    """A fault, and what was not as it should be after it.

    Args:
        fault: what kind.
        what: where or when it happened.
        wrong: empty if all is well.
    """

    fault: str
    what: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """Where everything is.

    Args:
        work: folder of all runs.
        config: the experiment's file.
        reference: folder of the unbroken run.
        seconds: that it took.
        rows: of a finished unit, those of the plain baseline's twin among them.
    """

    work: Path
    config: Path
    reference: Path
    seconds: float
    rows: int = 0

    def arguments(self, folder: Path) -> list[str]:
        """Of the command that starts or resumes a run; one that goes on finds the plug-in in its folder."""
        named = stage_of(folder) == "before decoding"
        plugin = ["--plugin", os.fspath(PLUGIN)] if named else []
        return ["run", os.fspath(self.config), "--out", os.fspath(folder), "-q", *plugin]


def prepare(work: Path, prompts: int) -> Setting:
    """Write the experiment and run it without any fault, twice: the first starts the process to fork from.

    Args:
        work: folder of all runs.
        prompts: of the experiment; each is run under two sampling settings.

    Raises:
        RuntimeError: if even that fails, or the two differ.
    """
    config = work / "faults.yaml"
    text = CONFIG.replace("PROMPTS", str(prompts))
    config.write_text(text, encoding="utf-8")
    setting = Setting(work, config, work / "reference", 0.0)
    seconds = 0.0
    for folder in (setting.reference, work / "again"):
        begin = time.perf_counter()
        done = start(setting.arguments(folder), work).wait()
        seconds = time.perf_counter() - begin
        if done.code:
            raise RuntimeError(f"the unbroken run failed: {done.stderr}")
    if wrong := differences(work / "again", setting.reference):
        raise RuntimeError(f"two unbroken runs differ: {'; '.join(wrong)}")
    manifest = json.loads((setting.reference / "manifest.json").read_text(encoding="utf-8"))
    if manifest["together"] < len(manifest["methods"]):
        raise RuntimeError("the methods of the unbroken run do not all take turns")
    log = (setting.reference / "prompts.jsonl").read_bytes().splitlines()
    (rows,) = set(Counter(map(unit_of, log)).values())
    return replace(setting, seconds=seconds, rows=rows)


def stage_of(folder: Path) -> str:
    """How far a run has come."""
    path = folder / "manifest.json"
    if not path.exists():
        return "before decoding"
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["config_hash"] is None:
        return "before decoding"
    return "while decoding" if data["finished"] is None else "after decoding"
