"""TensorRT-LLM's settings: choices for static trees, and three numbers for dynamic ones.

Facts (NVIDIA/TensorRT-LLM, `tensorrt_llm/llmapi/llm_args.py`): `medusa_choices` and `eagle_choices` are
rank paths; `eagle_choices` may also be their text, gives `max_total_draft_tokens = len(choices)` and
`max_draft_len` = depth, and excludes `use_dynamic_tree`; with Medusa, `max_draft_len` is the number of
choices (63 for `mc_sim_7b_63`). Dynamic trees need `dynamic_tree_max_topK` and `max_draft_len <=
max_total_draft_tokens <= dynamic_tree_max_topK * max_draft_len`; otherwise the draft is a chain of
`max_draft_len`. **The root is not counted.** `SpecTreeManager`
(`tensorrt_llm/_torch/speculative/spec_tree_manager.py`) takes choices to be sorted level by level. The
masks are in `attention_masks.packed`.
"""

from typing import Any

from treespec.door import integer
from treespec.errors import Unreadable
from treespec.search.formats.errors import MalformedTree, NotExportable
from treespec.search.formats.export import NUMBERING, Export, Format, numbering
from treespec.search.formats.rank_paths import from_paths, from_text, to_paths
from treespec.search.formats.reading import MAX_NODES, read_json, shown
from treespec.search.formats.top_k import SHAPE, TopK
from treespec.shape import TreeShape

__all__ = ["CHOICES", "FORMAT", "dump", "dump_choices", "load"]

LEGACY = (
    "medusa_choices belong to the TensorRT backend, which newer versions lack; "
    "there, export tensorrt-llm"
)


def load(data: Any) -> TreeShape:
    """Read settings (YAML or JSON text, or a dictionary), possibly nested in `speculative_config`.

    Choices give their shape; numbers give a chain or a single level. Settings unrelated to the tree are
    ignored.

    Raises:
        MalformedTree: if the settings contradict each other, or the engine would refuse them.
        NoShape: if the tree depends on the drafted tokens.

    Example:
        >>> load("max_draft_len: 3") == TreeShape.chain(3)
        True
    """
    settings = _read(data) if isinstance(data, str) else data
    if isinstance(settings, dict) and isinstance(settings.get("speculative_config"), dict):
        settings = settings["speculative_config"]
    if not isinstance(settings, dict):
        raise MalformedTree(f"settings must be an object, not {shown(settings)}")
    given = {key: value for key, value in settings.items() if value is not None}
    numbers = {
        key: integer(key, given[key], 1, MalformedTree, MAX_NODES)
        for key in ("max_draft_len", "max_total_draft_tokens", "dynamic_tree_max_topK")
        if key in given
    }
    dynamic = given.get("use_dynamic_tree", "dynamic_tree_max_topK" in given)
    if not isinstance(dynamic, bool):
        raise MalformedTree(f"use_dynamic_tree = {shown(dynamic)}, but must be true or false")
    choices = [key for key in ("medusa_choices", "eagle_choices") if key in given]
    if len(choices) + dynamic > 1:
        raise MalformedTree(
            f"{choices} and use_dynamic_tree exclude each other: give only one of them"
        )
    if choices:
        return _static(choices[0], given[choices[0]], numbers)
    if "max_draft_len" not in numbers:
        raise MalformedTree("max_draft_len is missing: the depth of the tree")
    return _grown(numbers, dynamic)


def _read(text: str) -> Any:
    """The object in a JSON or YAML text; only plain data, never Python objects."""
    if text.lstrip().startswith("{"):
        return read_json(text)
    from treespec.files import parse_yaml

    try:
        return parse_yaml(text)
    except Unreadable as error:
        place = "" if error.line is None else f"line {error.line}, column {error.column}: "
        raise MalformedTree(f"{place}not YAML: {error.said}") from None


def _static(key: str, choices: Any, numbers: dict[str, int]) -> TreeShape:
    shape = from_text(choices) if isinstance(choices, str) else from_paths(choices)
    drafts = shape.size - 1
    depths = [shape.depth] if key == "eagle_choices" else [drafts, shape.depth]
    for name, allowed in (("max_total_draft_tokens", [drafts]), ("max_draft_len", depths)):
        if numbers.get(name, allowed[0]) not in allowed:
            raise MalformedTree(
                f"{name} = {numbers[name]}, but by {key} it must be {allowed[0]}: correct it, or leave "
                "it out"
            )
    return shape


def _grown(numbers: dict[str, int], dynamic: bool) -> TreeShape:
    depth, total = numbers["max_draft_len"], numbers.get("max_total_draft_tokens")
    if not dynamic:
        if total not in (None, depth):
            raise MalformedTree(
                f"max_total_draft_tokens = {total}, but without a tree it must be max_draft_len = {depth}"
            )
        return TopK(1, depth, depth).shape()
    if "dynamic_tree_max_topK" not in numbers:
        raise MalformedTree("dynamic_tree_max_topK is missing: use_dynamic_tree needs it")
    k = numbers["dynamic_tree_max_topK"]
    total = k * depth if total is None else total
    if not depth <= total <= k * depth:
        raise MalformedTree(
            f"max_total_draft_tokens = {total}, but must be in max_draft_len..dynamic_tree_max_topK * "
            f"max_draft_len = {depth}..{k * depth}"
        )
    return TopK(k, depth, total).shape()


def dump(shape: TreeShape) -> Export:
    """The settings of a dynamic tree that can take this shape, or of a chain if the shape is one.

    Raises:
        NotExportable: if the shape is the root alone.

    Example:
        >>> print(dump(TreeShape.expansion([2, 1])).content)
        speculative_config:
          decoding_type: Eagle3
          max_draft_len: 2
          use_dynamic_tree: true
          dynamic_tree_max_topK: 2
          max_total_draft_tokens: 4
    """
    numbers = TopK.of(shape)
    value: dict[str, Any] = {"decoding_type": "Eagle3", "max_draft_len": numbers.depth}
    if numbers.k > 1:
        value["use_dynamic_tree"] = True
        value["dynamic_tree_max_topK"] = max(numbers.k, -(-numbers.drafts // numbers.depth))
        value["max_total_draft_tokens"] = numbers.drafts
    lost = () if numbers.k == 1 or numbers.depth == 1 else (SHAPE,)
    return Export(_written(value), counts_root=False, lost=lost, value=value)


def dump_choices(shape: TreeShape) -> Export:
    """The shape as Medusa choices.

    Raises:
        NotExportable: if the shape is the root alone.
    """
    if shape.size == 1:
        raise NotExportable(
            "the root alone is plain decoding: leave out the engine's speculative_config"
        )
    value = {
        "decoding_type": "Medusa",
        "max_draft_len": shape.size - 1,
        "num_medusa_heads": shape.depth,
        "medusa_choices": [list(path) for path in to_paths(shape)],
    }
    lost = numbering(shape)
    return Export(_written(value), counts_root=False, lost=lost, notes=(LEGACY,), value=value)


def _written(settings: dict[str, Any]) -> str:
    """The settings as YAML, one per line; their values need no quoting."""
    written = {key: "true" if value is True else value for key, value in settings.items()}
    return "\n".join(
        ["speculative_config:", *(f"  {key}: {value}" for key, value in written.items())]
    )


FORMAT = Format(load, dump, False, (SHAPE,), "TensorRT-LLM's settings of dynamic trees and chains")
CHOICES = Format(
    load, dump_choices, False, (NUMBERING,), "TensorRT-LLM's medusa_choices and eagle_choices"
)
