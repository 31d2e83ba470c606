import json
from xml.etree import ElementTree

import numpy as np
import pytest
from rendered import section_html
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.acceptance import (
    acceptance_finding,
    count_all,
    count_nodes,
)
from treespec.experiments.report.html import render
from treespec.experiments.report.run import load_run
from treespec.experiments.report.tree_drawings import MOST_NODES, acceptance_svg, drawn_trees
from treespec.tree import TreeShape

SVG = "{http://www.w3.org/2000/svg}"
TREE = SyntheticMethod("tree", "tree", TreeShape.expansion([3, 2, 1]), (0.5, 0.2, 0.1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    methods = [
        SyntheticMethod("plain", "plain"),
        SyntheticMethod("chain", "tree", TreeShape.chain(3), (0.6,)),
        TREE,
    ]
    folder = tmp_path_factory.mktemp("nodes") / "run"
    return load_run(write_run(folder, methods, prompts=5, spread=0.2))


def trees_html(run, counts):
    return render("trees.html", trees=drawn_trees(run, counts), most_nodes=MOST_NODES)


def paths(run, method, sampling):
    rows = run.steps.iter_rows(named=True)
    return [r["path_ranks"] for r in rows if (r["method"], r["sampling"]) == (method, sampling)]


def test_counts_are_those_of_the_steps(run):
    found = count_all(run)
    assert set(found) == {(s, m) for s in ("T=0", "T=1") for m in ("chain", "tree")}
    shape = TREE.shape
    for sampling in ("T=0", "T=1"):
        counted, taken = found[sampling, "tree"], paths(run, "tree", sampling)
        assert counted.total == len(taken)
        for node in range(shape.size):
            ranks = list(shape.rank_path(node))
            assert counted.counts[node] == sum(p[: len(ranks)] == ranks for p in taken)
            assert counted.shares[node].estimate == pytest.approx(counted.counts[node] / len(taken))


def test_levels_add_up(run):
    taken = paths(run, "tree", "T=0")
    for depth, level in enumerate(count_all(run)["T=0", "tree"].levels, start=1):
        came = [p for p in taken if len(p) >= depth - 1]
        assert level.tries == len(came)
        assert level.share.estimate == pytest.approx(np.mean([len(p) >= depth for p in came]))
        assert sum(level.by_rank) == pytest.approx(level.share.estimate)
        first = np.mean([len(p) >= depth and p[depth - 1] == 0 for p in came])
        assert level.by_rank[0] == pytest.approx(first)
        assert level.share.low < level.share.estimate < level.share.high


def test_every_node_says_how_often(run):
    found = count_all(run)["T=0", "tree"]
    root = ElementTree.fromstring(acceptance_svg(found))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:2] == [str(found.total), "steps"]
    assert texts[3::2] == [str(count) for count in found.counts[1:]]
    assert texts[2] == f"{100 * found.shares[1].estimate:.0f} %"
    hints = [hint.text or "" for hint in root.iter(f"{SVG}title")]
    assert f"accepted in {found.counts[1]} of {found.total} steps" in hints[1]
    assert "95 % interval" in hints[1]
    widths = [float(line.get("stroke-width", 1)) for line in root.iter(f"{SVG}line")]
    assert widths[0] == max(widths)


def test_sections_name_every_method(run):
    counts = count_all(run)
    text = section_html(acceptance_finding(run.methods, counts))
    assert text.count("<table") == 2
    assert text.count('class="heat"') == 2 * (3 + 3)
    assert "nan" not in text
    trees = trees_html(run, counts)
    assert trees.count("<svg") == 4
    assert "<strong>T=1</strong>: children drawn without replacement, rule rrsw" in trees


def test_ranks_that_the_tree_does_not_have_are_refused(run, tmp_path):
    folder = write_run(tmp_path / "run", [TREE], prompts=2, temperatures=[0.0], finished=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["methods"][0]["parents"] = [-1, 0]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunFolderError, match="accepted the ranks"):
        count_all(load_run(folder))


def test_growing_and_huge_trees_are_described(run, tmp_path):
    huge = SyntheticMethod("huge", "tree", TreeShape.independent_chains(300, 1), (0.01,) * 300)
    folder = write_run(tmp_path / "run", [huge, TREE], prompts=2, new_tokens=8, temperatures=[0.0])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["methods"][1] |= {"parents": None, "growth": {"kind": "opt_tree"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    loaded = load_run(folder)
    counts = count_all(loaded)
    assert set(counts) == {("T=0", "huge")}
    assert count_nodes(loaded, loaded.methods[1], "T=0") is None
    text = trees_html(loaded, counts)
    assert "<svg" not in text
    assert "Grows with the probabilities of the draft" in text
    assert "more than 256 nodes are not drawn" in text
