"""Generate RESULTS.md, and the measured parts of the README, from the committed result files.

    python -m treespec.experiments.research.studies.results_page

`results/sections.yaml` names, for every result file, its question, the command that repeats it,
an answer and the columns of its table. No figure is typed by hand: a test compares the pages with the
files. A measured part of the README repeats a section of RESULTS.md between two comments:

    <!-- measured: tree_vs_chain -->
    <!-- end -->
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from treespec.experiments.errors import ConfigError
from treespec.experiments.report.table import Cell, Column, Table, interval, markdown
from treespec.experiments.research.benchmarks.results_file import RESULTS
from treespec.files import write_whole
from treespec.search.intervals import Interval

ROOT = RESULTS.parents[2]
PAGE, README = RESULTS.parent / "RESULTS.md", ROOT / "README.md"

HEAD = """# Results

What has been measured: first some answers, then every result file. Intervals, in brackets or behind a
figure, are 95 % intervals; one that holds 1 names no winner. The methods of a run took turns step by step
unless a section says otherwise. Each section names the latest file, which is shown, and those of other
machines. *Code at* names the git tag or commit of code that has been removed.

`python -m treespec.experiments.research.studies.results_page` writes this page from the files in
[results](results), and a test checks that it matches them.
"""

BY_PROMPTS = (
    "Measured one method after the other: other work on the machine may have slowed one method more than "
    "another."
)

_MEASURED = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A section of `sections.yaml`, with its files of one machine each, latest first."""

    name: str
    spec: Mapping[str, Any]
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any]) -> "Section":
        """The section with its files.

        Raises:
            ConfigError: if there are none.
        """
        file = spec.get("file", f"study-{name}")
        found = [
            p for p in RESULTS.glob("*.json") if re.match(rf"{file}-(amd|intel|nvidia)", p.name)
        ]
        if not found:
            raise ConfigError(f"there is no file {file}-<machine>.json in {str(RESULTS)!r}")
        return cls(
            name, spec, tuple(sorted(found, key=lambda p: _read(p)["measured"], reverse=True))
        )

    @property
    def answer(self) -> str:
        """The question and its answer, with the figures of the latest file."""
        figures = _figures(_read(self.paths[0]))

        def value(match: re.Match[str]) -> str:
            return _cell(figures, match[1], in_sentence=True).text

        return re.sub(r"\{([^{}]+)\}", value, f"**{self.spec['question']}** {self.spec['answer']}")

    @property
    def command(self) -> str:
        """How to repeat the measurement."""
        if tag := self.spec.get("tag"):
            return f"code at `{tag}`"
        if run := self.spec.get("run"):
            return f"`treespec {run}`"
        if module := self.spec.get("module"):
            return f"`python -m treespec.experiments.{module}`"
        return f"`{self.spec['command']}`"

    @property
    def body(self) -> str:
        """Question, answer, table, and where the figures come from."""
        path, *others = self.paths
        data = _read(path)
        origin = [f"{self.command}: {_measured(data)}, `{path.name}`."]
        origin += [BY_PROMPTS] if by_prompts(data) else []
        origin += [f"Others: {', '.join(f'`{other.name}`' for other in others)}."] if others else []
        table = [self._table(data)] if "columns" in self.spec else []
        caption = [self.spec["table"]] if "table" in self.spec else []
        return "\n\n".join([" ".join([self.answer, *caption]), *table, " ".join(origin)]) + "\n"

    def _table(self, data: Mapping[str, Any]) -> str:
        where = self.spec.get("where", {})
        rows = [
            row
            for row in _entries(_figures(data), self.spec["rows"].split("/"))
            if all(re.fullmatch(pattern, str(row.get(key))) for key, pattern in where.items())
        ]

        def column(head: str, path: str) -> Column[Mapping[str, Any]]:
            words = all(isinstance(_value(row, path.partition(":")[0]), str) for row in rows)
            return Column(head, lambda row: _cell(row, path), left=words)

        return markdown(Table("", [column(*item) for item in self.spec["columns"].items()], rows))


def sections() -> dict[str, Section]:
    """All sections of the page, by name; those that await their first file are left out."""
    specs = yaml.safe_load((RESULTS / "sections.yaml").read_text(encoding="utf-8"))
    return {
        name: Section.of(name, spec)
        for name, spec in specs.items()
        if not spec.get("awaited") or any(RESULTS.glob(f"{spec['file']}-*.json"))
    }


