"""Print the rooms of the house: files, lines, and to which rooms their imports go. `make check` runs it.

Prints the lines and statements of all code that is not tests: the house has a budget. Fails if files import
each other in a circle, or if a file that belongs in a room stands at the root of `experiments`.
"""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import grimp
import networkx
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
PACKAGES = ("attention_masks", "treespec")
AT_THE_ROOT = {"__init__.py", "errors.py", "py.typed", "SCHEMA.md", "SWEEPS.md"}
"""Files of `experiments` that stand in no room."""


def room_of(module: str) -> str:
    """The folder that a module stands in, at most one level below its package."""
    parts = module.split(".")
    package = 2 if parts[:2] in (["treespec", "search"], ["treespec", "experiments"]) else 1
    inside = ROOT.joinpath(*parts[: package + 1]).is_dir()
    return ".".join(parts[: package + 1] if inside else parts[:package])


def main() -> int:
    """Print the table; 1 if something stands or points where it should not."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = networkx.DiGraph()
    files, lines, arrows = defaultdict(int), defaultdict(int), defaultdict(set)
    for module in sorted(graph.modules):
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        room = room_of(module)
        files[room] += 1
        lines[room] += len(path.read_text(encoding="utf-8").splitlines())
        for other in graph.find_modules_directly_imported_by(module):
            imports.add_edge(module, other)
            if room_of(other) != room:
                arrows[room].add(room_of(other))
    table = Table("room", "files", "lines", "imports from", box=None)
    for room in sorted(files):
        shown = sorted(name.removeprefix("treespec.") for name in arrows[room])
        table.add_row(room, str(files[room]), str(lines[room]), " ".join(shown))
    Console(width=160).print(table)
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "*.py"], capture_output=True, text=True, check=True
    ).stdout.split()
    code = [(ROOT / name).read_text("utf-8") for name in tracked if not name.startswith("tests/")]
    statements = sum(
        isinstance(node, ast.stmt) for text in code for node in ast.walk(ast.parse(text))
    )
    print(
        f"code that is not tests: {sum(text.count(chr(10)) for text in code):,} lines, "
        f"{statements:,} statements"
    )
    circles = [part for part in networkx.strongly_connected_components(imports) if len(part) > 1]
    for circle in circles:
        print("these import each other in a circle:", *sorted(circle), file=sys.stderr)
    strays = {
        path.name for path in (ROOT / "experiments").iterdir() if path.is_file()
    } - AT_THE_ROOT
    for stray in sorted(strays):
        print(f"experiments/{stray}: give it a room", file=sys.stderr)
    return 1 if circles or strays else 0


if __name__ == "__main__":
    sys.exit(main())
