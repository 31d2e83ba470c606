"""Plug-ins in runs: proved first, kept with the run, and required to be the same when it is resumed."""

import hashlib
import importlib
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch
import yaml
from typer.testing import CliRunner

from treespec import plugin_files, plugins
from treespec.errors import InvalidPlugin
from treespec.experiments.cli.main import app
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.errors import ConfigError
from treespec.experiments.records import outcome
from treespec.experiments.run.proof_of_parts import require_proved
from treespec.tree import Law

FOUR = Path(__file__).parents[2] / "helpers" / "plugins" / "four_parts.py"
MORE = FOUR.with_name("more_parts.py")
BIASED = '''
from treespec import Law, plugins
from treespec.step import Verdict
from treespec.verify import rule


@plugins.rule("biased")
@rule(laws={Law.DETERMINISTIC}, reference="none"LOSSLESS)
def biased(tree, target_probs, coins):
    """Accepts the first child, whatever the target says."""
    path = [0]
    while tree.shape.children[path[-1]]:
        path.append(tree.shape.children[path[-1]][0])
    return Verdict(tuple(path), coins.draw(target_probs[path[-1]]))
'''


pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def write(tiny_pair, prompt_file, tmp_path):
    def write(*methods, **more):
        config = {
            "name": "plugged",
            "models": {"target": str(tiny_pair), "dtype": "float32"},
            "prompts": {"kind": "jsonl", "path": str(prompt_file), "count": 2},
            "max_new_tokens": 6,
            "samplings": [{"temperature": 1.0}],
            "methods": [{"kind": "plain"}, *methods],
            "warmup": 0,
            "meters": [],
        } | more
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        return str(path)

    return write


REPEAT = {
    "kind": "tree",
    "draft": {"source": "repeat", "n": 2},
    "shape": {"kind": "budget", "depth": 4},
    "rule": "mine",
}
TWINS = {"kind": "tree", "shape": {"kind": "twins", "depth": 3}, "law": "deterministic"}


def treespec(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_all_four_parts_in_a_run_that_goes_on(write, tmp_path):
    config, folder = write(REPEAT, TWINS), tmp_path / "runs" / "plugged"
    done = treespec("run", config, "--plugin", FOUR)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("proving that the") == 3
    assert "distinct" in done.stdout
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["plugins"] == [
        {"file": "four_parts.py", "sha256": plugin_files.read([FOUR])[0].sha256}
    ]
    assert manifest["metrics"] == {"distinct": "distinct draft tokens per step"}
    assert (folder / "plugins" / "four_parts.py").read_bytes() == FOUR.read_bytes()
    rows = pl.read_parquet(folder / "prompts.parquet")
    values = {
        (row["method"], entry["name"]): entry["value"]
        for row in rows.iter_rows(named=True)
        for entry in row["metrics"]
    }
    assert values["repeat n=2 chain 4 (mine)", "distinct"] == 1.0

    # The report needs no plug-in, and shows the metric.
    plugin_files.load()
    report = json.loads(treespec("report", folder, "--json").stdout)
    (sampling,) = report["samplings"]
    metrics = {m["method"]: m["metrics"] for m in sampling["methods"]}
    assert metrics["repeat n=2 chain 4 (mine)"]["distinct"]["estimate"] == 1.0
    assert [m["group"] for m in sampling["methods"]] == ["plain", "chain", "tree"]
    assert "distinct" in (folder / "report.html").read_text()

    # It resumes with its own copy; proofs are remembered.
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)
    (folder / "prompts.jsonl").write_text("".join(lines[:3]))
    manifest["finished"] = None
    (folder / "manifest.json").write_text(json.dumps(manifest))
    plugin_files.load()
    again = treespec("run", config)
    assert again.exit_code == 0, again.stderr
    assert "proving" not in again.stderr
    assert (
        pl.read_parquet(folder / "prompts.parquet")["tokens"].to_list() == rows["tokens"].to_list()
    )

    # Another file of that name is refused, by both hashes.
    other = tmp_path / "four_parts.py"
    other.write_text(FOUR.read_text() + "\n# changed\n")
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
    refused = treespec("run", config, "--plugin", other)
    assert refused.exit_code == 2
    hashes = [plugin_files.read([path])[0].sha256[:16] for path in (FOUR, other)]
    assert all(text in refused.stderr for text in hashes)
    lock = folder / ".treespec.lock"
    assert {p: p.stat().st_mtime_ns for p in before if p != lock} == {
        p: t for p, t in before.items() if p != lock
    }

    # A modified copy is refused too.
    (folder / "plugins" / "four_parts.py").write_text(other.read_text())
    refused = treespec("run", config)
    assert refused.exit_code == 2
    assert "has been changed" in refused.stderr


