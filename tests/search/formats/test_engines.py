"""SGLang, OpenVINO GenAI and networkx: documented facts, and malformed input."""

import itertools
import json

import networkx
import pytest

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
    ],
)
def test_malformed_flags(flags, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(flags, "sglang")


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
        (networkx.DiGraph([(0, 2), (2, 1)]), "parent of node 1 = 2, but must be an integer in 0..0"),
        (networkx.DiGraph([(0, 1), (0, 2), (1, 2)]), "node 2 has two parents: 0 and 1"),
        (networkx.empty_graph(3, networkx.DiGraph), "node 1 has no parent"),
        ({"directed": True, "nodes": [{"id": 0}, {}], "edges": []}, "node 1 must be an object"),
        ({"directed": True, "nodes": [{"id": 0}], "edges": [[0, 1]]}, "edge 0 must be an object"),
        ({"directed": True, "nodes": [{"id": 0}]}, "edges must be a list"),
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
    whole = ["treespec", "medusa", "sequoia", "networkx"]
    for first, second in itertools.product(whole, repeat=2):
        assert load(dump(load(dump(BUSHY, first).content), second).content) == BUSHY


def test_settings_of_openvino_do_not_count_the_root():
    told = dump(BUSHY, "openvino")
    assert (told.value["tree_depth"], told.value["num_assistant_tokens"]) == (3, BUSHY.size - 1)
    assert told.lost
    assert load({"branching_factor": 1, "tree_depth": 4, "num_assistant_tokens": 4}).is_chain
    with pytest.raises(NoShape, match="top-k 2, depth 3 and 6 draft tokens"):
        load('{"branching_factor": 2, "tree_depth": 3, "num_assistant_tokens": 6}')
    with pytest.raises(MalformedTree, match="num_assistant_tokens"):
        load({"branching_factor": 1, "tree_depth": 4})
    with pytest.raises(MalformedTree, match="tree_depth = 0"):
        load({"branching_factor": 1, "tree_depth": 0, "num_assistant_tokens": 4})