def results_page() -> str:
    """The text of RESULTS.md: some answers first, then every section."""
    shown = sections().values()
    first = "\n".join(
        f"- {s.answer} {s.command}, [result](results/{s.paths[0].name})"
        for s in shown
        if s.spec.get("first")
    )
    return "\n".join([HEAD, f"{first}\n", *(f"## {s.name}\n\n{s.body}" for s in shown)])


def filled(page: str) -> str:
    """The page with its measured parts filled in from the files.

    Raises:
        ConfigError: if the page names a section that does not exist.
    """
    known = sections()

    def part(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name not in known:
            raise ConfigError(f"no section {name!r} (there are: {', '.join(known)})")
        return f"{begin}\n{known[name].body}\n{end}"

    return _MEASURED.sub(part, page)


def by_prompts(data: Mapping[str, Any]) -> bool:
    """Whether a file holds a run or sweep whose methods did not take turns.

    Configs without the key `together` are older than turns.
    """
    if "config" not in data and "grid" not in data:
        return False
    together = (data.get("config") or {}).get("together", 1)
    return data.get("together", together) == 1


def _read(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _figures(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return data.get("figures") or data


def _entries(at: Any, path: list[str], name: str = "") -> Iterator[Mapping[str, Any]]:
    """The mappings at a path; `*` stands for every entry, and `key` joins the names of these entries."""
    if not path:
        if isinstance(at, Mapping):
            yield {"key": name, **at}
        return
    step, *rest = path
    if step != "*":
        yield from _entries(_value(at, step), rest, name)
    elif isinstance(at, Mapping):
        for key, entry in at.items():
            yield from _entries(entry, rest, f"{name}, {key}" if name else key)
    elif isinstance(at, list):
        for entry in at:
            yield from _entries(entry, rest, name)


def _value(at: Any, path: str) -> Any:
    """The value at a path, with the bounds that may stand beside it; None if a part of it is missing."""
    for key in path.split("/"):
        if isinstance(at, list):
            at = at[int(key)]
        elif at is not None and f"{key}_low" in at:
            at = [at[key], at[f"{key}_low"], at[f"{key}_high"]]
        elif at is not None and f"{key}_95" in at:
            at = Interval.around(at[key], at[f"{key}_95"])
        elif at is not None:
            at = at.get(key)
    return at


def _cell(row: Any, path: str, *, in_sentence: bool = False) -> Cell:
    """A value as text: intervals with their bounds, fractions with two decimals, words unchanged."""
    path, _, form = path.partition(":")
    value = _value(row, path)
    if isinstance(value, Mapping):
        value = Interval.of(value["estimate"], value["low"], value["high"])
    elif isinstance(value, list):
        value = Interval.of(*value)
    if in_sentence and isinstance(value, Interval):
        return Cell(value.text(in_sentence=True))
    if value is None or isinstance(value, Interval):
        return interval(value)
    return Cell(format(value, form or (".2f" if isinstance(value, float) else "")))


def _measured(data: Mapping[str, Any]) -> str:
    """When a file was measured, on which machine, with which models and code."""
    hardware, models = data["hardware"], data.get("models")
    simd = f" with {hardware['simd']}" if hardware.get("simd") else ""
    facts = [data["measured"][:10], hardware.get("gpu") or f"{hardware['cpu']}{simd}"]
    if models:
        counts = [models[role]["parameters"] for role in ("target", "draft")]
        sizes = " and ".join(f"{count / 1e6:.3g} M" for count in counts if count)
        facts.append(f"{sizes} parameters in {models['target']['dtype']}")
    return ", ".join([*facts, f"commit {(data.get('git_hash') or 'unknown')[:7]}"])


def main() -> None:
    """Write both pages."""
    if not README.is_file():
        raise SystemExit(
            f"{README} is missing: run this command in a clone of the treespec repository"
        )
    write_whole(PAGE, results_page())
    write_whole(README, filled(README.read_text(encoding="utf-8")))
    print(f"written: {PAGE}, {README}")


if __name__ == "__main__":
    main()
