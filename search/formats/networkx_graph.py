"""networkx: a directed graph from parents to children, and its node-link JSON.

Nodes are 0..size-1; **the root is counted**, as node 0; siblings are ordered by their number. Nodes carry
`depth` and `rank` for drawing, which are derived and not read back. networkx is imported only to build a
graph, not to read one (networkx/networkx, `networkx/readwrite/json_graph/node_link.py`: edges are under
"edges", before version 3.4 under "links").
"""

import json
from typing import Any

from treespec.checks import integer
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import (
    FormatError,
    MalformedTree,
    fields,
    node_count,
    read_json,
    shape_of,
    shown,
)
from treespec.tree.shape import TreeShape


def load(data: Any) -> TreeShape:
    """Read a `networkx.DiGraph`, or its node-link data (JSON or dictionary).

    Raises:
        MalformedTree: if the graph is undirected, has parallel edges, nodes other than 0..size-1, a node
            with two parents or none, or a child before its parent.
    """
    if callable(getattr(data, "is_directed", None)):
        kinds = {"directed": data.is_directed(), "multigraph": data.is_multigraph()}
        node_count(data.number_of_nodes())
        nodes, edges = list(data.nodes), [(a, b) for a, b, *_ in data.edges]
    else:
        kinds = fields(
            "a node-link graph",
            read_json(data) if isinstance(data, str) else data,
            ["directed", "nodes"],
            ["multigraph", "graph", "edges", "links"],
        )
        node_list = _list(kinds, "nodes")
        nodes = [_entries("node", i, node, ["id"])[0] for i, node in enumerate(node_list)]
        edge_list = _list(kinds, "links" if "links" in kinds else "edges")
        ends = ["source", "target"]
        edges = [_entries("edge", i, edge, ends) for i, edge in enumerate(edge_list)]
    if kinds["directed"] is not True or kinds.get("multigraph", False) is not False:
        raise MalformedTree("the graph must be directed, without parallel edges: a DiGraph")
    size = node_count(len(nodes))
    nodes = [integer(f"node {i}", node, 0, MalformedTree, size - 1) for i, node in enumerate(nodes)]
    if len(set(nodes)) != size or not size:
        raise MalformedTree(f"the nodes must be 0..size-1, once each, not {shown(nodes)}")
    parents = [-1] * size
    for source, target in edges:
        target = integer("the target of an edge", target, 1, MalformedTree, size - 1)
        source = integer(f"the parent of node {target}", source, 0, MalformedTree, target - 1)
        if parents[target] != -1:
            raise MalformedTree(f"node {target} has two parents: {parents[target]} and {source}")
        parents[target] = source
    for node in range(1, size):
        if parents[node] == -1:
            raise MalformedTree(f"node {node} has no parent: only node 0, the root, has none")
    return shape_of(parents)


def _list(graph: dict, key: str) -> list:
    value = graph.get(key)
    if not isinstance(value, list):
        raise MalformedTree(f"{key} must be a list, not {shown(value)}")
    node_count(len(value))
    return value


def _entries(what: str, i: int, value: Any, keys: list[str]) -> tuple:
    if not isinstance(value, dict) or any(key not in value for key in keys):
        raise MalformedTree(f"{what} {i} must be an object with {keys}, not {shown(value)}")
    return tuple(value[key] for key in keys)


def dump(shape: TreeShape) -> Export:
    """The shape as a `networkx.DiGraph` (`value`) and as node-link JSON (`content`).

    Raises:
        FormatError: if networkx is not installed.
    """
    try:
        import networkx
    except ImportError as error:
        raise FormatError("networkx is not installed: pip install networkx") from error
    graph = networkx.DiGraph()
    for node, (depth, rank) in enumerate(zip(shape.depths, shape.ranks, strict=True)):
        graph.add_node(node, depth=depth, rank=rank)
    graph.add_edges_from((parent, node) for node, parent in enumerate(shape.parents) if node)
    text = json.dumps(networkx.node_link_data(graph))
    return Export(text, counts_root=True, value=graph)


FORMAT = Format(load, dump, True, (), "networkx's DiGraph and its node-link JSON")
