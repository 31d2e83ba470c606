"""SGLang, TensorRT-LLM, llama.cpp and networkx: documented facts, and malformed input."""

import itertools
import json

import networkx
import pytest
import torch

from treespec import TreeShape
from treespec.search.formats import MalformedTree, NoShape, dump, load
from treespec.search.formats.top_k import TopK
from treespec.testing import plane_trees

BUSHY = TreeShape.expansion([2, 1, 2])


def small_shapes(most=7, least=2):
    for size in range(least, most + 1):
        yield from plane_trees(size)


def grown(shape, k):
    """Rank paths of the nodes that EAGLE-2 keeps with top-k `k` if the draft model prefers the shape."""
    wanted = {shape.rank_path(i): bool(shape.children[i]) for i in range(shape.size)}

    def score(path):  # never better than the parent's
        return sum(
            2**-i * (1 + wanted.get(path[: i + 1], -1))
            for i in range(len(path))
            if path[:i] in wanted
        )

    def key(path):  # the shape's nodes first, those with children before its leaves
        return (path in wanted, wanted.get(path, False), score(path))

    frontier, pool = [()], []
    for _ in range(shape.depth):
        level = [(*path, rank) for path in frontier for rank in range(k)]
        pool += level
        frontier = sorted(level, key=key, reverse=True)[:k]
    return sorted(sorted(pool, key=key, reverse=True)[: shape.size - 1])


def test_top_k_is_the_least_with_which_eagle_2_can_draw_the_shape():
    narrow = [TreeShape.kary(2, 3), TreeShape.from_parents([-1, 0, 0, 1, 1, 2, 3, 4, 5])]
    assert [TopK.of(shape).k for shape in narrow] == [4, 3]  # more parents in a level than children
    for shape in (*small_shapes(), *narrow):
        k = TopK.of(shape).k
        nodes = sorted(shape.rank_path(node) for node in range(1, shape.size))
        assert grown(shape, k) == nodes
        assert k == 1 or grown(shape, k - 1) != nodes


