"""All faults, one after the other: a table of counts, and what went wrong."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fault_injection.setting import CONFIG, Case, Setting, prepare
from fault_injection.signals import interrupts, kills
from treespec.experiments.records.manifest import now
from treespec.experiments.research.benchmarks.results_file import path_of, save

NAME = "fault_injection"


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject faults, print and save the counts; 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(prog="fault_injection", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="moments of SIGKILL")
    parser.add_argument("--interrupts", type=int, default=12, help="moments of Ctrl-C")
    parser.add_argument("--prompts", type=int, default=4, help="of the experiment")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", default="", help="faults by name, with commas between them")
    parser.add_argument("--at-once", type=int, default=1, help="kinds of faults side by side")
    parser.add_argument("--no-save", action="store_true", help="do not write the counts")
    given = parser.parse_args(arguments)
    console = Console(width=110)

    def say(text: str) -> None:
        print(f"\r{text:70}", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="faults-") as work:
        say("the unbroken run")
        setting = prepare(Path(work), given.prompts)
        faults: dict[str, Callable[[], list[Case]]] = {
            "kills": partial(kills, setting, given.kills, given.seed, say),
            "interrupts": partial(interrupts, setting, given.interrupts, given.seed, say),
        }
        wanted = given.only.split(",") if given.only else list(faults)
        unknown = sorted(set(wanted) - set(faults))
        if unknown:
            parser.error(f"--only: no fault {unknown[0]!r} (there are: {', '.join(faults)})")
        with ThreadPoolExecutor(given.at_once) as pool:
            waiting = {pool.submit(faults[name]): name for name in wanted}
            found: dict[str, list[Case]] = {}
            for done in as_completed(waiting):
                found[waiting[done]] = done.result()
                if not given.no_save:
                    _save(waiting[done], done.result(), setting, given.prompts)
    cases = [case for own in found.values() for case in own]
    say("")
    console.print()
    console.print(_table(cases))
    wrong = [case for case in cases if case.wrong]
    for case in wrong:
        console.print(f"{case.fault}, {case.what}: {'; '.join(case.wrong)}", markup=False)
    console.print(f"{len(cases)} faults, {len(wrong)} not survived as they should be")
    return bool(wrong)


def _table(cases: Sequence[Case]) -> Table:
    table = Table("fault", "where or when", "times", "survived", title="faults of runs")
    for (fault, what), (count, fine) in _counts(
        cases, lambda case: case.what.split(":")[0]
    ).items():
        table.add_row(fault, what, str(count), str(fine))
    return table


def _counts(
    cases: Sequence[Case], place: Callable[[Case], str]
) -> dict[tuple[str, str], tuple[int, int]]:
    """How often each fault happened at a place, and how often all was well after it."""
    found = Counter((case.fault, place(case)) for case in cases)
    fine = Counter((case.fault, place(case)) for case in cases if not case.wrong)
    return {key: (count, fine[key]) for key, count in found.items()}


def _figures(cases: Sequence[Case]) -> dict[str, Any]:
    """The counts of one kind of faults."""
    return {
        "measured": now(),
        "faults": len(cases),
        "survived": sum(not case.wrong for case in cases),
        "counts": [
            {"fault": fault, "what": what, "times": count, "survived": fine}
            for (fault, what), (count, fine) in _counts(cases, lambda case: case.what).items()
        ],
        "wrong": [
            {"fault": case.fault, "what": case.what, "wrong": list(case.wrong)}
            for case in cases
            if case.wrong
        ],
    }


def _save(kind: str, cases: Sequence[Case], setting: Setting, prompts: int) -> None:
    """Write what was found of one kind, at once."""
    config = CONFIG.replace("PROMPTS", str(prompts))
    kinds = _before() | {kind: _figures(cases)}
    save(NAME, {"config": config, "unbroken_s": round(setting.seconds, 2), "kinds": kinds})


def _before() -> dict[str, Any]:
    """Kinds of faults that are in the file already: with --only the others stay as they are."""
    path = path_of(NAME)
    if not path.exists():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8"))["figures"]["kinds"])


if __name__ == "__main__":
    sys.exit(main())
