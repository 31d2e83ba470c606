"""Measure the time and memory of the command `treespec search` on files, in processes of its own."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from treespec.search import Trace

__all__ = ["measured_process", "search_times"]

REPEATS = 3

MEASURED = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
seconds = time.perf_counter() - start
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
print(json.dumps({"seconds": seconds, "gigabytes": most}))
"""
"""A program that runs a command and measures it.

It runs in a small process of its own, since a child process is reported to have used at least as much
memory as the process that started it.
"""


def measured_process(*command: str) -> dict[str, float]:
    """Measure a command: seconds, including the start of its process, and peak memory in GiB.

    Raises:
        subprocess.CalledProcessError: if the command fails.
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def search_times(traces: Mapping[str, Path], latency: Path) -> dict[str, Any]:
    """Measure `treespec search TRACE --latency L` on each trace: median seconds and peak memory."""
    cli, times = (sys.executable, "-m", "treespec.experiments.cli"), {}
    for name, path in track(traces.items(), description="time"):
        trace = Trace.load(path)
        runs = [
            measured_process(*cli, "search", str(path), "--latency", str(latency))
            for _ in range(REPEATS)
        ]
        times[name] = {
            "texts": trace.texts,
            "positions": len(trace.tokens),
            "beam": trace.draft_rows is not None,
            "seconds": median(run["seconds"] for run in runs),
            "gigabytes": max(run["gigabytes"] for run in runs),
        }
    return times
