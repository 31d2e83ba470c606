"""What commands show while they run."""

from io import StringIO

import pytest
from rich.console import Console

from treespec.experiments.cli import common


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_that_something_goes_on(monkeypatch, terminal):
    """Files and pipes receive the output of the command and nothing else."""
    shown = StringIO()
    console = Console(file=shown, force_terminal=terminal)
    monkeypatch.setattr(common, "progress", lambda quiet: console)
    with common.working("searching"):
        pass
    assert ("searching ..." in shown.getvalue()) == terminal
    assert terminal or not shown.getvalue()
