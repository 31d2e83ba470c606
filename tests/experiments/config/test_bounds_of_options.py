"""Absurd numbers and trees on the command line: exit code 2 and one message, before any work is done."""

import json
from pathlib import Path

import pytest
from hostile.commands import require_refused
from hostile.texts import DIGITS, shape

from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import JsonlPrompts
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.search_then_run.replays import read_shapes

MANY = ",".join(map(str, range(1, 3001)))
WORDS = [
    "chain:1000000000", f"chain:{DIGITS}", "chain:²", "chain:-5", "chain:1e9", "kary:1000x1000",
    "kary:2x1000000", "kary:2x16000", "kary:1x1000000000", "kary:1000000000x1", "chains:10000x10000",
    "chains:1x1000000000", "expansion:100000x100000", f"expansion:{'x'.join(['2'] * 5000)}",
    "kary:2x0x0", "n" * 5000,
]  # fmt: skip
NUMBERS = {
    "search 0.6,0.2 --size 1000000000": "--size",
    f"search 0.6 --size {DIGITS}": "--size",
    "search 0.6,0.2 --size 8 --branching 1000000000": "branching = 1000000000",
    "search 1e999 --size 8": "acceptance[0]",
    "search 0.6,0.2 --latency latency.json --size 1000000000": "--size",
    f"search 0.6,0.2 --latency latency.json --size 9 --prefix {'9' * 300}": "--prefix",
    "search 0.6,0.2 --latency latency.json --size 9 --batch 1000000000000": "--batch",
    "trace ok.yaml --out new.npz --width 1000000000": "--width",
    "trace ok.yaml --out new.npz --beyond 1000000000000": "--beyond",
    "profile ok.yaml --out new.json --sizes 1,2,1000000000": "sizes",
    f"profile ok.yaml --out new.json --sizes {DIGITS}": "--sizes",
    f"profile ok.yaml --out new.json --sizes {MANY}": "sizes",
    "profile ok.yaml --out new.json --prefixes 1000000000000": "prefixes",
    "profile ok.yaml --out new.json --repeats 1000000000000": "repeats",
    "check-lossless ok.yaml --samples 1000000000000": "--samples",
    "check-lossless ok.yaml --tokens 1000000000000": "--tokens",
    "check-lossless ok.yaml --prompts 1000000000000": "--prompts",
    "estimate good.npz --by depth --depth 1000000000": "--depth",
    "estimate good.npz --ranks 1000000000": "--ranks",
    "estimate missing.npz --by depth --depth 0": "--depth = 0: must be at least 1",
    "estimate missing.npz --ranks 0": "--ranks = 0: must be at least 1",
    "check-lossless missing --samples 0": "--samples = 0: must be at least 1",
    "trace ok.yaml samplings=[{},{temperature:\u00a01}] --out new.npz --width 0": "--width",
    "estimate good.npz --by depth --shrinkage 1e400": "shrinkage",
    f"sweep ok.yaml sweep.seed=[0,1] --executor slurm --slurm time={DIGITS}": "--slurm",
}


def cases():
    """Cases by description: command line, files, words of the message."""
    for word in WORDS:
        yield f"words: {word[:40]}", ["replay", "good.npz", "--shapes", word], {}, ["--shapes"]
    for line, word in NUMBERS.items():
        yield f"number: {line[:90]}", line, {}, [word]


CASES = {name: rest for name, *rest in cases()}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(name, folder, monkeypatch):
    require_refused(folder, monkeypatch, *CASES[name])


def test_there_are_many_kinds():
    assert len(CASES) >= 30


def test_what_is_large_and_good_is_still_read(tmp_path, monkeypatch):
    """The limit itself is still accepted."""
    monkeypatch.chdir(tmp_path)
    largest = {
        "chain:16383": 16384,
        "kary:2x13": 16383,
        "chains:128x127": 16257,
        "expansion:16383": 16384,
    }
    assert {word: tree.size for word, tree in read_shapes(",".join(largest)).items()} == largest
    for text in (
        "kind: chain, depth: 16383",
        "kind: kary, branching: 2, depth: 13",
        "kind: eagle2, k: 80, depth: 11, size: 4096",
    ):
        Path("large.yaml").write_text(shape(text))
        build(load_config("large.yaml", ["max_new_tokens=10000000", "repeats=10000"]))
    line = json.dumps({"prompt": "x" * 5_000_000, "more": [[1.5, -2, None]], "x": float("nan")})
    Path("long.jsonl").write_text("\ufeff" + line + "\r\n\n" + line)
    prompts = read_prompts(JsonlPrompts(kind="jsonl", path="long.jsonl"))
    assert [(len(prompt.text), prompt.id) for prompt in prompts] == [
        (5_000_000, "1"),
        (5_000_000, "3"),
    ]
