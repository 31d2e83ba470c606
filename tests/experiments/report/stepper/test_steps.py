import json
from xml.etree import ElementTree

import polars as pl
import pytest
import torch
from run_folders.folders import SyntheticMethod, write_run
from run_folders.trees import PIECES, write_trees

from treespec.experiments.errors import RunFolderError
from treespec.experiments.report.run import load_run
from treespec.experiments.report.stepper.replay import replay_data, script_json, stepper_section
from treespec.experiments.report.stepper.steps import Shown, show, trail_of, trails_of_run, visible
from treespec.step import Scores, Step, Verdict
from treespec.tree import TokenTree, TreeShape

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    methods = [
        SyntheticMethod("plain", "plain"),
        SyntheticMethod("<img src=x onerror=alert(1)>", "tree", TreeShape.chain(3), (0.6,)),
        SyntheticMethod("tree", "tree", TreeShape.expansion([2, 2]), (0.5, 0.2)),
    ]
    folder = write_run(tmp_path_factory.mktemp("stepper") / "run", methods, prompts=3)
    write_trees(folder)
    return load_run(folder)


@pytest.fixture(scope="module")
def trails(run):
    return trails_of_run(run)


@pytest.fixture
def step():
    tree = TokenTree(
        TreeShape.expansion([2, 1]), torch.tensor([5, 1, 2, 3, 4]), None, "deterministic"
    )
    return Step(tree, Verdict((0, 2, 4), 9), Scores(torch.zeros(5, 10)), (2, 4, 9))


class Letters:
    """A tokenizer with a vocabulary of ten letters."""

    def decode(self, token_ids, /):
        return "".join("abcde <\n&"[token] if token < 9 else "!" for token in token_ids)


def test_texts_come_by_prompt_then_sampling_then_method(run, trails):
    assert [t.sampling for t in trails] == ["T=0"] * 3 + ["T=1"] * 3 + ["T=0"] * 3 + ["T=1"] * 3
    assert [t.method for t in trails[:3]] == [m.name for m in run.methods]
    assert [t.group for t in trails[:3]] == ["plain", "chain", "tree"]
    assert trails[0].prompt == "1: module_0.py"
    assert trails[-1].prompt == "2: module_1.py"


def test_a_text_is_what_its_steps_kept(run, trails):
    for trail in trails:
        tokens = sum(step.kept for step in trail.steps)
        assert tokens == 64
        for step in trail.steps:
            assert len(step.emitted) == len(step.path)
            assert step.kept <= len(step.emitted)
    cut = [step for trail in trails for step in trail.steps if step.kept < len(step.path)]
    assert cut
    assert all("the text ends here" in step.said for step in cut)


def test_runs_without_kept_steps(tmp_path):
    methods = [SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))]
    run = load_run(write_run(tmp_path / "run", methods, prompts=2))
    assert run.trees.columns[-2:] == ["bonus", "bonus_piece"]
    assert trails_of_run(run) == []
    assert stepper_section(run) == ""


def test_an_unfinished_run_reads_its_log(tmp_path):
    methods = [SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))]
    folder = write_run(tmp_path / "run", methods, prompts=2, finished=False)
    write_trees(folder, prompts=1)
    assert not (folder / "trees.parquet").exists()
    assert [t.prompt for t in trails_of_run(load_run(folder))] == ["1: module_0.py"] * 2


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("parents", [-1, 0, 7], "step 0: no tree with a path"),
        ("path", [0, 4], "step 0: no tree with a path"),
        ("path", [], "step 0: no tree with a path"),
        ("path", [0, -1], "step 0: no tree with a path"),
        ("pieces", ["x"], "step 0: no tree with a path"),
    ],
)
def test_damaged_rows_are_refused(tmp_path, column, value, problem):
    methods = [SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))]
    folder = write_run(tmp_path / "run", methods, prompts=1, new_tokens=6, temperatures=[0.0])
    write_trees(folder)
    frame = pl.read_parquet(folder / "trees.parquet")
    damaged = [{**row, column: value} for row in frame.to_dicts()]
    pl.DataFrame(damaged, schema=frame.schema).write_parquet(folder / "trees.parquet")
    with pytest.raises(RunFolderError, match=problem):
        trails_of_run(load_run(folder))