def test_flags_of_a_launch_command():
    flags = "--speculative-num-steps 1 --speculative-eagle-topk 4 --speculative-num-draft-tokens=4"
    command = f"python3 -m sglang.launch_server --model 'a b' {flags} --log-level warning"
    assert load(command) == load(flags, "sglang") == TreeShape.kary(3, 1)
    assert load("--speculative-num-steps 3 --speculative-eagle-topk 1") == TreeShape.chain(3)
    published = {
        "speculative_num_steps": 5,
        "speculative_eagle_topk": 8,
        "speculative_num_draft_tokens": 64,
    }
    with pytest.raises(
        NoShape, match="top-k 8, depth 5 and 63 draft tokens do not determine a shape"
    ):
        load(published)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--speculative-num-steps 3", "'speculative_eagle_topk'.*not given"),
        (
            "--speculative-num-steps 3 --speculative-eagle-topk 2",
            "'speculative_num_draft_tokens'.*not given",
        ),
        ("--speculative-num-steps x", r"--speculative-num-steps \(word 0\) is 'x'"),
        ("--speculative-num-steps", r"\(word 0\) is ''"),
        ("--speculative-num-steps -3", "is '-3'"),
        ("--speculative-num-steps 3 --speculative-num-steps=3", "appears twice"),
        ("--speculative-num-steps 0 --speculative-eagle-topk 1", "speculative_num_steps = 0"),
        (
            "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
            "steps . 1 = 4",
        ),
        (
            "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 1",
            "at least 2",
        ),
        (
            "--speculative-num-steps 2 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
            "draft only 6",
        ),
        ([], "text or a dictionary"),
    ],
)
def test_malformed_flags(flags, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(flags, "sglang")


def test_verify_tensors_are_those_of_sglangs_kernel():
    for shape in small_shapes(least=1):
        child, sibling = [-1] * shape.size, [-1] * shape.size
        for node in range(
            shape.size - 1, 0, -1
        ):  # it puts each node before its parent's first child
            child[shape.parents[node]], sibling[node] = node, child[shape.parents[node]]
        tensors = dump(shape, "sglang-tensors").value
        assert tensors["retrive_next_token"].tolist() == [child]
        assert tensors["retrive_next_sibling"].tolist() == [sibling]
        assert tensors["retrive_index"].tolist() == [list(range(shape.size))]
        assert tensors["positions"].tolist() == list(shape.depths)
        assert tensors["retrive_index"].dtype == tensors["positions"].dtype == torch.int64
        newer = {name.replace("retrive", "retrieve"): tensor + 5 * (name in ("positions", "retrive_index"))
                 for name, tensor in tensors.items()}  # fmt: skip
        assert load(newer) == shape


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"retrive_next_token": None}, "must be a list"),
        (
            {"retrive_next_token": [[1, -1, -1], [1, -1, -1]]},
            "= \\[1, -1, -1\\] is not an integer",
        ),
        ({"retrive_next_token": torch.ones(2, 3, dtype=torch.long)}, "holds 2 trees"),
        ({"retrive_next_token": torch.ones(3)}, "int32 or int64"),
        ({"retrive_next_token": torch.ones(1, 1, 3, dtype=torch.long)}, "int32 or int64"),
        ({"retrive_next_token": torch.ones(1, dtype=torch.long).expand(10**9)}, "1000000000 nodes"),
        ({"retrive_next_token": []}, "needs? one for each node|need one"),
        ({"retrive_next_token": [1, -1]}, "has 3 entries, but retrive_next_token has 2"),
        (
            {"retrive_next_token": [3, -1, -1]},
            r"retrive_next_token\[0\] = 3, but must be an integer in 1..2",
        ),
        (
            {"retrive_next_token": [0, -1, -1]},
            r"retrive_next_token\[0\] = 0, but must be an integer in 1..2",
        ),
        ({"retrive_next_token": [-2, -1, -1]}, r"retrive_next_token\[0\] = -2"),
        ({"retrive_next_token": [-1, -1, -1]}, "node 1 is not the child of any earlier node"),
        ({"retrive_next_token": [1, 2, -1]}, r"next_token\[1\] = 2, but node 2 is node 0's child"),
        (
            {"retrive_next_sibling": [-1, 1, -1]},
            r"next_sibling\[1\] = 1, but must be an integer in 2..2",
        ),
        ({"retrive_next_sibling": [1, 2, -1]}, r"next_sibling\[0\] = 1, but the root"),
        ({"retrive_next_sibling": [-1, -1, -1]}, "node 2 is not the child of any earlier node"),
        ({"retrive_index": [0, 2, 1]}, "count up by one"),
        ({"positions": [4, 5, 6]}, r"plus the depths \[0, 1, 1\], not \[4, 5, 6\]"),
        ({"mask": [1]}, "the key 'mask'"),
        ({"retrieve_next_token": [1, -1, -1]}, "both spellings"),
    ],
)
def test_malformed_verify_tensors(change, problem):
    tensors = {"retrive_next_token": [1, -1, -1], "retrive_next_sibling": [-1, 2, -1]}
    assert load(tensors) == TreeShape.kary(2, 1)
    with pytest.raises(MalformedTree, match=problem):
        load(tensors | change, "sglang-tensors")


def test_tensorrt_llm_takes_what_is_exported():
    for shape in small_shapes():
        settings = dump(shape, "tensorrt-llm").value
        depth, drafts = (
            settings["max_draft_len"],
            settings.get("max_total_draft_tokens", shape.depth),
        )
        assert (depth, drafts) == (shape.depth, shape.size - 1) or shape.is_chain
        assert depth <= drafts <= settings.get("dynamic_tree_max_topK", 1) * depth
        assert settings.get("use_dynamic_tree", False) == (not shape.is_chain)
        choices = dump(shape, "tensorrt-llm-choices").value
        assert (choices["max_draft_len"], choices["num_medusa_heads"]) == (
            shape.size - 1,
            shape.depth,
        )


