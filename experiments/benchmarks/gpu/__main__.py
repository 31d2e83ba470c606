"""The command line: which parts run, on which device, and for how long.

    python -m treespec.experiments.benchmarks.gpu [accuracy|kernels|decode|table|all] [--dry] [--out FOLDER]
                                         [--minutes 8] [--fresh]

Exit code 0: success, even if goals are missed. 1: the kernel was wrong or failed, or decoding failed.
"""

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

PARTS = {"accuracy": "accuracy", "kernels": "kernel_times", "decode": "decode_times"}
"""The parts, and their modules."""

ENDS_AT_SHARE = {"accuracy": 0.2, "kernels": 0.72, "decode": 1.0}
"""End of each part as a share of the total time; a part that ends earlier leaves its time to the next."""

DRY = "dry run through the interpreter, figures mean nothing"
WIDTH = 170
"""Width of the table where there is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts; return the exit code."""
    options = _parser().parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    if options.dry and options.part != "table":
        _choose_interpreter(True, words)
    import torch

    no_device = not torch.cuda.is_available()
    dry = options.dry or (no_device and options.part != "table")
    if options.part != "table":
        _choose_interpreter(dry, words)
    folder = folder_of(options.out, dry)

    from rich.console import Console

    from treespec.experiments.benchmarks.gpu.session import BrokenDevice, Session
    from treespec.experiments.benchmarks.gpu.table import render
    from treespec.experiments.run.models import calm_transformers

    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)
    if dry:
        console.rule(f"[bold]{'no CUDA device' if no_device else '--dry'}: {DRY}")
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    failures: list[str] = []
    if options.part != "table":
        calm_transformers()
        session = Session(dry, folder, options.minutes, options.fresh, console)
        session.say(f"results go to {folder}")
        failures = session.failures
        shares = ENDS_AT_SHARE if options.part == "all" else {options.part: 1.0}
        try:
            for part, share in shares.items():
                module = import_module(f"treespec.experiments.benchmarks.gpu.{PARTS[part]}")
                module.run(session, session.deadline(share))
        except BrokenDevice as error:
            failures.append(str(error))
        except KeyboardInterrupt:
            failures.append("interrupted; repeat the same command to continue where it stopped")
    if options.part in ("table", "all"):
        for path in render(folder, console):
            console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if dry:
        console.rule(f"[bold]{DRY}")
    return bool(failures)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m treespec.experiments.benchmarks.gpu",
        description="Accuracy and speed of the tree attention kernel, and of decoding, on this GPU.",
    )
    parser.add_argument("part", nargs="?", default="all", choices=(*PARTS, "table", "all"))
    parser.add_argument("--dry", action="store_true", help=f"run tiny shapes on the CPU: a {DRY}")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all parts together")
    parser.add_argument(
        "--fresh", action="store_true", help="repeat measurements that exist already"
    )
    return parser


def _choose_interpreter(dry: bool, arguments: Sequence[str]) -> None:
    """Restart the command in a process with Triton's interpreter switched on or off, if needed.

    Triton reads the switch when it is imported, which torch may have done by now.
    """
    if dry == (os.environ.get("TRITON_INTERPRET") == "1"):
        return
    sys.stdout.flush()
    os.execve(
        sys.executable,
        [sys.executable, "-m", "treespec.experiments.benchmarks.gpu", *arguments],
        {**os.environ, "TRITON_INTERPRET": "1" if dry else "0"},
    )


def folder_of(out: Path | None, dry: bool) -> Path:
    """The folder for results: for a dry run without `out`, a new temporary folder.

    Raises:
        SystemExit: if a dry run would write into the folder of measured figures.
    """
    from treespec.experiments.benchmarks.results_file import RESULTS

    if dry and out is not None and RESULTS in (out.resolve(), *out.resolve().parents):
        raise SystemExit(
            f"{out} is for measured figures, and a dry run has none: use another --out"
        )
    if dry and out is None:
        return Path(tempfile.mkdtemp(prefix="treespec-gpu-dry-"))
    return out or RESULTS


if __name__ == "__main__":
    sys.exit(main())
