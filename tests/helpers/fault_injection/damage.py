"""Logs with damaged lines: what a killed run can leave is mended, anything else is refused by line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from fault_injection.process import complaints, start
from fault_injection.rows import differences, unit_of
from fault_injection.setting import Case, Setting

__all__ = ["damaged_last_lines", "damaged_lines", "half_finished"]

UNITS = 3
"""Finished units of the run that is damaged."""

GARBAGE = 200
"""Bytes."""

Change = Callable[[list[bytes], bytes], bytes]
"""Makes a file of its lines, each with its end, and of the line that would come next."""


def half_finished(reference: Path, folder: Path, units: int = UNITS) -> dict[str, bytes]:
    """Copy a finished run as it was after so many units.

    Args:
        reference: a finished run.
        folder: the copy.
        units: that are finished.

    Returns:
        The line that would come next in each log, by file name.
    """
    shutil.copytree(
        reference, folder, ignore=shutil.ignore_patterns("*.parquet", "report.html", "figures")
    )
    order = dict.fromkeys(map(unit_of, (reference / "prompts.jsonl").read_bytes().splitlines()))
    kept, later = set(list(order)[:units]), {}
    for log in sorted(folder.glob("*.jsonl")):
        lines = log.read_bytes().splitlines(keepends=True)
        rest = [line for line in lines if unit_of(line) not in kept]
        later[log.name] = rest[0] if rest else lines[-1]
        log.write_bytes(b"".join(line for line in lines if unit_of(line) in kept))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"finished": None}), encoding="utf-8")
    return later


def damaged_last_lines(setting: Setting, seed: int, say: Callable[[str], None]) -> list[Case]:
    """Ends that a kill or a loss of power leaves: the run goes on as if they were not there."""
    random = Random(seed)
    garbage = random.randbytes(GARBAGE).replace(b"\n", b" ")
    changes: dict[str, Change] = {
        "half a line": lambda lines, after: b"".join(lines) + after[: len(after) // 2],
        "a line without its end": lambda lines, after: b"".join(lines) + after.rstrip(b"\n"),
        "half a character": lambda lines, after: b"".join(lines) + after[:12] + "é".encode()[:1],
        "random bytes": lambda lines, after: b"".join(lines) + garbage,
        "zeros": lambda lines, after: b"".join(lines) + bytes(GARBAGE),
        "the last row cut": lambda lines, after: b"".join(lines)[: -len(lines[-1]) // 2],
        "the last row lost": lambda lines, after: b"".join(lines[:-1]),
    }
    cases = []
    for log in sorted(path.name for path in setting.reference.glob("*.jsonl")):
        for i, (what, change) in enumerate(changes.items()):
            say(f"end of {log}: {what}")
            folder = setting.work / f"end-{log}-{i}"
            _damage(setting, folder, log, change)
            cases.append(Case("damaged last line", f"{log}: {what}", setting.resume(folder)))
    return cases


def damaged_lines(setting: Setting, seed: int, say: Callable[[str], None]) -> list[Case]:
    """Lines that no kill leaves: the run is refused, the message names file and line, nothing changes.

    At the end of a log a line that is not even JSON may also be taken for a write that was cut short: then
    the run must go on to the same rows.
    """
    random = Random(seed)
    garbage = random.randbytes(GARBAGE).replace(b"\n", b" ")
    bad: dict[str, Callable[[bytes], bytes]] = {
        "random bytes": lambda line: garbage,
        "half a line": lambda line: line[: len(line) // 2],
        "half a character": lambda line: line[:-3] + "é".encode()[:1],
        "nothing": lambda line: b"",
        "another type": lambda line: line.replace(b'"prompt":', b'"prompt":"x', 1),
        "a column less": lambda line: b'{"prompt":0}',
    }
    cases = []
    for log in sorted(path.name for path in setting.reference.glob("*.jsonl")):
        for i, (what, change) in enumerate(bad.items()):
            for place in ("middle", "end"):
                say(f"{place} of {log}: {what}")
                folder = setting.work / f"line-{log}-{place}-{i}"
                cases.append(_refused(setting, folder, log, what, change, place))
    return cases


def _refused(
    setting: Setting,
    folder: Path,
    log: str,
    what: str,
    change: Callable[[bytes], bytes],
    place: str,
) -> Case:
    number = 0

    def damage(lines: list[bytes], after: bytes) -> bytes:
        nonlocal number
        number = len(lines) // 2 if place == "middle" else len(lines) - 1
        lines[number] = change(lines[number].rstrip(b"\n")) + b"\n"
        return b"".join(lines)

    _damage(setting, folder, log, damage)
    before = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    done = start(setting.arguments(folder), setting.work).wait()
    if place == "end" and done.code == 0:
        return Case(
            "damaged line", f"{log}, end: {what}", tuple(differences(folder, setting.reference))
        )
    wrong = complaints(done, [2], f"{log}, line {number + 1}:")
    if before != {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}:
        wrong += ("the logs were changed",)
    return Case("damaged line", f"{log}, {place}: {what}", wrong)


def _damage(setting: Setting, folder: Path, log: str, change: Change) -> None:
    later = half_finished(setting.reference, folder)
    path = folder / log
    path.write_bytes(change(path.read_bytes().splitlines(keepends=True), later[log]))
