"""Hostile or absurd configs, overrides and sweeps: exit code 2 and one message, before any work is done."""

import pytest
import yaml
from hostile.commands import require_refused
from hostile.texts import BASE, BOMB, DEEP, DIGITS, INLINE, MERGES, NESTED, at_path, named, shape

from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.records.manifest import config_data

CONFIGS = {
    "a bomb": (BASE + BOMB, ["20,000 values"]),
    "a bomb of merges": (BASE + MERGES, ["20,000 values"]),
    "an alias within itself": (BASE + "seed: &a [*a]\n", ["contains itself"]),
    "deep brackets": (BASE + f"seed: {DEEP[:5000]}\n", ["64 levels deep"]),
    "nested brackets": (BASE + f"seed: {NESTED}\n", ["64 levels deep"]),
    "deep mappings": (BASE + "seed: " + "{a: " * 2000 + "\n", ["64 levels deep"]),
    "deep lists": (BASE + "seed:\n  " + "- " * 3000 + "1\n", ["64 levels deep"]),
    "digits": (BASE + f"seed: {DIGITS}\n", ["5,000 characters", "line 7"]),
    "hexadecimal digits": (BASE + f"seed: 0x{'f' * 5000}\n", ["5,002 characters"]),
    "binary digits": (BASE + f"seed: 0b{'1' * 60000}\n", ["60,002 characters"]),
    "sixties": (BASE + f"seed: 1{':59' * 20000}\n", ["60,001 characters"]),
    "an infinite temperature": (
        BASE.replace("ture: 0", "ture: 1.0e+999"),
        ["'1.0e+999' is too large"],
    ),
    "a temperature of infinity": (BASE.replace("ture: 0", "ture: .inf"), ["temperature"]),
    "no date": (BASE + "seed: 2001-99-99\n", ["'2001-99-99' is not a valid timestamp"]),
    "no integer": (BASE + "seed: !!int foo\n", ["'foo' is not a valid int"]),
    "no float": (BASE + "seed: !!float foo\n", ["'foo' is not a valid float"]),
    "no time": (BASE + "seed: !!timestamp foo\n", ["'foo' is not a valid timestamp"]),
    "no truth": (BASE + "seed: !!bool foo\n", ["'foo' is not a valid bool"]),
    "an object": (BASE + "seed: !!python/object:os.system {}\n", ["not YAML"]),
    "a list for a key": (BASE + "? [1, 2]\n: 3\n", ["a key must be plain text"]),
    "a mapping for a key": (BASE + "seed: {{a: 1}: 2}\n", ["a key must be plain text"]),
    "a key twice": (BASE + "seed: 1\nseed: 2\n", ["'seed' appears twice"]),
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
    "a name with a slash": (named("a/b"), ["name", "usable as the name of a folder"]),
    "a name of dots": (named("'..'"), ["name", "usable as the name of a folder"]),
    "a name with a zero byte": (named('"a\\0b"'), ["name", "usable as the name of a folder"]),
    "a name of two lines": (named('"a\\nb"'), ["name", "usable as the name of a folder"]),
    "a name with a bell": (named('"a\\ab"'), ["name", "usable as the name of a folder"]),
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
    "models.enlarge=1000000000000000": "models.enlarge",
    "models.enlarge=999999999999B": "models.enlarge",
    "models.enlarge={hidden_size: 1000000000000}": "models.enlarge",
    "methods=[{kind: assisted, lengths: [1000000000]}]": "methods[0].lengths[0]",
    "search={depth: 1000000000}": "search.depth",
    "search={max_new_tokens: 1000000000000}": "search.max_new_tokens",
    "search={sizes: [1000000000]}": "search.sizes",
    "search={repeats: 1000000000}": "search.repeats",
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
    f"methods.{DIGITS}.kind=plain": "not an index",
    "methods.².kind=plain": "not an index",
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


def cases():
    """Cases by description: command line, files, words of the message."""
    for name, (text, words) in CONFIGS.items():
        yield f"config: {name}", "run bad.yaml", {"bad.yaml": text}, ["bad.yaml", *words]
    for name in ("a bomb", "deep brackets", "digits"):
        files = {"bad.yaml": CONFIGS[name][0]}
        yield f"config, overridden: {name}", "run bad.yaml seed=3", files, ["bad.yaml"]
        yield f"config, swept: {name}", "sweep bad.yaml sweep.warmup=[3,4]", files, ["bad.yaml"]
    for text, word in SHAPES.items():
        version = f'{{"kind": "acceptance", "version": {DIGITS}}}'
        files = {"bad.yaml": shape(text), "deep.json": DEEP, "digits.json": version}
        yield f"shape: {text[:60]}", "run bad.yaml", files, ["methods[0]", word]
    for text, word in OVERRIDES.items():
        yield f"override: {text[:40]}", ["run", "ok.yaml", text], {}, [word]
    for text, word in SWEEPS.items():
        yield f"sweep: {text[:40]} {text[-40:]}", f"sweep ok.yaml --out swept {text}", {}, [word]


CASES = {name: rest for name, *rest in cases()}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(name, folder, monkeypatch):
    require_refused(folder, monkeypatch, *CASES[name])


def test_there_are_many_kinds():
    assert len(CASES) >= 100


def test_the_largest_tree_can_be_listed(tmp_path):
    path = tmp_path / "listed.yaml"
    path.write_text(shape(f"kind: parents, parents: {[-1] + [0] * 16383}"))
    method = build(load_config(path)).methods[0]
    assert method.shape is not None
    assert method.shape.size == 16384
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(config_data(load_config(path)), sort_keys=False))
    assert load_config(again) == load_config(path)
