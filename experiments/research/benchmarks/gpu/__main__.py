"""The command line: which parts run, on which device, and for how long.

    python -m treespec.experiments.research.benchmarks.gpu [PART|all|table] [--dry] [--out FOLDER] \\
        [--minutes 12]

The parts in their order, which fits a quarter of an hour: correctness and ceilings (accuracy); 8B verify
and a profile (layers, profile); the other steps and tree drafting (decode, draft); the kernel (kernels,
plans); peers; a method against itself (aa). Each writes as it goes; what the same code has measured on this
device is not measured again, so the next opportunity continues where this one ended. What was compiled
comes back too (`compiled_code`): keep `gpu_code-*.tar.gz` in the folder of the results, and it is not
compiled again.

Exit code 0: success, even if goals are missed. 1: the kernel was wrong or failed, or decoding failed.
"""

import os
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from treespec.experiments.research.benchmarks.gpu.compiled_code import CompiledCode

PARTS = {
    "accuracy": "accuracy",
    "layers": "layer_times",
    "profile": "step_kernels",
    "decode": "decode_times",
    "draft": "draft_times",
    "kernels": "kernel_times",
    "plans": "plan_times",
    "peers": "peers",
    "aa": "a_a",
}
"""The parts, and their modules."""

ENDS_AT_SHARE = {
    "accuracy": 1 / 12,
    "layers": 3 / 12,
    "profile": 4 / 12,
    "decode": 5.4 / 12,
    "draft": 6 / 12,
    "kernels": 7.4 / 12,
    "plans": 8 / 12,
    "peers": 10 / 12,
    "aa": 1.0,
}
"""End of each part as a share of the total time; a part that ends earlier leaves its time to the next."""

DRY = "dry run through the interpreter, figures mean nothing"
WIDTH = 170
"""Width of the table where there is no terminal."""


def main(
    part: Annotated[
        Literal[
            "accuracy",
            "layers",
            "profile",
            "decode",
            "draft",
            "kernels",
            "plans",
            "peers",
            "aa",
            "table",
            "all",
        ],
        typer.Argument(),
    ] = "all",
    dry: Annotated[
        bool, typer.Option("--dry", help=f"run tiny shapes on the CPU: a {DRY}")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the results")] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="for all parts together")] = 12.0,
) -> None:
    """Accuracy and speed of the tree attention kernel, and of decoding, on this GPU."""
    if dry and part != "table":
        _choose_interpreter(True)
    import torch

    no_device = not torch.cuda.is_available()
    dry = dry or (no_device and part != "table")
    if part != "table":
        _choose_interpreter(dry)
    folder = folder_of(out, dry)

    from rich.console import Console

    from treespec.experiments.research.benchmarks.gpu.gpu_session import BrokenDevice, Session
    from treespec.experiments.research.benchmarks.gpu.gpu_tables import render
    from treespec.experiments.run.models import calm_transformers

    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)
    if dry:
        console.rule(f"[bold]{'no CUDA device' if no_device else '--dry'}: {DRY}")
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
    failures: list[str] = []
    if part != "table":
        calm_transformers()
        code = None if dry else code_of(folder)
        session = Session(dry, folder, minutes, console, code_found=code is not None and code.found)
        session.say(f"results go to {folder}")
        failures = session.failures
        shares = ENDS_AT_SHARE if part == "all" else {part: 1.0}
        try:
            for name, share in shares.items():
                module = import_module(
                    f"treespec.experiments.research.benchmarks.gpu.{PARTS[name]}"
                )
                module.run(session, session.deadline(share))
                if code is not None and (said := code.keep()):
                    session.say(said)
        except BrokenDevice as error:
            failures.append(str(error))
        except KeyboardInterrupt:
            failures.append("interrupted; what was measured is in the files")
    if part in ("table", "all"):
        render(folder, console)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if dry:
        console.rule(f"[bold]{DRY}")
    raise typer.Exit(bool(failures))


def _choose_interpreter(dry: bool) -> None:
    """Restart the command in a process with Triton's interpreter switched on or off, if needed.

    Triton reads the switch when it is imported, which torch may have done by now.
    """
    if dry == (os.environ.get("TRITON_INTERPRET") == "1"):
        return
    sys.stdout.flush()
    os.execve(
        sys.executable,
        [sys.executable, "-m", "treespec.experiments.research.benchmarks.gpu", *sys.argv[1:]],
        {**os.environ, "TRITON_INTERPRET": "1" if dry else "0"},
    )


def code_of(folder: Path) -> "CompiledCode":
    """Where this run's code is compiled to, beginning with that of an earlier run, if there is any."""
    from treespec.experiments.research.benchmarks.gpu.compiled_code import CompiledCode
    from treespec.experiments.research.benchmarks.results_file import RESULTS, path_of

    archive, shipped = (
        path_of("gpu_code", place).with_suffix(".tar.gz") for place in (folder, RESULTS)
    )
    return CompiledCode(archive, earlier=(archive, shipped))


def folder_of(out: Path | None, dry: bool) -> Path:
    """The folder for results; a dry run without `out` gets a new temporary one."""
    from treespec.experiments.research.benchmarks.results_file import RESULTS

    if dry and out is None:
        return Path(tempfile.mkdtemp(prefix="treespec-gpu-dry-"))
    return out or RESULTS


if __name__ == "__main__":
    typer.run(main)
