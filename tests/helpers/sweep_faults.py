"""What SIGKILL at random moments does to a sweep: an unbroken one beside one that is killed and resumed.

    PYTHONPATH=tests/helpers python -m sweep_faults [--kills 10] [--workers 2] [--seed 0]

Half of the kills, by lot, hit a worker (its job is tried again), the other half the sweep itself (its
workers end with it, the same command resumes). Then every column that holds no time must be the same.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from treespec.experiments.research.benchmarks.results_file import save

__all__ = ["inject", "main"]

SWEEP = (
    "smoke",
    "max_new_tokens=8",
    "methods.2.lengths=[2]",  # one length: nothing is tuned by the clock
    "sweep.seed=[0,1,2]",
    "sweep.methods.3.shape=[{kind: chain, depth: 2}, {kind: kary, branching: 3, depth: 1}]",
)
PATIENCE_S = 600.0


def start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start the sweep, or go on with it."""
    command = [
        sys.executable,
        "-c",
        "from treespec.experiments.cli.main import app; app()",
        "sweep",
        *SWEEP,
    ]
    options = ["--executor", "local", "--workers", str(workers), "--retries", "99", "-q"]
    options += ["--out", str(folder), "--allow-versions"]
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a sweep that nobody disturbs.

    Raises:
        RuntimeError: if it fails.
    """
    if (code := process.wait(PATIENCE_S)) != 0:
        raise RuntimeError(f"the sweep ended with exit code {code}")


def inject(
    folder: Path, workers: int, kills: int, lasts: float, chance: random.Random
) -> Counter[str]:
    """Kill workers and the sweep at random moments until all kills are spent, then let it finish.

    Args:
        folder: of the sweep.
        workers: side by side.
        kills: how many.
        lasts: seconds of an unbroken sweep: a kill comes within a fifth of it.
        chance: decides when and whom.

    Returns:
        How often a worker and the sweep were hit.
    """
    hit: Counter[str] = Counter()
    process = start(folder, workers)
    while sum(hit.values()) < kills:
        time.sleep(chance.uniform(0.0, lasts / 5))
        if process.poll() is not None:  # it finished before the kill
            if hit.total() < kills:
                hit["nobody: finished"] += 1
            break
        victims = psutil.Process(process.pid).children()
        if victims and chance.random() < 0.5:
            chance.choice(victims).send_signal(signal.SIGKILL)
            hit["worker"] += 1
            continue
        process.kill()
        process.wait()
        hit["sweep"] += 1
        _, left = psutil.wait_procs(victims, timeout=20)
        hit["orphans"] += len(left)
        process = start(folder, workers)
    finish(process)
    return hit


def compare(whole: Path, broken: Path) -> dict[str, Any]:
    """Rows lost, rows doubled, and whether all columns without times are equal."""
    import polars as pl
    from sweep_tables import without_times

    key = ["job", "prompt", "sampling", "method"]
    found: dict[str, Any] = {}
    for name in ("prompts", "summary"):
        ours, theirs = (
            without_times(pl.read_parquet(path / f"{name}.parquet")) for path in (whole, broken)
        )
        found[name] = {"rows": len(ours), "equal": ours.equals(theirs)}
        if name == "prompts":
            lost = ours.join(theirs, on=key, how="anti")
            found[name] |= {"lost": len(lost), "doubled": len(theirs) - len(theirs.unique(key))}
    return found


def main() -> None:
    """Run both, print and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch) / "whole", Path(scratch) / "broken"
        begun = time.perf_counter()
        finish(start(whole, given.workers))
        lasts = time.perf_counter() - begun
        print(f"unbroken: {lasts:.0f} s")
        hit = inject(broken, given.workers, given.kills, lasts, random.Random(given.seed))
        attempts = len(list((broken / "jobs").glob("*/attempts/*.json")))
        figures: dict[str, Any] = {
            "kills": dict(hit),
            "jobs": len(list((broken / "jobs").iterdir())),
            "attempts": attempts,
            "unbroken_s": round(lasts, 1),
            **compare(whole, broken),
        }
    print(figures)
    print(f"saved: {save('sweep_faults', figures)}")
    if not all(figures[name]["equal"] for name in ("prompts", "summary")):
        sys.exit("the resumed sweep differs from the unbroken one")


if __name__ == "__main__":
    main()
