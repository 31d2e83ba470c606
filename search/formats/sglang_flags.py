"""SGLang's flags: depth, width and size of its EAGLE trees, but not their shapes.

Facts (sgl-project/sglang): `python/sglang/srt/server_args.py` has `--speculative-num-steps`,
`--speculative-eagle-topk` and `--speculative-num-draft-tokens`, and sets the last to steps + 1 if top-k
is 1; `organize_draft_results` in `python/sglang/srt/speculative/eagle_utils.py` keeps the best
`num_draft_token - 1` candidates, so **the root is counted** in the last.
"""

from typing import Any

from treespec.checks import integer
from treespec.search.formats.export import Export, Format
from treespec.search.formats.reading import MAX_NODES, MalformedTree, shown
from treespec.search.formats.top_k import SHAPE, TopK
from treespec.tree.shape import TreeShape

FLAGS = ["speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"]


def settings(data: Any) -> TopK:
    """Read the three numbers from a command line (whose other words are ignored) or a dictionary.

    With a top-k of 1 the number of draft tokens may be omitted: it is steps + 1.

    Raises:
        MalformedTree: if a flag is missing, appears twice, or is not a positive integer.

    Example:
        >>> settings("--speculative-num-steps 3 --speculative-eagle-topk=4 "
        ...          "--speculative-num-draft-tokens 16")
        TopK(k=4, depth=3, drafts=15)
    """
    given = _flags(data) if isinstance(data, str) else data
    if not isinstance(given, dict):
        raise MalformedTree(f"SGLang's flags must be a text or a dictionary, not {shown(given)}")
    numbers = {
        name: integer(name, given[name], 1, MalformedTree, MAX_NODES)
        for name in FLAGS
        if name in given
    }
    if numbers.get("speculative_eagle_topk") == 1 and "speculative_num_steps" in numbers:
        numbers.setdefault("speculative_num_draft_tokens", numbers["speculative_num_steps"] + 1)
    missing = [name for name in FLAGS if name not in numbers]
    if missing:
        raise MalformedTree(f"{missing} not given, but all of {FLAGS} are needed")
    steps, k, tokens = (numbers[name] for name in FLAGS)
    if k == 1 and tokens != steps + 1:
        raise MalformedTree(
            f"speculative_num_draft_tokens = {tokens}, but with a top-k of 1 SGLang verifies "
            f"steps + 1 = {steps + 1} tokens"
        )
    if tokens < 2:
        raise MalformedTree(
            "speculative_num_draft_tokens = 1, but it counts the root, so it must be at least 2"
        )
    return TopK(k, steps, tokens - 1)


def _flags(text: str) -> dict[str, int]:
    words = text.split()
    values: dict[str, int] = {}
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in FLAGS:
            continue
        if not equals:
            value = words[i + 1] if i + 1 < len(words) else ""
        if not (value.isascii() and value.isdigit() and len(value) <= 9):
            raise MalformedTree(f"{flag} (word {i}) is {shown(value)}, but must be an integer")
        if name in values:
            raise MalformedTree(f"{flag} appears twice (again as word {i})")
        values[name] = int(value)
    return values


def load(data: Any) -> TreeShape:
    """The shape, if the flags permit only one: a chain (top-k 1) or a single level (1 step).

    Raises:
        MalformedTree: if the flags are invalid; see `settings`.
        NoShape: if the tree depends on the drafted tokens.
    """
    return settings(data).shape()


def dump(shape: TreeShape) -> Export:
    """The flags of the smallest search that can draw the shape.

    Raises:
        NotExportable: if the shape is the root alone.

    Example:
        >>> print(dump(TreeShape.chain(3)).content)
        --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4
    """
    numbers = TopK.of(shape)
    value = dict(zip(FLAGS, (numbers.depth, numbers.k, numbers.drafts + 1), strict=True))
    content = " ".join(f"--{name.replace('_', '-')} {number}" for name, number in value.items())
    return Export(content, counts_root=True, lost=numbers.lost, value=value)


FORMAT = Format(load, dump, True, (SHAPE,), "SGLang's --speculative-* flags")
