"""`treespec replay`: replay trees named on the command line on recorded traces, and tabulate the result."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from treespec.errors import TreespecError
from treespec.experiments.config.files import is_file
from treespec.experiments.config.shapes import AnyShape, OptimalShape, tree_of
from treespec.experiments.config.spellings import examples, is_spelled, spelled
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.next_right import lines, next_right_table, notes
from treespec.experiments.report.right_shares import NextRight
from treespec.experiments.report.table import Column, Table, keyed
from treespec.files import brief, parse_yaml
from treespec.plugins import Budget
from treespec.protocols import Growth
from treespec.reading_models import problems
from treespec.search import InvalidTrace, Trace, formats
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth.keys import MEASURED, GrowthSettings
from treespec.search.intervals import Interval
from treespec.search.traces.next_right import accepted_nodes
from treespec.search.traces.replay import EMITTED, Replay, replay, replay_budget
from treespec.tree.shape import TreeShape

_TYPED = (
    "chain:4",
    "kary:2x3 (branching x depth)",
    "chains:2x4 (width x depth)",
    "expansion:3x2x1",
)
"""How trees are typed. Kinds that are searched are missing: they need rates."""


def read_shapes(text: str) -> dict[str, TreeShape]:
    """Parse trees such as `chain:4,kary:2x3,expansion:3x2x1,tree.json`; the words are the keys."""
    shapes: dict[str, TreeShape] = {}
    for word in (part.strip() for part in text.split(",")):
        try:
            if is_spelled(word):
                shapes[word] = _spelled_tree(word)
            elif is_file(word):
                shapes[word] = formats.load(Path(word))
            else:
                raise ValueError("neither a known kind of tree nor a file")
        except (TreespecError, ValueError) as error:
            raise ConfigError(
                f"--shapes: {brief(word)} is not a tree ({error}); write {', '.join(_TYPED)}, or a file"
            ) from None
    return shapes


def _spelled_tree(word: str) -> TreeShape:
    data = spelled(word)
    try:
        shape = TypeAdapter(AnyShape).validate_python(data)
    except ValidationError as error:
        raise ValueError(problems(data, error, "it")[0]) from None
    if isinstance(shape, OptimalShape):
        raise ValueError("it needs acceptance rates: `treespec search` finds it")
    tree = tree_of(shape)
    assert isinstance(tree, TreeShape)
    return tree


def read_growths(texts: Sequence[str]) -> dict[str, Growth | Budget]:
    """Parse growths and budgets written as in configs, `{kind: eagle2, k: 4, depth: 6, size: 16}`."""
    growths: dict[str, Growth | Budget] = {}
    for text in texts:
        data: Any = None
        try:
            data = parse_yaml(text)
            shape = TypeAdapter(AnyShape).validate_python(data)
            if MEASURED in (getattr(shape, key, None) for key in ("latency", "calibration")):
                raise ValueError("nothing is measured here: name files (latency, calibration)")
            growth = tree_of(shape)
            if isinstance(growth, Budget):
                growths[f"budget {growth.branching}x{growth.depth}, {growth.size}"] = growth
            elif isinstance(shape, GrowthSettings) and isinstance(growth, Growth):
                growths[shape.label] = growth
            else:
                raise ValueError("it is not a growth: name trees with --shapes")
        except (TreespecError, ValueError) as error:
            invalid = isinstance(error, ValidationError)
            problem = problems(data, error, "it")[0] if invalid else error
            raise ConfigError(f"--growth {brief(text)}: {problem}; {_growths_near(data)}") from None
    return growths


def _growths_near(data: Any) -> str:
    """A hint that shows how to write a growth of the kind that was meant."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    known = examples()
    return f"write it as configs do, such as '{known.get(str(kind), known['eagle2'])}'"


