"""Disks that are full or may not be written, by small tmpfs mounts, and files that may not grow."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_injection.damage import half_finished
from fault_injection.process import complaints, start
from fault_injection.setting import Case, Setting

__all__ = ["full_disks", "read_only"]

SIZES_KIB = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
"""Of the disks: from too small for a manifest to too small for the report."""

LIMITS_KIB = (1, 4, 16, 32)
"""Of single files."""

ROOM = "64m"


def full_disks(setting: Setting, say: Callable[[str], None]) -> list[Case]:
    """Disks and files that become full: told in a line; with room the same command goes on to the end."""
    cases = []
    for size in SIZES_KIB if _may_mount(setting.work) else ():
        say(f"a disk of {size} KiB")
        with _disk(setting.work / f"disk-{size}", f"size={size}k") as (disk, remount):
            folder = disk / "run"
            done = start(setting.arguments(folder), setting.work).wait()
            remount(f"size={ROOM}")
            cases.append(_full(setting, folder, done.code, complaints(done, [1, 2], "No space left"),
                               f"disk of {size} KiB"))  # fmt: skip
    for size in LIMITS_KIB:
        say(f"files up to {size} KiB")
        folder = setting.work / f"limit-{size}"
        done = start(setting.arguments(folder), setting.work, size << 10).wait()
        cases.append(_full(setting, folder, done.code, complaints(done, [1, 2], "too large"),
                           f"files up to {size} KiB"))  # fmt: skip
    return cases


def read_only(setting: Setting, say: Callable[[str], None]) -> list[Case]:
    """A disk that may not be written: every command says so; nothing changes, and later the run goes on."""
    if not _may_mount(setting.work):
        return []
    say("a read-only disk")
    cases = []
    with _disk(setting.work / "read-only", f"size={ROOM}") as (disk, remount):
        half_finished(setting.reference, disk / "half")
        subprocess.run(["cp", "-r", setting.reference, disk / "whole"], check=True)
        before = _contents(disk)
        remount("ro")
        commands = {
            "a new run": setting.arguments(disk / "new"),
            "a resumed run": setting.arguments(disk / "half"),
            "a report": ["report", os.fspath(disk / "whole")],
        }
        for what, arguments in commands.items():
            done = start(arguments, setting.work).wait()
            wrong = complaints(done, [2], "Read-only file system", os.fspath(disk))
            if _contents(disk) != before:
                wrong += ("files were changed",)
            cases.append(Case("read-only disk", what, wrong))
        remount("rw")
        wrong = setting.resume(disk / "half")
        cases.append(Case("read-only disk", "the resumed run, when it may be written", wrong))
    return cases


def _full(setting: Setting, folder: Path, code: int, wrong: tuple[str, ...], what: str) -> Case:
    """A case; where everything found room there is nothing to complain of."""
    if code == 0:
        what, wrong = f"{what} (large enough)", ()
    return Case("full disk", what, wrong + setting.resume(folder))


def _may_mount(work: Path) -> bool:
    """Whether this process may mount: usually only root."""
    try:
        with _disk(work / "trial", "size=4k"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextmanager
def _disk(place: Path, options: str) -> "Iterator[tuple[Path, Callable[[str], None]]]":
    """A tmpfs, and what mounts it anew with other options."""
    place.mkdir(parents=True, exist_ok=True)

    def mount(options: str, kind: tuple[str, ...] = ("-t", "tmpfs")) -> None:
        command = ["mount", *kind, "-o", options, "tmpfs", os.fspath(place)]
        subprocess.run(command, check=True, capture_output=True)

    mount(options)
    try:
        yield place, lambda more: mount(f"remount,{more}")
    finally:
        subprocess.run(["umount", os.fspath(place)], check=True, capture_output=True)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
