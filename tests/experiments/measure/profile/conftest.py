"""What tests of the command `profile` share."""

import pytest
import yaml
from typer.testing import CliRunner

from treespec.experiments.cli.main import app


@pytest.fixture
def call(settings, tmp_path, monkeypatch):
    """Call `treespec` in an empty folder with the tiny config in `exp.yaml`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings))

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call
