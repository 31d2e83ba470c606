"""The console script, and `python -m treespec.experiments.cli`: ready for Ctrl-C before commands are there.

What comes before (the start of Python, and a millisecond of imports) is Python's own: an interrupt there
prints a traceback.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends the process with exit code 130."""
    try:
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:  # else interrupts are ignored: so they stay
            signal.signal(signal.SIGINT, _end)
        from treespec.experiments.cli.main import main as run_command

        signal.signal(signal.SIGINT, before)
        run_command()
    except KeyboardInterrupt:
        _end(signal.SIGINT, None)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun, and an exception may be lost in the callbacks of imports."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
