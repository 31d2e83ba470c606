"""Sources that begin each prompt with a file: what they draft, and what rows and manifest say of it."""

import hashlib
import json

import polars as pl
import pytest

from treespec.draft import TokenRecycling
from treespec.draft.state import tokenizer_digest

TEXTS = ("def walk(tree):\n    for node", "    yield node, walk(node)\ndef")


@pytest.fixture
def warm(loaded_pair, tmp_path):
    """Successors of every token."""
    target, path = loaded_pair.target, tmp_path / "successors.npz"
    vocab = target.vocab_size
    rows = {token: [(token + k) % vocab for k in (1, 2, 3)] for token in range(vocab)}
    TokenRecycling(table=rows).save(
        path,
        vocab_size=vocab,
        tokenizer=tokenizer_digest(loaded_pair.tokenizer),
        target=target.fingerprint,
    )
    return path


def test_every_prompt_begins_with_the_file(start, warm, tmp_path):
    """Whatever was decoded before: so prompts are independent, and a run can resume between any two."""
    recycling = {"source": "token_recycling"}
    shape = {"kind": "budget", "depth": 3, "size": 8, "branching": 3}
    methods = [{"kind": "plain"}] + [
        {"kind": "tree", "name": name, "shape": shape, "draft": recycling | more}
        for name, more in (("cold", {}), ("warm", {"warm": str(warm)}))
    ]

    def run(name, *texts):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        prompts = {"kind": "jsonl", "path": str(path)}
        settings = {"methods": methods, "samplings": [{"temperature": 0}], "prompts": prompts}
        return start(settings | {"max_new_tokens": 12}, out=name).folder

    def trees(folder, prompt):
        rows = pl.read_parquet(folder / "trees.parquet").filter(prompt=prompt)
        return (
            rows.select("method", "step", "parents", "tokens", "path").sort("method", "step").rows()
        )

    both, second = run("both", *TEXTS), run("second", TEXTS[1])
    assert trees(both, 1) == trees(second, 0)
    first = {row[0]: len(row[2]) for row in trees(both, 1) if row[1] == 0}
    assert first["cold"] == 1 < first["warm"]
    rows = pl.read_parquet(both / "prompts.parquet")
    states = dict(rows.select("method", "state").iter_rows())
    assert states == {"plain": None, "plain (twin)": None, "cold": "cold", "warm": "warm"}
    manifest = json.loads((both / "manifest.json").read_text())
    assert {method["name"]: method["state"] for method in manifest["methods"]} == {
        "plain": None, "cold": "cold", "warm": "warm",
    }  # fmt: skip
    files = {method["name"]: method["files"] for method in manifest["methods"]}
    digest = hashlib.sha256(warm.read_bytes()).hexdigest()
    assert files == {"plain": None, "cold": None, "warm": {"draft.warm": digest}}
