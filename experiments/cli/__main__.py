"""The console script, and `python -m treespec.experiments.cli`: answers Ctrl-C during imports."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends the process with exit code 130."""
    try:
        from treespec.experiments.cli.main import main as run_command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run_command()


if __name__ == "__main__":
    main()