def test_settings_of_plug_ins_change_the_experiment(write):
    config = write(REPEAT)
    assert treespec("run", config, "--plugin", FOUR, "-q").exit_code == 0
    changed = treespec("run", config, "methods.1.draft.n=1", "--plugin", FOUR)
    assert changed.exit_code == 2
    assert "methods[1].draft.n: 2 -> 1" in changed.stderr


def test_a_biased_rule_is_refused_with_its_smallest_counterexample(write, tmp_path):
    method = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}, "rule": "biased"}
    config, plugin = write(method), tmp_path / "biased.py"
    plugin.write_text(BIASED.replace("LOSSLESS", ""))
    refused = treespec("run", config, "--plugin", plugin)
    assert refused.exit_code == 2
    assert "does not keep the target's law" in refused.stderr
    assert "largest error" in refused.stderr
    assert not (tmp_path / "runs").exists()
    plugin.write_text(BIASED.replace("LOSSLESS", ", lossless=False"))
    lossy = treespec("run", config, "--plugin", plugin)
    assert lossy.exit_code == 0, lossy.stderr
    assert "(biased) (lossy)" in lossy.stdout.replace("\n", " ") or "lossy" in lossy.stdout


MARGINAL = """
import torch

from treespec import Law, TokenTree, TreeShape, plugins


class Size(plugins.Settings):
    depth: int = 5


@plugins.growth("crossed", settings=Size)
class Crossed:
    def __init__(self, depth):
        self.max_depth = depth

    def next(self, shape, probs):
        return []

    def tree_over(self, marginals, root):
        best = marginals.topk(2).indices
        tokens = [root, *best[0].tolist(), *best[:PLACE, 0].tolist()[1:]]
        parents = (-1, 0, 0, *range(2, len(tokens) - 1))
        return TokenTree(TreeShape(parents), torch.tensor(tokens), None, Law.DETERMINISTIC)
"""


def test_a_growth_that_makes_trees_of_marginals(tmp_path):
    """It states no law, and only one is true of it; the proof runs its own code, not a chain instead."""
    plugin = tmp_path / "crossed.py"
    data = {"name": "x", "prompts": {"kind": "embedded", "count": 1}, "max_new_tokens": 4}
    data |= {
        "samplings": [{"temperature": 1.0}],
        "methods": [{"kind": "tree", "shape": {"kind": "crossed"}}],
    }

    def built(place):
        plugin.write_text(MARGINAL.replace("PLACE", place))
        plugin_files.load(plugin_files.read([plugin]))
        return build(validated(tmp_path / "x.yaml", data))

    fine, messages = built("self.max_depth"), []
    (choice,) = fine.methods[0].choices.values()
    assert (choice.law, str(choice.rule)) == (Law.DETERMINISTIC, "onehot")
    require_proved(fine, messages.append)
    assert messages == ["proving that the growth 'crossed' is lossless, on small trees"]
    with pytest.raises(ConfigError, match=r"'crossed' of .* fails on small trees .*no_such_name"):
        require_proved(built("no_such_name"), messages.append)


