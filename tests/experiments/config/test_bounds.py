"""What is hostile or absurd is refused by stated limits: exit code 2, one message, before work is done."""

import io
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_folders.folders import write_run
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import JsonlPrompts
from treespec.experiments.errors import ConfigError, PromptError, RunFolderError
from treespec.experiments.records.manifest import config_data
from treespec.experiments.report.run import load_run
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.search_then_run.traces import read_shapes

ROOT = Path(__file__).resolve().parents[3]

BASE = """name: x
models: {target: /nowhere/model, dtype: float32}
prompts: {kind: jsonl, path: prompts.jsonl}
max_new_tokens: 4
samplings: [{temperature: 0}]
methods: [{kind: plain}]
"""
DIGITS = "9" * 5000
DEEP = "[" * 100_000
NESTED = "[" * 500 + "]" * 500
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(
    f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
)
INLINE = "[&a [1, 1, 1, 1, 1, 1, 1, 1], " + ", ".join(
    f"&{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)
INLINE += "]"
ROW = '{"prompt": "def f(x):"}\n'
LATENCY = {
    "version": 1,
    "batches": {
        "1": {"verify_ms": {"1": 1.0, "99": 2.0}, "laws": {"any": {"level_ms": 0.1}}},
    },
}
META = {
    "version": 1, "law": "deterministic", "rule": "greedy", "sampling": {"temperature": 0.0},
    "width": 2, "forced": False, "about": {},
}  # fmt: skip


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(kind, shape, data=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + data


def meta(text):
    return npy(np.frombuffer(text.encode(), np.uint8))


def archive(packing=zipfile.ZIP_DEFLATED, **changed):
    """A trace of eight positions, or one with other members."""
    members = {
        "offsets": npy(np.array([0, 8], "<i8")),
        "tokens": npy(np.zeros(8, "<i4")),
        "ranks": npy(np.zeros(8, "<i4")),
        "probs": npy(np.full((8, 2), 0.5, "<f4")),
        "accepted": npy(np.full((8, 2), 0.25, "<f4")),
        "kept": npy(np.array([8], "<i8")),
        "meta": meta(json.dumps(META)),
    } | changed
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)
    return file.getvalue()


def four_gigabytes():
    """A whole trace whose probabilities unpack to 4 GiB of zeros, from four megabytes."""
    size = 2**32 - 2**20
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header("<f4", (size // 8, 2))) + packer.flush(zlib.Z_FULL_FLUSH)
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    bomb = start + zeros * (size // 2**20) + end
    whole = bytearray(archive(zipfile.ZIP_STORED, probs=bomb))
    at = whole.index(b"probs.npy") - 30  # the local header, then the one in the directory
    for place, first in ((at, 8), (whole.rindex(b"probs.npy") - 46, 10)):
        whole[place + first : place + first + 2] = (8).to_bytes(2, "little")
        sizes = place + first + 10
        whole[sizes + 4 : sizes + 8] = size.to_bytes(4, "little")
    return bytes(whole)


def shape(text):
    return BASE.replace("[{kind: plain}]", f"[{{kind: tree, shape: {{{text}}}}}]")


def named(name):
    return BASE.replace("name: x", f"name: {name}")


def at_path(path):
    return BASE.replace("path: prompts.jsonl", f"path: {path}")


CONFIGS = {
    "a bomb": (BASE + BOMB, ["20,000 values"]),
    "a bomb of merges": (BASE + MERGES, ["20,000 values"]),
    "an alias within itself": (BASE + "seed: &a [*a]\n", ["within itself"]),
    "deep brackets": (BASE + f"seed: {DEEP[:5000]}\n", ["64 deep"]),
    "nested brackets": (BASE + f"seed: {NESTED}\n", ["64 deep"]),
    "deep mappings": (BASE + "seed: " + "{a: " * 2000 + "\n", ["64 deep"]),
    "deep lists": (BASE + "seed:\n  " + "- " * 3000 + "1\n", ["64 deep"]),
    "digits": (BASE + f"seed: {DIGITS}\n", ["5,000 characters", "line 7"]),
    "hexadecimal digits": (BASE + f"seed: 0x{'f' * 5000}\n", ["5,002 characters"]),
    "binary digits": (BASE + f"seed: 0b{'1' * 60000}\n", ["60,002 characters"]),
    "sixties": (BASE + f"seed: 1{':59' * 20000}\n", ["60,001 characters"]),
    "an infinite temperature": (BASE.replace("ture: 0", "ture: 1.0e+999"), ["temperature"]),
    "no date": (BASE + "seed: 2001-99-99\n", ["'2001-99-99' is no timestamp"]),
    "no integer": (BASE + "seed: !!int foo\n", ["'foo' is no int"]),
    "no float": (BASE + "seed: !!float foo\n", ["'foo' is no float"]),
    "no time": (BASE + "seed: !!timestamp foo\n", ["'foo' is no timestamp"]),
    "no truth": (BASE + "seed: !!bool foo\n", ["'foo' is no bool"]),
    "an object": (BASE + "seed: !!python/object:os.system {}\n", ["not YAML"]),
    "a list for a key": (BASE + "? [1, 2]\n: 3\n", ["a key must be plain text"]),
    "a mapping for a key": (BASE + "seed: {{a: 1}: 2}\n", ["a key must be plain text"]),
    "a key twice": (BASE + "seed: 1\nseed: 2\n", ["'seed' stands twice"]),
    "many values": (BASE + f"seed: [{'1, ' * 25_000}]\n", ["20,000 values"]),
    "many keys": (BASE + "".join(f"k{i}: 1\n" for i in range(11_000)), ["20,000 values"]),
    "a comment": ("#" * 300_000 + "\n" + BASE, ["characters of YAML"]),
    "a long key": (BASE + "? " + "k" * 5000 + "\n: 1\n", ["unknown key"]),
    "a long text": (BASE + f"output: {'o' * 100_000}\n", ["output", "4096"]),
    "a zero byte": (BASE + 'output: "a\\0b"\n', ["output", "zero byte"]),
    "a long path": (at_path("p" * 9000), ["prompts.path", "4096"]),
    "a path with a zero byte": (at_path('"a\\0b"'), ["prompts.path", "zero byte"]),
    "a long name": (named("x" * 5000), ["name", "200 bytes"]),
    "a long name in few characters": (named("語" * 80), ["name", "200 bytes"]),
    "a name with a slash": (named("a/b"), ["name", "fit for the name of a folder"]),
    "a name of dots": (named("'..'"), ["name", "fit for the name of a folder"]),
    "a name with a zero byte": (named('"a\\0b"'), ["name", "fit for the name of a folder"]),
    "a name of two lines": (named('"a\\nb"'), ["name", "fit for the name of a folder"]),
    "a name with a bell": (named('"a\\ab"'), ["name", "fit for the name of a folder"]),
}
SHAPES = {
    "kind: kary, branching: 1000, depth: 1000": "16,384 nodes",
    "kind: kary, branching: 2, depth: 16000": "16,384 nodes",
    "kind: kary, branching: 2, depth: 1000000": "less than or equal to 16384",
    "kind: kary, branching: 1000000000, depth: 1": "less than or equal to 16384",
    "kind: expansion, branching: [100000, 100000]": "16,384 nodes",
    f"kind: expansion, branching: [{'2, ' * 5000}]": "16,384 nodes",
    "kind: chain, depth: 1000000000": "less than 16384",
    f"kind: chain, depth: {'9' * 200}": "less than 16384",
    "kind: independent_chains, width: 10000, depth: 10000": "16,384 nodes",
    "kind: independent_chains, width: 1, depth: 1000000000": "less than or equal to 16384",
    "kind: optimal, rates: [0.6, 0.2], size: 1000000000": "size = 1000000000",
    "kind: optimal, rates: [0.6, 0.2], size: 8, depth: 1000000000": "depth = 1000000000",
    "kind: optimal, rates: [0.6, 0.2], size: 8, branching: 1000000000": "branching = 1000000000",
    "kind: best, acceptance: a, latency: b, max_size: 1000000000": "max_size = 1000000000",
    "kind: best, acceptance: a, latency: b, depth: 1000000000": "depth = 1000000000",
    "kind: eagle2, k: 1000, depth: 1000, size: 64": "65,536 nodes are drafted",
    "kind: eagle2, k: 4, depth: 4, size: 1000000000": "size = 1000000000",
    "kind: opt_tree, size: 1000000000, depth: 10": "size = 1000000000",
    "kind: opt_tree, size: 16, depth: 1000000000": "depth = 1000000000",
    "kind: dyspec, size: 1000000000, depth: 4": "size = 1000000000",
    "kind: specexec, size: 16, branching: 1000000000, depth: 4": "branching = 1000000000",
    "kind: equal_growth, width: 10000, depth: 10000, size: 64": "65,536 nodes are drafted",
    "kind: cost_aware, size: 16, branching: 2, depth: 4, width: 1000000000": "width = 1000000000",
    "kind: paths, paths: [[1000000000000]]": "paths[0][0]",
    "kind: dyspec, size: 8, depth: 4, calibration: /dev/zero": "/dev/zero is a device",
    "kind: dyspec, size: 8, depth: 4, calibration: fifo": "fifo is a pipe",
    "kind: dyspec, size: 8, depth: 4, calibration: deep.json": "deep.json",
    "kind: dyspec, size: 8, depth: 4, calibration: digits.json": "digits.json",
    "kind: cost_aware, size: 8, branching: 2, depth: 4, latency: /dev/zero": "/dev/zero is a device",
    "kind: cost_aware, size: 8, branching: 2, depth: 4, latency: fifo": "fifo is a pipe",
    "kind: optimal, rates: fifo, size: 8": "fifo is a pipe",
    "kind: optimal, rates: socket, size: 8": "socket is a socket",
    "kind: optimal, rates: folder, size: 8": "folder: Is a directory",
    'kind: optimal, rates: "a\\0b", size: 8': "rates",
}
OVERRIDES = {
    "max_new_tokens=1000000000000": "max_new_tokens",
    "repeats=1000000000": "repeats",
    "warmup=1000000000000": "warmup",
    f"seed={'9' * 100}": "seed",
    "trees=1000000000000000": "trees",
    "prompts.count=1000000000000": "prompts.count",
    f"prompts.start={'9' * 50}": "prompts.start",
    f"prompts.tokens={'9' * 50}": "prompts.tokens",
    f"samplings.0.top_k={'9' * 50}": "samplings[0].top_k",
    f"samplings.0.temperature={'9' * 400}": "samplings[0].temperature",
    "models.grow=1000000000000000": "models.grow",
    "models.grow=999999999999B": "models.grow",
    "models.grow={hidden_size: 1000000000000}": "models.grow",
    "methods=[{kind: assisted, lengths: [1000000000]}]": "methods[0].lengths[0]",
    "search={depth: 1000000000}": "search.depth",
    "search={max_new_tokens: 1000000000000}": "search.max_new_tokens",
    "search={sizes: [1000000000]}": "search.sizes",
    "search={repeats: 1000000000}": "search.repeats",
    "search={between: 1000000000000}": "search.between",
    f"seed={DIGITS}": "override 'seed=",
    f"seed=0x{'f' * 5000}": "override 'seed=",
    f"seed={DEEP[:5000]}": "override 'seed=",
    f"seed={INLINE}": "seed",
    "seed=&a [*a]": "override 'seed=",
    "seed=2001-99-99": "override 'seed=",
    "seed={[1]: 2}": "override 'seed=",
    f"seed=[{'1, ' * 25_000}]": "override 'seed=",
    f"{'k' * 5000}=1": "unknown key",
    f"{'a.' * 20000}b=1": "20001 parts",
    f"methods.{DIGITS}.kind=plain": "no index",
    "methods.².kind=plain": "no index",
    f"name={'x' * 5000}": "name",
    f"output={'o' * 100_000}": "output",
    f"methods.0.name={'n' * 5000}": "methods[0].name",
    'methods.0.name="a\\nb"': "methods[0].name",
}
MANY = ",".join(map(str, range(1, 3001)))
SWEEPS = {
    f"sweep.seed=[{MANY}] sweep.max_new_tokens=[{MANY}]": "9,000,000 jobs",
    f"sweep.seed=[{','.join(map(str, range(10_001)))}]": "10,001 jobs",
    f"sweep.seed={INLINE.replace(' ', '')}": "sweep.seed",
    f"sweep.seed=[{DIGITS}]": "override 'sweep.seed=",
    f"sweep.seed={NESTED}": "override 'sweep.seed=",
    f"sweep.{'k' * 5000}=[1,2]": "unknown key",
    "sweep.seed=[0,1] --executor local --workers 1000000": "--workers",
    "sweep.seed=[0,1] --retries 1000000000000": "--retries",
    f"sweep.seed=[0,1] --workers {'1' * 30} --executor local": "--workers",
}
TEXTS = {
    "deep": DEEP,
    "nested": NESTED,
    "deep objects": '{"a":' * 100_000,
    "digits": f'{{"kind": "acceptance", "version": {DIGITS}}}',
    "overflow": '{"kind": "acceptance", "version": 1e999}',
    "infinity": '{"kind": "acceptance", "version": -Infinity}',
    "twice": '{"kind": "acceptance", "kind": "acceptance", "version": 1}',
    "many": "[" + "[]," * 300_000 + "[]]",
}
PROMPTS = {
    "deep": '{"prompt": "a", "x": ' + DEEP + "\n",
    "nested": '{"prompt": "a", "x": ' + NESTED + "}\n",
    "digits": f'{{"prompt": "a", "question_id": {DIGITS}}}\n',
    "only digits": DIGITS + "\n",
    "a field of digits": ROW + f'{{"prompt": {DIGITS}}}\n',
    "overflow": '{"prompt": "a", "x": 1e999}\n',
    "twice": '{"prompt": "a", "prompt": "b"}\n',
    "no text": '{"prompt": NaN}\n',
    "half a character": '{"prompt": "\\ud800"}\n',
    "a long value": '{"prompt": {"a": "' + "z" * 100_000 + '"}}\n',
    "long keys": "{" + ", ".join(f'"{"k" * 100}{i}": 1' for i in range(2000)) + "}\n",
    "a zero byte": ROW + "\0\n",
}
SPECIAL = {
    "/dev/zero": "is a device",
    "/dev/null": "is a device",
    "fifo": "is a pipe",
    "socket": "is a socket",
    "dangling": "",
    "loop": "",
    "sparse": "more than",
}
FILES = {  # what a file is named for -> the command line
    "config": "run {}",
    "grid": "sweep {} sweep.seed=[0,1]",
    "prompts": "run ok.yaml prompts.path={}",
    "text": "run ok.yaml prompts={{kind:\u00a0text,path:\u00a0{}}}",
    "trace": "replay {} --shapes chain:2",
    "steps": "estimate {}",
    "rates": "search {} --size 4",
    "times": "search 0.6 --latency {} --size 4",
    "tree": "export {} --to vllm",
}
TREES = {
    "deep": DEEP,
    "a deep path": f"[[{'0,' * 5000}0]]",
    "digits": f'{{"version": 1, "parents": [-1, {DIGITS}], "order": "node"}}',
    "overflow": '{"version": 1, "parents": [-1, 1e999], "order": "node"}',
    "twice": '{"version": 1, "version": 1, "parents": [-1], "order": "node"}',
    "many parents": json.dumps({"version": 1, "parents": [-1] + [0] * 4999, "order": "node"}),
    "many rows": json.dumps([{"pos": i, "seq_id": [0]} for i in range(5000)]),
    "depth in YAML": "max_draft_len: 1000000000",
    "digits in YAML": f"max_draft_len: {DIGITS}",
    "hexadecimal in YAML": f"max_draft_len: 0x{'f' * 5000}",
    "a bomb in YAML": f"max_draft_len: 3\n{BOMB}",
    "brackets in YAML": f"max_draft_len: {DEEP[:5000]}",
    "no date in YAML": "max_draft_len: !!timestamp foo",
    "twice in YAML": "max_draft_len: 1\nmax_draft_len: 2",
    "tokens of vLLM": '{"num_speculative_tokens": 1000000000}',
    "steps of SGLang": "--speculative-num-steps 1000000000 --speculative-eagle-topk 1",
    "a rank": "[[1000000000000]]",
}
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
    "trace ok.yaml --out new.npz --width 1000000000": "width",
    "trace ok.yaml --out new.npz --beyond 1000000000000": "beyond",
    "profile ok.yaml --out new.json --sizes 1,2,1000000000": "sizes",
    f"profile ok.yaml --out new.json --sizes {DIGITS}": "--sizes",
    f"profile ok.yaml --out new.json --sizes {MANY}": "sizes",
    "profile ok.yaml --out new.json --prefixes 1000000000000": "prefixes",
    "profile ok.yaml --out new.json --repeats 1000000000000": "repeats",
    "check-lossless ok.yaml --samples 1000000000000": "samples",
    "check-lossless ok.yaml --tokens 1000000000000": "tokens",
    "check-lossless ok.yaml --prompts 1000000000000": "prompts",
    "estimate good.npz --by depth --depth 1000000000": "depth",
    "estimate good.npz --ranks 1000000000": "ranks",
    "estimate good.npz --by depth --shrinkage 1e400": "shrinkage",
    "estimate good.npz --for kary:1000x1000": "--for",
    "estimate good.npz --starts chain:1000000000": "--starts",
    f"sweep ok.yaml sweep.seed=[0,1] --executor slurm --slurm time={DIGITS}": "--slurm",
}
TRACES = {
    "unpacks to too much": lambda: archive(probs=header("<f4", (2**24 + 1, 2), bytes(2**27 + 8))),
    "says too much": lambda: archive(probs=header("<f4", (10**15, 2))),
    "says nothing at length": lambda: archive(probs=header("<f4", (10**15, 0))),
    "a negative shape": lambda: archive(probs=header("<f4", (-4, -4))),
    "a shape of digits": lambda: archive(probs=header("<f4", (10**400,))),
    "objects": lambda: archive(tokens=npy(np.array([{}, []], object))),
    "floats for tokens": lambda: archive(tokens=npy(np.zeros(8))),
    "structures": lambda: archive(tokens=npy(np.zeros(8, [("a", "<i4")]))),
    "many members": lambda: archive(**{f"m{i}": b"" for i in range(5000)}),
    "a long member": lambda: archive(**{"x" * 60_000: b""}),
    "a deep header": lambda: archive(tokens=b"\x93NUMPY\1\0" + b"\xf0\x20" + b"(" * 0x20F0),
    "another header": lambda: archive(tokens=b"\x93NUMPY\2\0\0\0\0\x80 "),
    "deep metadata": lambda: archive(meta=meta(DEEP)),
    "digits in metadata": lambda: archive(meta=meta(f'{{"version": {DIGITS}}}')),
    "overflow in metadata": lambda: archive(meta=meta(json.dumps(META).replace("0.0", "1e999"))),
    "NaN in metadata": lambda: archive(meta=meta(json.dumps(META).replace("0.0", "NaN"))),
    "twice in metadata": lambda: archive(meta=meta(json.dumps(META)[:-1] + ', "width": 3}')),
    "bytes for metadata": lambda: archive(meta=npy(np.full(9, 255, np.uint8))),
    "nothing": lambda: b"",
    "cut": lambda: archive()[:-30],
    "a pickle": lambda: b"\x80\x04N.",
    "a comment": lambda: archive() + b"comment",
}
LATENCIES = {
    "deep": DEEP,
    "nested": f'{{"version": 1, "about": {NESTED}, "batches": {{}}}}',
    "digits": f'{{"version": {DIGITS}}}',
    "overflow": json.dumps(LATENCY).replace("2.0", "1e999"),
    "NaN": json.dumps(LATENCY).replace("2.0", "NaN"),
    "twice": '{"version": 1, "version": 1}',
    "digits for a size": json.dumps(LATENCY).replace('"99"', f'"{DIGITS}"'),
    "no digits for a size": json.dumps(LATENCY).replace('"99"', '"²"'),
    "a huge size": json.dumps(LATENCY).replace('"99"', f'"{"9" * 20}"'),
}


def cases():
    """What it is -> command line, files, words of the message."""
    for name, (text, words) in CONFIGS.items():
        yield f"config: {name}", "run bad.yaml", {"bad.yaml": text}, ["bad.yaml", *words]
    for name in ("a bomb", "deep brackets", "digits"):
        files = {"bad.yaml": CONFIGS[name][0]}
        yield f"config, overridden: {name}", "run bad.yaml seed=3", files, ["bad.yaml"]
        yield f"config, swept: {name}", "sweep bad.yaml sweep.warmup=[3,4]", files, ["bad.yaml"]
    for text, word in SHAPES.items():
        files = {"bad.yaml": shape(text), "deep.json": DEEP, "digits.json": TEXTS["digits"]}
        yield f"shape: {text[:60]}", "run bad.yaml", files, ["methods[0]", word]
    for text, word in OVERRIDES.items():
        yield f"override: {text[:40]}", ["run", "ok.yaml", text], {}, [word]
    for text, word in SWEEPS.items():
        yield f"sweep: {text[:40]} {text[-40:]}", f"sweep ok.yaml --out swept {text}", {}, [word]
    for name, text in TEXTS.items():
        yield f"rates: {name}", "search bad.json --size 8", {"bad.json": text}, ["bad.json"]
    for name, text in PROMPTS.items():
        yield f"prompts: {name}", "run ok.yaml", {"prompts.jsonl": text}, ["prompts.jsonl"]
    for (what, line), (name, word) in ((f, s) for f in FILES.items() for s in SPECIAL.items()):
        if (what, name) not in (("rates", "dangling"), ("rates", "loop"), ("tree", "loop")):
            given = [] if name in ("dangling", "loop") or what == "tree" else [word]
            yield f"{what}: {name}", line.format(name), {}, [name, *given]
    for name, text in TREES.items():
        yield f"tree: {name}", "export bad.txt --to treespec", {"bad.txt": text}, ["bad.txt"]
    for word in WORDS:
        yield f"words: {word[:40]}", ["replay", "good.npz", "--shapes", word], {}, ["--shapes"]
    for line, word in NUMBERS.items():
        yield f"number: {line[:90]}", line, {}, [word]
    for name, make in TRACES.items():
        yield f"trace: {name}", "replay bad.npz --shapes chain:2", {"bad.npz": make}, ["bad.npz"]
    for name, text in LATENCIES.items():
        line = "search 0.6 --latency bad.json --size 4"
        yield f"times: {name}", line, {"bad.json": text}, ["bad.json"]
    for name in ("deep", "digits", "many"):
        made = {"run/manifest.json": TEXTS[name], "swept/sweep.json": TEXTS[name]}
        yield f"manifest: {name}", "report run", made, ["manifest.json"]
        line = "sweep ok.yaml --out swept sweep.seed=[0,1]"
        yield f"sweep.json: {name}", line, made, ["sweep.json"]
    for name in ("pipe", "zero"):
        yield f"manifest: {name}", f"report run-{name}", {}, ["manifest.json"]
        line = f"sweep ok.yaml --out sweep-{name} sweep.seed=[0,1]"
        yield f"sweep.json: {name}", line, {}, ["sweep.json"]


CASES = {name: rest for name, *rest in cases()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with good files, and with some of every kind that is no file."""
    path = tmp_path_factory.mktemp("bounds")
    (path / "folder").mkdir()
    os.mkfifo(path / "fifo")
    (path / "dangling").symlink_to("missing")
    (path / "loop").symlink_to("loop")
    with (path / "sparse").open("wb") as file:
        file.truncate(2**32)
    for kind, name in (("run", "manifest.json"), ("sweep", "sweep.json")):
        (path / f"{kind}-pipe").mkdir()
        os.mkfifo(path / f"{kind}-pipe" / name)
        (path / f"{kind}-zero").mkdir()
        (path / f"{kind}-zero" / name).symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path / "socket"))
        yield path


def write(folder, files):
    """Good files, and these."""
    good = {
        "ok.yaml": BASE,
        "prompts.jsonl": ROW * 3,
        "latency.json": json.dumps(LATENCY),
        "good.npz": archive,
    }
    for name, content in (good | files).items():
        content = content() if callable(content) else content
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def split(line):
    """The words of a command line; spaces within one are written as no-break spaces."""
    words = line if isinstance(line, list) else line.split(" ")
    return [word.replace("\u00a0", " ") for word in words]


def of_python(text):
    """Names of exceptions in a text."""
    return re.findall(r"\b[A-Z]\w*(?:Error|Exception)\b|Traceback", text)


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(name, folder, monkeypatch):
    line, files, words = CASES[name]
    write(folder, files)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, split(line))
    assert done.exit_code == 2, done.output[:2000]
    assert not of_python(done.stderr), done.stderr[:2000]
    assert all(word in done.stderr for word in words), done.stderr[:2000]
    assert len(done.stderr) < 2500


def test_many_trees_are_too_many_nodes(monkeypatch):
    monkeypatch.setattr("treespec.experiments.search_then_run.traces.MOST_NODES_TOGETHER", 20)
    assert len(read_shapes("chain:4,kary:2x2,chains:2x3")) == 3
    with pytest.raises(ConfigError, match="--shapes: more than 20 nodes up to 'chain:3'"):
        read_shapes("chain:4,kary:2x2,chains:2x3,chain:3")


def test_many_prompts_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr("treespec.experiments.run.prompts.MOST_PROMPTS", 3)
    path = tmp_path / "prompts.jsonl"
    config = JsonlPrompts(kind="jsonl", path=str(path))
    path.write_text(ROW * 3)
    assert len(read_prompts(config)) == 3
    path.write_text(ROW * 4)
    with pytest.raises(PromptError, match=r"prompts\.jsonl: more than 3 prompts"):
        read_prompts(config)


def test_what_is_large_and_good_is_still_read(tmp_path, monkeypatch):
    """Limits are no smaller than what they say."""
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


def test_there_are_many_kinds():
    assert len(CASES) >= 250


WORST = {
    "a bomb with an override": ("run bad.yaml seed=3", {"bad.yaml": BASE + BOMB}),
    "a sweep of bombs": ("sweep bad.yaml sweep.seed=[1,2]", {"bad.yaml": BASE + MERGES}),
    "many keys in YAML": ("run bad.yaml", {"bad.yaml": CONFIGS["many keys"][0]}),
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

MEASURED = """
import json, os, resource, sys
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

_, _, before = run(["configs"])  # what the imports take
for name, line in json.load(sys.stdin).items():
    code, seconds, memory = run(line)
    print(json.dumps([name, code, seconds, memory - before]))
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
        [sys.executable, "-c", MEASURED],
        input=json.dumps(lines), cwd=folder, env=environment, text=True, capture_output=True,
        timeout=200, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in found] == list(WORST)
    wrong = [row for row in found if row[1] != 2 or row[2] > 2 or row[3] > 500 * 2**20]
    assert not wrong, f"name, exit code, seconds, bytes: {wrong}"


def test_the_largest_tree_can_be_listed(tmp_path):
    path = tmp_path / "listed.yaml"
    path.write_text(shape(f"kind: parents, parents: {[-1] + [0] * 16383}"))
    method = build(load_config(path)).methods[0]
    assert method.shape is not None
    assert method.shape.size == 16384
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(config_data(load_config(path)), sort_keys=False))
    assert load_config(again) == load_config(path)


def test_tables_of_absurd_size_are_not_read(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", prompts=2)
    monkeypatch.setattr("treespec.experiments.records.tables.MOST_ROWS", 1)
    with pytest.raises(RunFolderError, match=r"prompts\.parquet has \d+ rows, but at most 1"):
        load_run(run)
    monkeypatch.undo()
    (run / "prompts.parquet").unlink()
    os.mkfifo(run / "prompts.parquet")
    os.mkfifo(tmp_path / "log")
    assert load_run(run).prompts is not None  # the log has the same rows
    (run / "prompts.jsonl").unlink()
    (run / "prompts.jsonl").symlink_to(tmp_path / "log")
    with pytest.raises(RunFolderError, match=r"prompts\.jsonl is a pipe"):
        load_run(run)