def test_tensorrt_llm_reads_its_settings():
    paths = "[[0], [1], [0, 0]]"
    right = TreeShape.from_parents([-1, 0, 0, 1])
    for text in (
        f"speculative_config:\n  decoding_type: Eagle\n  eagle_choices: '{paths}'\n  max_draft_len: 2",
        f"medusa_choices: {paths}\nmax_draft_len: 3\nspeculative_model: somewhere",
        f'{{"decoding_type": "Medusa", "max_draft_len": 3, "medusa_choices": {paths}}}',
        f'{{"eagle_choices": {paths}, "use_dynamic_tree": false, "dynamic_tree_max_topK": null}}',
    ):
        assert load(text) == right
    assert load("max_draft_len: 4\nmax_total_draft_tokens: 4") == TreeShape.chain(4)
    with pytest.raises(NoShape, match="top-k 10, depth 6 and 60"):
        load("use_dynamic_tree: true\ndynamic_tree_max_topK: 10\nmax_draft_len: 6")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("decoding_type: Eagle3", "max_draft_len is missing"),
        ("max_draft_len: 0", "max_draft_len = 0"),
        ("max_draft_len: true", "max_draft_len = True"),
        (
            "max_draft_len: 2\nmax_total_draft_tokens: 5",
            "5, but without a tree it must be max_draft_len = 2",
        ),
        ("max_draft_len: 2\nuse_dynamic_tree: true", "dynamic_tree_max_topK is missing"),
        ("max_draft_len: 2\nuse_dynamic_tree: 1", "use_dynamic_tree = 1"),
        ("max_draft_len: 2\ndynamic_tree_max_topK: 2\nmax_total_draft_tokens: 5", "= 2..4"),
        ("use_dynamic_tree: true\neagle_choices: [[0]]", "exclude each other"),
        ("medusa_choices: [[0]]\neagle_choices: [[0]]", "exclude each other"),
        (
            "eagle_choices: [[0], [1]]\nmax_draft_len: 2",
            "max_draft_len = 2, but by eagle_choices it must be 1",
        ),
        ("medusa_choices: [[0]]\nmax_total_draft_tokens: 2", "but by medusa_choices it must be 1"),
        ("eagle_choices: [[1]]", "no elder sibling"),
        ("eagle_choices: 3", "a list of rank paths"),
        ("eagle_choices: [[0]", "line 1, column 20: not YAML"),
        ("- max_draft_len: 2", "settings must be an object"),
    ],
)
def test_malformed_settings(text, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(text, "tensorrt-llm")


def test_rows_of_llama_cpp_list_the_leaves_below_each_node():
    for shape in small_shapes(least=1):
        export = dump(shape, "llama.cpp")
        assert [row["pos"] for row in export.value] == list(shape.depths)
        sequences = [set(row["seq_id"]) for row in export.value]
        assert sequences[0] == set(range(len(shape.leaves)))
        assert {min(sequences[leaf]) for leaf in shape.leaves} == sequences[0]
        for node, below in enumerate(sequences):
            assert below == {
                min(sequences[leaf]) for leaf in shape.leaves if node in shape.path(leaf)
            }
        moved = [row | {"pos": row["pos"] + 41, "token": 7, "logits": True} for row in export.value]
        assert load(moved) == shape
    assert any("at most 256" in note for note in dump(TreeShape.kary(257, 1), "llama.cpp").notes)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({0: {"pos": 0, "seq_id": []}}, "row 0 is in no sequence"),
        ({0: {"pos": 0, "seq_id": [0]}}, r"row 2 .* sequences \[1\].* 0 earlier rows"),
        ({1: {"pos": 2, "seq_id": [0]}}, "row 1 at position 2 .* 0 earlier rows at position 1"),
        ({2: {"pos": 1, "seq_id": [0]}}, "rows 1 and 2 are both at position 1 of sequence 0"),
        ({3: {"pos": 2, "seq_id": [0, 1]}}, r"row 3 .* \[0, 1\], but these have 2 earlier rows"),
        ({1: {"pos": -1, "seq_id": [0]}}, "pos of row 1 = -1"),
        ({1: {"pos": 1, "seq_id": [-1]}}, r"seq_id of row 1\[0\] = -1"),
        ({1: {"pos": 1, "seq_id": 0}}, "seq_id of row 1 must be a list"),
        ({1: {"pos": 1}}, "row 1 has no 'seq_id'"),
        ({1: {"pos": 1, "seq_id": [0], "parent": 0}}, "row 1 has the key 'parent'"),
        ({1: [1, 0]}, "row 1 must be an object"),
    ],
)
def test_malformed_rows(change, problem):
    rows = [{"pos": 0, "seq_id": [0, 1]}, {"pos": 1, "seq_id": [0]}, {"pos": 1, "seq_id": [1]}]
    rows.append({"pos": 2, "seq_id": [0]})
    assert load(rows) == TreeShape.from_parents([-1, 0, 0, 1])
    with pytest.raises(MalformedTree, match=problem):
        load([change.get(i, row) for i, row in enumerate(rows)], "llama.cpp")
    for nothing in ([], {}, "[]", "3"):
        with pytest.raises(MalformedTree, match="a list of rows"):
            load(nothing, "llama.cpp")