REFUSED = {
    "methods[1].draft.n = 'two': must be an integer": (
        {**REPEAT, "draft": {"source": "repeat", "n": "two"}}, FOUR
    ),
    "methods[1].shape.depth": ({**TWINS, "shape": {"kind": "twins", "depth": []}}, FOUR),
    "unknown source 'repeat'": (REPEAT, None),
    "unknown kind 'twins'": (TWINS, None),
    "nowhere.py": (REPEAT, "nowhere.py"),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_wrong_is_said_and_nothing_is_written(said, write, tmp_path):
    method, plugin = REFUSED[said]
    done = treespec("run", write(method), *(["--plugin", plugin] if plugin else []))
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (10**400, "which is too large"),
        (10**5000, "a huge integer, which is too large"),
        (torch.zeros(2), "a tensor float32 [2], which is not a number"),
        (float("nan"), "nan, which is not a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_metric_gives_is_refused_by_name(value, said, monkeypatch):
    monkeypatch.setattr(
        outcome, "parts", lambda kind: {"odd": SimpleNamespace(make=lambda steps: value)}
    )
    with pytest.raises(InvalidPlugin, match=rf"^metric 'odd' gives .*{re.escape(said)}$"):
        outcome.Outcome.of(()).metrics()


def test_a_metric_that_ends_the_program_is_refused_by_name(monkeypatch):
    ending = {"odd": SimpleNamespace(make=lambda steps: sys.exit(0))}
    monkeypatch.setattr(outcome, "parts", lambda kind: ending)
    with pytest.raises(InvalidPlugin, match="metric 'odd': the metric ends the program"):
        outcome.Outcome.of(()).metrics()


def test_a_metric_that_fails_is_recorded_with_its_name(write, tmp_path):
    plugin = tmp_path / "odd.py"
    plugin.write_text("from treespec import plugins\nplugins.metric('odd', 'o')(lambda s: 'x')\n")
    done = treespec("run", write(), "--plugin", plugin, "-q")
    assert done.exit_code == 1
    assert "metric 'odd' gives 'x', which is not a number" in done.stderr


def test_workers_of_a_sweep_load_the_copy(write, tmp_path):
    config = write(REPEAT, TWINS)
    words = ("sweep", config, "sweep.seed=[1]", "--executor", "local")
    done = treespec(*words, "--plugin", FOUR, "--json")
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["metric.distinct"] for row in rows if row["method"].startswith("repeat")} == {1.0}
    folder = tmp_path / "sweeps" / "plugged"
    assert (folder / "plugins" / "four_parts.py").exists()
    assert (folder / "jobs" / "seed=1" / "run" / "plugins" / "four_parts.py").exists()
    again = treespec(*words, "-q")
    assert again.exit_code == 0, again.stderr
    other = tmp_path / "four_parts.py"
    other.write_text(FOUR.read_text() + "\n# changed\n")
    refused = treespec(*words, "--plugin", other)
    assert refused.exit_code == 2
    assert "was started with another plug-in four_parts.py" in refused.stderr


def test_parts_lists_what_is_ours_and_what_is_plugged_in():
    listed = json.loads(treespec("parts", "--json", "--plugin", FOUR).stdout)
    del listed["version"]
    kinds = {"rules", "laws", "shapes", "growths", "sources", "processors", "metrics", "models"}
    assert set(listed) == kinds
    assert all(row["about"] for rows in listed.values() for row in rows)
    plugged = {
        row["name"] for rows in listed.values() for row in rows if row["origin"] != "treespec"
    }
    assert plugged == {"mine", "repeat", "twins", "distinct"}
    text = treespec("parts").stdout
    assert all(name in text for name in ("rrsw", "eagle2", "lookup", "kary", "deterministic"))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install the four parts as a package of some version, as a new process would find it."""
    folder = tmp_path / "site"
    info = folder / "mine.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[treespec.plugins]\nmine = its_module\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(plugin_files, "_INSTALLED", {})
    before = plugins.kept()

    def install(version, code=None):
        code = FOUR.read_text() if code is None else code
        (folder / "its_module.py").write_text(code)
        text = f"Metadata-Version: 2.1\nName: mine\nVersion: {version}\n"
        (info / "METADATA").write_text(text)
        plugin_files._INSTALLED.clear()
        sys.modules.pop("its_module", None)
        importlib.invalidate_caches()
        plugins.restore(before)
        return hashlib.sha256(code.encode()).hexdigest()

    yield install
    sys.modules.pop("its_module", None)
    plugins.restore(before)


def test_installed_plug_ins_are_noted_and_a_run_that_goes_on_wants_the_same(
    write, install, tmp_path
):
    config, folder = write(REPEAT), tmp_path / "runs" / "plugged"
    sha256 = install("1.0")
    done = treespec("run", config)
    assert done.exit_code == 0, done.stderr
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["plugins"] == []
    assert manifest["installed_plugins"] == [
        {"module": "its_module", "sha256": sha256, "distribution": "mine", "version": "1.0"}
    ]
    install("1.0")
    assert treespec("run", config).exit_code == 0
    install("1.1")
    refused = treespec("run", config)
    assert refused.exit_code == 2
    message = f"plug-in its_module (mine 1.0, SHA-256 {sha256[:16]}..., now mine 1.1"
    assert message in refused.stderr
    other = install("1.0", FOUR.read_text() + "\n# changed\n")
    refused = treespec("run", config)
    assert refused.exit_code == 2
    assert f"now mine 1.0, SHA-256 {other[:16]}..." in refused.stderr
    # Older manifests do not record what was installed.
    del manifest["installed_plugins"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert treespec("run", config).exit_code == 0


@pytest.mark.slow
def test_workers_want_the_installed_plug_ins_of_the_sweep(write, install, tmp_path, monkeypatch):
    config = write(REPEAT)
    install("1.0")
    words = ("sweep", config, "sweep.seed=[0]", "--executor", "local", "--retries", 0)
    done = treespec(*words, "--json")
    assert done.exit_code == 0, done.stderr
    assert {row["metric.distinct"] for row in json.loads(done.stdout)["rows"]} == {0.0, 1.0}
    manifest = json.loads((tmp_path / "sweeps" / "plugged" / "sweep.json").read_text())
    assert [entry["version"] for entry in manifest["installed_plugins"]] == ["1.0"]
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
    elsewhere = treespec(*words, "--out", tmp_path / "elsewhere")
    assert elsewhere.exit_code == 1
    assert "plug-in its_module (mine 1.0, SHA-256" in " ".join(
        (elsewhere.stdout + elsewhere.stderr).split()
    )


PAGE = Path(__file__).parents[3] / "docs" / "plugins.md"


def test_the_examples_of_the_page_run(write, tmp_path):
    text = PAGE.read_text()
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    methods = [yaml.safe_load(part) for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    methods += [
        {"kind": "tree", "shape": {"kind": "chain", "depth": 2}, "law": "iid", "rule": "lucky"},
        {"kind": "tree", "shape": {"kind": "unsure", "depth": 3}},
    ]
    assert (len(codes), len(methods)) == (7, 5)
    words = []
    for i, code in enumerate(codes):
        path = tmp_path / f"example{i}.py"
        path.write_text(code)
        words += ["--plugin", path]
    warm = {"temperature": 1.0, "custom": [{"processor": "odd_after_odd", "by": 0.5}]}
    done = treespec("run", write(*methods, samplings=[warm]), *words)
    assert done.exit_code == 0, done.stderr
    assert "custom=odd_after_odd" in done.stdout
    assert "distinct" in done.stdout


def test_the_page_shows_what_the_example_file_holds():
    example = FOUR.read_text() + MORE.read_text()
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        part = code[code.index("@plugins") :].replace('"this page"', '"this file"')
        assert part.strip() in example