def test_labels_show_white_space_and_stay_short():
    assert visible(" for") == "·for"
    assert visible("\n\t") == "⏎⇥"
    assert visible("") == "∅"
    assert visible("internationalise") == "internati…"
    assert visible("日本語日本語") == "日本語日…"
    assert visible("\x1b") == "�"


def test_the_data_gives_the_steps_back(trails):
    data = json.loads(json.dumps(replay_data(trails)))
    assert len(data["trails"]) == len(trails)
    for given, trail in zip(data["trails"], trails, strict=True):
        for (tree, nodes, path, bonus, kept, said), step in zip(
            given["steps"], trail.steps, strict=True
        ):
            assert [data["texts"][n][0] for n in nodes] == list(step.pieces)
            assert data["texts"][bonus] == [step.bonus, visible(step.bonus)]
            assert (path, kept, said) == (list(step.path), step.kept, step.said)
            root = ElementTree.fromstring(data["trees"][tree])
            assert [t.text for t in root.iter(f"{SVG}text")] == [None] * (step.shape.size + 1)
            green = [r.get("fill") for r in root.iter(f"{SVG}rect")]
            assert [i for i, fill in enumerate(green) if fill == "#7bd3a8"] == list(step.path)
    # a static tree has one picture for each node that a path can end at
    assert len(data["trees"]) <= 1 + 4 + 7


def test_the_data_keeps_to_its_budget(trails):
    small = replay_data(trails, budget=20_000)
    assert 0 < len(small["trails"]) < len(trails)
    assert len(script_json(small)) < 30_000
    few = replay_data(trails, most=2)["trails"]
    assert [len(trail["steps"]) for trail in few] == [2] * len(trails)
    assert few[0]["total"] == len(trails[0].steps)
    assert replay_data(trails, budget=10)["trails"] == []


def test_the_page_says_what_it_leaves_out(run):
    assert "steps that were kept" not in stepper_section(run)
    text = stepper_section(run, most=3)
    assert "The page holds 36 of the" in text


def test_nothing_hostile_gets_out_of_the_data(run):
    text = stepper_section(run)
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert "<b>" not in text
    assert "\u2028" not in text.split('type="application/json"')[1].split("</script>")[0]
    start = text.index(">", text.index('id="steps-data"')) + 1
    data = json.loads(text[start : text.index("</script>", start)])
    assert {piece for piece, _ in data["texts"]} <= set(PIECES)
    assert "</script>" in {piece for piece, _ in data["texts"]}


def test_the_fallback_reads_without_a_script(trails):
    trail = trails[2]
    text = Shown(trail, 3)._repr_html_()
    assert text.count("<svg") == 3
    assert "Step 1: 6 drafted" in text
    assert f"{len(trail.steps) - 3} more steps are not shown" in text
    assert "<script" not in text


def test_steps_of_decode_become_pictures(step):
    trail = trail_of(step, Letters())
    assert trail.steps[0].pieces == (" ", "b", "c", "d", "e")
    assert trail.steps[0].emitted == ("c", "e", "!")
    assert (trail.group, trail.separator) == ("tree", "")
    html = show([step, step], Letters())._repr_html_()
    assert html.count("<svg") == 2
    assert ">·</text>" in html
    ids = show(step)._repr_html_()
    assert ">9</text>" in ids
    assert "2 4 9</pre>" in ids
    assert show([])._repr_html_() == "<p>No steps were kept.</p>"


def test_trees_and_steps_draw_themselves(step):
    html = step._repr_html_()
    assert "4 drafted, 2 accepted, bonus 9" in html
    root = ElementTree.fromstring(step._repr_svg_())
    assert [t.text for t in root.iter(f"{SVG}text")] == ["5", "1", "2", "3", "4", "9"]
    (dashed,) = [line for line in root.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    places = {t.text: (t.get("x"), float(t.get("y", 0)) - 4) for t in root.iter(f"{SVG}text")}
    assert places["4"] == (dashed.get("x1"), float(dashed.get("y1", 0)))
    assert places["9"] == (dashed.get("x2"), float(dashed.get("y2", 0)))
    tree = step.tree._repr_html_()
    assert "law of the children: deterministic" in tree
    assert tree.count("<rect") == 5
