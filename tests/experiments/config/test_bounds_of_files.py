"""Hostile or absurd files, and paths that are not files: exit code 2, one message that names them."""

import json
import os

import numpy as np
import pytest
from hostile.archives import LATENCY, META, archive, header, meta, npy
from hostile.commands import require_refused
from hostile.texts import BOMB, DEEP, DIGITS, NESTED, ROW
from run_folders.folders import write_run

from treespec.experiments.config.schema import JsonlPrompts
from treespec.experiments.errors import PromptError, RunFolderError
from treespec.experiments.report.run import load_run
from treespec.experiments.run.prompts import read_prompts

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
    "tree": "export {} --to eagle",
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
    """Cases by description: command line, files, words of the message."""
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


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(name, folder, monkeypatch):
    require_refused(folder, monkeypatch, *CASES[name])


def test_there_are_many_kinds():
    assert len(CASES) >= 100


def test_many_prompts_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr("treespec.experiments.run.prompts.MOST_PROMPTS", 3)
    path = tmp_path / "prompts.jsonl"
    config = JsonlPrompts(kind="jsonl", path=str(path))
    path.write_text(ROW * 3)
    assert len(read_prompts(config)) == 3
    path.write_text(ROW * 4)
    with pytest.raises(PromptError, match=r"prompts\.jsonl has more than 3 prompts"):
        read_prompts(config)


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
