"""The console script, and `python -m treespec.experiments.cli`: handles Ctrl-C while commands are imported.

Python itself handles an interrupt before that (its start-up, and a millisecond of imports): it prints a
traceback.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends the process with exit code 130."""
    try:
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:  # if interrupts are ignored, they stay ignored
            signal.signal(signal.SIGINT, _end)
        from treespec.experiments.cli.main import main as run_command

        signal.signal(signal.SIGINT, handler)
        run_command()
    except KeyboardInterrupt:
        _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: no work has begun, and import callbacks might swallow an exception."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