def replay_traces(
    paths: Sequence[Path], shapes: str | None, growths: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Replay trees and growths on traces; return one row per trace and tree.

    All values are plain data but `next_right`: a `NextRight`, or None if the trace does not tell.
    """
    trees = {} if shapes is None else read_shapes(shapes)
    growing = read_growths(growths)
    if not trees and not growing:
        raise ConfigError("nothing to replay: name trees with --shapes, or growths with --growth")
    rows = []
    for path in paths:
        trace = Trace.load(path)
        try:
            for name, tree in (trees | growing).items():
                rows.append(_row(str(path), trace, name, _replayed(trace, tree)))
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None
    return rows


def _replayed(trace: Trace, tree: TreeShape | Growth | Budget) -> Replay:
    if isinstance(tree, TreeShape):
        return replay(trace, tree)
    return replay_budget(trace, tree) if isinstance(tree, Budget) else replay_growth(trace, tree)


def _row(path: str, trace: Trace, name: str, replay: Replay) -> dict[str, Any]:
    estimate, low, high = replay.interval()
    bounded = trace.samples > 1
    nodes = accepted_nodes(trace, replay)
    return {
        "trace": path,
        "rule": trace.rule,
        "law": trace.law,
        "sampling": trace.about.get("sampling", f"T={trace.sampling.get('temperature')}"),
        "texts": trace.samples,
        "shape": name,
        "steps": len(replay.accepted),
        "tokens_per_step": estimate,
        "low": low if bounded else None,
        "high": high if bounded else None,
        "kept_per_step": replay.kept_per_step,
        "accepted_by_depth": replay.accepted_by_depth.tolist(),
        "nodes": replay.nodes_per_step if replay.shape is None else replay.shape.size,
        "depth": replay.max_depth,
        "sure": float(replay.sure.mean()),
        "every_position": trace.path_ranks is not None,
        "next_right": nodes and NextRight(nodes, trace.texts, trace.file_of),
    }


def plain_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of replays as plain data."""
    return [
        {**row, "next_right": row["next_right"] and row["next_right"].to_data()} for row in rows
    ]


def _bounds(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return "one text"
    return Interval(row["tokens_per_step"], row["low"], row["high"]).bounds(3)


def _accepted(row: Mapping[str, Any]) -> str:
    return " ".join(f"{share:.2f}" for share in row["accepted_by_depth"])


COLUMNS = (
    keyed("shape", "shape", left=True),
    Column[Mapping[str, Any]]("nodes", lambda row: f"{row['nodes']:.4g}"),
    keyed("depth", "depth"),
    keyed("steps", "steps"),
    keyed("tokens/step", "tokens_per_step", ".3f"),
    Column[Mapping[str, Any]]("95 % interval", _bounds),
    Column[Mapping[str, Any]]("accepted at depth 1, 2, ...", _accepted, left=True),
)


SURE = keyed("sure", "sure", ".1%")
UNSURE = (
    "sure: the share of steps that are known to be those of a live run. In the other steps the growth "
    "asked for nodes that were not recorded, and these count as worth nothing; a larger --beam records "
    "more."
)

UNBIASED = (
    "no position bias: the trained head's rows stand at every position of the text, not at the roots of "
    "one run"
)


def replay_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    tables = []
    for trace, of_trace in groupby(rows, key=lambda row: row["trace"]):
        replayed = list(of_trace)
        first = replayed[0]
        about = f"{first['sampling']}, {first['rule']} ({first['law']}), {first['texts']} texts"
        unsure = any(row["sure"] < 1 for row in replayed)
        columns = (*COLUMNS[:-1], SURE, COLUMNS[-1]) if unsure else COLUMNS
        said = [(EMITTED, True), (UNSURE, unsure), (UNBIASED, first["every_position"])]
        caption = "\n".join(text for text, holds in said if holds)
        tables.append(Table("", columns, replayed, title=f"{trace}: {about}", said=caption))
        tables += _next_right_tables(replayed)
    return tables


def _next_right_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    found = {row["shape"]: row["next_right"] for row in rows if row["next_right"] is not None}
    if not found:
        return []
    title = "how often the next token is right, on the spine and after a sibling"
    written = [line for shape, rates in found.items() for line in lines(shape, rates)]
    said = "\n".join(notes([*found.values()]))
    return [next_right_table("", written, "shape", title=title, said=said)]
