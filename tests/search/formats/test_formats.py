import ast
import pickle

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.errors import InvalidTree, TreespecError
from treespec.search.formats import (
    FORMATS,
    FormatError,
    MalformedTree,
    NoShape,
    NotExportable,
    UnknownFormat,
    dump,
    load,
    reading,
    sequoia,
    sglang_flags,
)

EXACT = ["treespec", "networkx"]
BY_LEVEL = ["medusa", "eagle", "sequoia"]
SETTINGS = ["sglang", "openvino"]
COUNTING_THE_ROOT = ["treespec", "sequoia", "sglang", "networkx"]
ROOT, STAR, BUSHY = TreeShape.chain(0), TreeShape.kary(3, 1), TreeShape.expansion([2, 1, 2])


@st.composite
def shapes(draw, max_size=24, min_size=1):
    size = draw(st.integers(min_size, max_size))
    return TreeShape.from_parents([-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))])


def both_ways(shape, name):
    """The shape read back from the file's content, which must agree with the one from the object."""
    export = dump(shape, name)
    back = FORMATS[name].load(export.content)
    assert load(export.content, name) == back
    assert load(export.value, name) == back
    return export, back


def test_the_groups_cover_the_table():
    assert sorted(EXACT + BY_LEVEL + SETTINGS) == sorted(FORMATS)
    assert not any(FORMATS[name].loses for name in EXACT)
    assert all(FORMATS[name].loses for name in BY_LEVEL + SETTINGS)
    assert [name for name in FORMATS if FORMATS[name].counts_root] == COUNTING_THE_ROOT


@pytest.mark.parametrize("name", EXACT)
@given(shape=shapes())
@example(shape=ROOT)
@settings(max_examples=25)
def test_exact_formats_keep_everything(name, shape):
    export, back = both_ways(shape, name)
    assert back == shape
    assert export.lost == ()


@pytest.mark.parametrize("name", BY_LEVEL)
@given(shape=shapes(min_size=2))
@settings(max_examples=25)
def test_formats_by_level_keep_all_but_the_numbering_and_say_so(name, shape):
    export, back = both_ways(shape, name)
    assert back == shape.breadth_first()
    assert any("numbering" in loss for loss in export.lost) == (back != shape)
    assert set(export.lost) <= set(FORMATS[name].loses)


@pytest.mark.parametrize("name", SETTINGS)
@given(shape=shapes(min_size=2))
@settings(max_examples=25)
def test_settings_keep_the_shape_or_say_that_they_do_not(name, shape):
    export = dump(shape, name)
    if export.lost:
        assert export.lost == FORMATS[name].loses
        with pytest.raises(NoShape, match="do not determine a shape"):
            load(export.content, name)
        with pytest.raises(NoShape):
            load(export.value, name)
    else:
        assert both_ways(shape, name)[1] == shape
    assert bool(export.lost) == (not shape.is_chain and shape.depth > 1)


@given(shapes(min_size=2))
def test_sglang_flags_keep_depth_size_and_a_sufficient_top_k(shape):
    kept = sglang_flags.settings(dump(shape, "sglang").content)
    assert (kept.depth, kept.drafts + 1) == (shape.depth, shape.size)
    assert kept.k >= max(map(len, shape.children))
    assert kept.candidates >= kept.drafts


@pytest.mark.parametrize("name", FORMATS)
def test_a_root_alone(name):
    if name in SETTINGS:
        with pytest.raises(NotExportable, match="plain decoding"):
            dump(ROOT, name)
    else:
        assert both_ways(ROOT, name)[1] == ROOT


@pytest.mark.parametrize("name", FORMATS)
def test_every_export_says_what_is_lost_and_whether_the_root_counts(name):
    export = dump(BUSHY, name)
    assert export.counts_root == FORMATS[name].counts_root
    report = export.report()
    assert ("not counted" in report) != FORMATS[name].counts_root
    assert ("Nothing is lost" in report) == (export.lost == ())
    for sentence in (*export.lost, *export.notes):
        assert sentence in report


@pytest.mark.parametrize("shape", [STAR, BUSHY])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_recognised_in_files_texts_and_objects(name, shape, tmp_path):
    export = dump(shape, name)
    file = tmp_path / "tree"
    content = export.content
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    if export.lost and name in SETTINGS:
        return
    assert load(export.value) == FORMATS[name].load(export.value)
    for source in (file, str(file), file.read_bytes(), content):
        assert load(source) == load(source, name) == FORMATS[name].load(content)


