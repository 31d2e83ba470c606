"""`treespec search` and `treespec export`: the best tree for given rates; trees in other tools' words."""

from pathlib import Path

from experiments.errors import ConfigError
from search import expected_tokens, formats, optimal_tree
from treespec.shape import TreeShape

__all__ = ["export", "rates_of", "search"]

DRAWN = 64
"""Nodes up to which a tree is drawn."""


def rates_of(text: str) -> list[float] | list[list[float]]:
    """Acceptance rates as they are typed: `0.6,0.2,0.1` by rank, levels apart by semicolons.

    Raises:
        ConfigError: for what is no number.
    """
    levels = []
    for level in text.split(";"):
        try:
            levels.append([float(rate) for rate in level.split(",")])
        except ValueError:
            raise ConfigError(
                f"rates = {text!r}, but they are numbers with commas between them, such as 0.6,0.2,0.1 "
                "(first child, second, third), and semicolons between levels"
            ) from None
    return levels[0] if len(levels) == 1 else levels


def search(rates: str, size: int, depth: int | None, branching: int | None, form: str) -> str:
    """What `treespec search` prints: the tree, its worth beside a chain's, and the tree in a format."""
    acceptance = rates_of(rates)
    shape = optimal_tree(acceptance, size, depth=depth, branching=branching)
    lines = [f"the best tree of {size} nodes, the root included: depth {shape.depth}"]
    lines += [str(shape)] if size <= DRAWN else []
    worth = expected_tokens(shape, acceptance)
    lines.append(f"expected tokens per step {worth:.3f} (plain decoding: 1)")
    chain = TreeShape.chain(min(size - 1, depth or size - 1))
    if not isinstance(acceptance[0], list) or len(acceptance) >= chain.depth:
        lines.append(f"a chain of {chain.size} nodes: {expected_tokens(chain, acceptance):.3f}")
    made = formats.dump(shape, form)
    shown = made.content if isinstance(made.content, str) else f"{len(made.content)} bytes"
    return "\n".join([*lines, f"as {form}: {shown}", made.report()])


def export(source: str, into: str, form: str | None, out: Path | None) -> tuple[str, str]:
    """What `treespec export` prints, and what the other tool's words leave out.

    With `out` the tree goes to that file, and what is printed says so.

    Raises:
        ConfigError: if bytes are to be printed, or the file is there already.
    """
    shape = formats.load(Path(source) if Path(source).is_file() else source, form)
    made = formats.dump(shape, into)
    if out is None:
        if isinstance(made.content, bytes):
            raise ConfigError(f"format {into} is binary: name a file with --out")
        return made.content, made.report()
    if out.exists():
        raise ConfigError(f"--out {out} is there already: name another file")
    content = made.content if isinstance(made.content, bytes) else made.content.encode()
    out.write_bytes(content)
    return f"{out}: {shape.size} nodes, the root included, as {into}", made.report()
