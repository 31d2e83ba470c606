"""The worst input is rejected within 500 MB, and two seconds of a machine of today; a slower machine or a
busy one, by a fixed piece of work done before and after each command, gets more in proportion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile.archives import four_gigabytes
from hostile.commands import split, write
from hostile.texts import BASE, BOMB, MERGES, ROW, shape

ROOT = Path(__file__).resolve().parents[3]
MANY_KEYS = BASE + "".join(f"k{i}: 1\n" for i in range(11_000))
WORST = {
    "a bomb with an override": ("run bad.yaml seed=3", {"bad.yaml": BASE + BOMB}),
    "a sweep of bombs": ("sweep bad.yaml sweep.seed=[1,2]", {"bad.yaml": BASE + MERGES}),
    "many keys in YAML": ("run bad.yaml", {"bad.yaml": MANY_KEYS}),
    "4 GiB of zeros, packed": ("replay bad.npz --shapes chain:2", {"bad.npz": four_gigabytes}),
    "a device for prompts": ("run ok.yaml prompts.path=/dev/zero", {}),
    "a pipe for times": ("search 0.6 --latency fifo --size 4", {}),
    "a sparse file": ("run ok.yaml prompts.path=sparse", {}),
    "a line of 40 MB": ("run ok.yaml", {"prompts.jsonl": '{"prompt": "' + "x" * 40_000_000}),
    "many brackets": ("search bad.json --size 8", {"bad.json": "[" + "[]," * 5_000_000 + "[]]"}),
    "many objects": ("search bad.json --size 8", {"bad.json": "[" + '{"a":1},' * 340_000 + "1]"}),
    "many short prompts": ("run ok.yaml", {"prompts.jsonl": ROW * 1_000_000}),
    "a large tree": ("replay good.npz --shapes kary:1000x1000", {}),
    "a large tree in a config": (
        "run bad.yaml",
        {"bad.yaml": shape("kind: expansion, branching: [100000, 100000]")},
    ),
    "a long chain": ("run bad.yaml", {"bad.yaml": shape("kind: chain, depth: 999999999")}),
    "a wide trace": ("trace ok.yaml --out new.npz --width 1000000000", {}),
}  # fmt: skip

USUAL_S = 0.05
"""What the piece of work takes on an AMD EPYC of 2026 with AVX-512."""

MEASURED = """
import json, os, resource, sys, time
import treespec.experiments.lossless.check, treespec.experiments.search_then_run.estimate
import treespec.experiments.search_then_run.profile.commands
import treespec.experiments.run.runner, treespec.experiments.sweep.sweep
import treespec.experiments.search_then_run.commands, treespec.experiments.search_then_run.traces
import transformers, treespec.search.formats, treespec.search.rates.trace
from treespec.experiments.cli.main import main


def run(line):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        space = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (space + 700 * 2**20,) * 2)
        try:
            main(line)
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            os._exit(99)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def slowness():
    start = time.process_time()
    for number in range(200_000):
        f"{number % 1000:>8}".strip().partition("7")
    return max(1.0, (time.process_time() - start) / USUAL_S)


_, _, before = run(["configs"])  # what the imports take
for name, line in json.load(sys.stdin).items():
    slower = slowness()
    code, seconds, memory = run(line)
    print(json.dumps([name, code, seconds / max(slower, slowness()), memory - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worst_is_refused_within_two_seconds_and_500_mb(folder):
    lines = {}
    for number, (name, (line, files)) in enumerate(WORST.items()):
        own = {f"{number}-{file}": content for file, content in files.items()}
        for file in files:  # each has files of its own
            line = line.replace(file, f"{number}-{file}")
        if "prompts.jsonl" in files:
            own[f"{number}.yaml"] = BASE.replace("prompts.jsonl", f"{number}-prompts.jsonl")
            line = line.replace("ok.yaml", f"{number}.yaml")
        write(folder, own)
        lines[name] = split(line)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"USUAL_S = {USUAL_S}\n{MEASURED}"],
        input=json.dumps(lines), cwd=folder, env=environment, text=True, capture_output=True,
        timeout=200, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == list(WORST)
    wrong = [row for row in found if row[1] != 2 or row[2] > 2 or row[3] > 500 * 2**20]
    assert not wrong, f"name, exit code, seconds, bytes: {wrong}"