def test_published_trees():
    # FasterDecoding/Medusa medusa/model/medusa_choices.py, in the order of their search
    medusa = """mc_sim_7b_63 = [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [0, 2], [3], [0, 3], [4],
    [0, 4], [2, 0], [0, 5], [0, 0, 1], [5], [0, 6], [6], [0, 7], [0, 1, 0], [1, 1], [7], [0, 8],
    [0, 0, 2], [3, 0], [0, 9], [8], [9], [1, 0, 0], [0, 2, 0], [1, 2], [0, 0, 3], [4, 0], [2, 1],
    [0, 0, 4], [0, 0, 5], [0, 0, 0, 0], [0, 1, 1], [0, 0, 6], [0, 3, 0], [5, 0], [1, 3], [0, 0, 7],
    [0, 0, 8], [0, 0, 9], [6, 0], [0, 4, 0], [1, 4], [7, 0], [0, 1, 2], [2, 0, 0], [3, 1], [2, 2],
    [8, 0], [0, 5, 0], [1, 5], [1, 0, 1], [0, 2, 1], [9, 0], [0, 6, 0], [0, 0, 0, 1], [1, 6],
    [0, 7, 0]]"""
    # SafeAILab/EAGLE eagle/model/choices.py
    eagle = """mc_sim_7b_63 = [[0],[1],[2],[3],[0,0],[0,1],[0,2],[1,0],[1,1],[2,0],[2,1],[3,0]
                ,[0,0,0],[0,0,1],[0,0,2],[0,1,0],[0,1,1],[0,2,0],[0,2,1],[1,0,0],
                [0,0,0,0],[0,0,0,1],[0,0,0,2],[0,0,0,0,0],[0,0,0,0,1]]
    """
    for text, size in ((medusa, 64), (eagle, 26)):
        shape = load(text)
        paths = ast.literal_eval(text.partition("=")[2].strip())
        assert shape.size == size == len(paths) + 1
        assert sorted(map(list, map(shape.rank_path, range(1, size)))) == sorted(paths)
        assert load(dump(shape, "medusa").content) == shape


def test_names_that_are_not_there_list_those_that_are():
    for wrong in (lambda: dump(STAR, "gguf"), lambda: load("[[0]]", "gguf")):
        with pytest.raises(UnknownFormat, match=r"'gguf'.*treespec, medusa.*networkx"):
            wrong()


@pytest.mark.parametrize("source", ["", "tree.json", "3", None, 3, {}, {"a": 1}, '{"a": 1}'])
def test_what_looks_like_nothing_is_refused(source):
    with pytest.raises(FormatError, match="does not look like any known format"):
        load(source)


def test_errors_name_the_file_the_place_and_the_value(tmp_path):
    file = tmp_path / "my tree.txt"
    file.write_text("[[0], [0, -1]]")
    with pytest.raises(MalformedTree, match=r"my tree\.txt: path 1\[1\] = -1"):
        load(file)
    file.write_text('{"version": 1, "order": "node",\n "parents": [-1, 0, 7]}')
    with pytest.raises(MalformedTree, match=r"my tree\.txt: parents\[2\] = 7, .* in 0\.\.1"):
        load(str(file))
    file.write_text('{"version": 1,\n "parents": [-1, 0, 7}')
    with pytest.raises(MalformedTree, match=r"my tree\.txt: line 2, column 22: not JSON"):
        load(str(file))
    with pytest.raises(MalformedTree, match=r"none\.pt: No such file"):
        load(tmp_path / "none.pt")
    with pytest.raises(MalformedTree, match=r"none\.pt.*no such file"):
        load("none.pt", "sequoia")
    with pytest.raises(TreespecError):
        load("[[0], [2]]", "medusa")
    with pytest.raises(InvalidTree, match=r"\(2,\) has no elder sibling"):
        load("[[0], [2]]", "medusa")


def test_sizes_are_bounded_before_anything_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(sequoia, "MAX_BYTES", 200)
    monkeypatch.setattr("treespec.search.formats.MAX_TEXT", 100)
    file = tmp_path / "large"
    for start, most in ((b"[[0],", 100), (b"PK\3\4", 200)):
        file.write_bytes(start + bytes(most))
        for source in (file, file.read_bytes()):
            with pytest.raises(MalformedTree, match=f"more than the {most} "):
                load(source)
    with pytest.raises(MalformedTree, match="more than the 100 "):
        load("[[0]," + " " * 100)


@pytest.mark.parametrize("name", FORMATS)
def test_trees_of_absurd_size_are_refused(name):
    size = reading.MAX_NODES + 1
    with pytest.raises(NotExportable, match="4097 nodes: at most 4096"):
        dump(TreeShape.kary(size - 1, 1), name)
    monsters = {
        "treespec": {"version": 1, "order": "node", "parents": [-1] + [0] * (size - 1)},
        "medusa": [[i] for i in range(size - 1)],
        "networkx": {"directed": True, "edges": [], "nodes": [{"id": i} for i in range(size)]},
        "sequoia": dict.fromkeys(sequoia.KEYS, size),
        "sglang": f"--speculative-num-steps {size} --speculative-eagle-topk 1",
        "openvino": {"branching_factor": 1, "tree_depth": size, "num_assistant_tokens": size},
    }
    with pytest.raises(MalformedTree, match=r"409[56]"):
        load(monsters[name if name != "eagle" else "medusa"], name)


def test_the_largest_tree_still_goes_through():
    largest = TreeShape.kary(reading.MAX_NODES - 1, 1)
    for name in ("treespec", "medusa"):
        assert load(dump(largest, name).content, name) == largest


def test_tensors_and_pickles_given_by_mistake():
    with pytest.raises(MalformedTree, match="bare pickle"):
        load(pickle.dumps([-1, 0]))
    with pytest.raises(FormatError):
        load(torch.tensor([-1, 0]))