def test_graphs_are_those_of_networkx():
    graph = dump(BUSHY, "networkx").value
    assert networkx.is_arborescence(graph)
    assert networkx.shortest_path_length(graph, 0) == dict(enumerate(BUSHY.depths))
    assert [graph.nodes[i]["rank"] for i in range(BUSHY.size)] == list(BUSHY.ranks)
    for data in (networkx.node_link_data(graph), networkx.node_link_data(graph, edges="links")):
        assert load(data) == load(json.dumps(data)) == BUSHY
    shuffled = networkx.DiGraph(list(reversed(list(graph.edges))))
    assert load(shuffled) == BUSHY


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (networkx.Graph([(0, 1)]), "must be directed"),
        (networkx.MultiDiGraph([(0, 1)]), "without parallel edges"),
        (networkx.DiGraph(), "0..size-1"),
        (networkx.DiGraph([(1, 2)]), "node 1 = 2, but must be an integer in 0..1"),
        (networkx.DiGraph([("a", "b")]), "node 0 = 'a'"),
        (networkx.DiGraph([(0, 2), (2, 1)]), "parent of node 1 = 2, but must be an integer in 0..0"),
        (networkx.DiGraph([(0, 1), (0, 2), (1, 2)]), "node 2 has two parents: 0 and 1"),
        (networkx.DiGraph([(0, 1), (1, 1)]), "parent of node 1 = 1"),
        (networkx.DiGraph([(0, 1), (1, 0)]), "target of an edge = 0"),
        (networkx.empty_graph(3, networkx.DiGraph), "node 1 has no parent"),
        ({"directed": True, "nodes": [{"id": 0}, {"id": 0}], "edges": []}, "once each"),
        ({"directed": True, "nodes": [{"id": 0}, {}], "edges": []}, "node 1 must be an object"),
        ({"directed": True, "nodes": [{"id": 0}], "edges": [[0, 1]]}, "edge 0 must be an object"),
        ({"directed": True, "nodes": [{"id": 0}]}, "edges must be a list"),
        ({"directed": True, "nodes": {}, "edges": []}, "nodes must be a list"),
        ({"directed": 1, "nodes": [{"id": 0}], "edges": []}, "must be directed"),
        ({"nodes": []}, "no 'directed'"),
    ],
)  # fmt: skip
def test_malformed_graphs(graph, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(graph, "networkx")


def test_a_missing_networkx_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "networkx", None)
    with pytest.raises(ValueError, match="pip install networkx"):
        dump(BUSHY, "networkx")


def test_every_pair_of_formats_agrees_on_a_tree():
    whole = ["treespec", "medusa", "sequoia", "vllm", "sglang-tensors", "llama.cpp", "networkx"]
    for first, second in itertools.product([*whole, "tensorrt-llm-choices"], repeat=2):
        assert load(dump(load(dump(BUSHY, first).content), second).content) == BUSHY
