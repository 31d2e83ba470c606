"""Runs with plug-ins that no other test and no memory of proofs has an influence on."""

import pytest
import shape_checks

from treespec import plugin_files, testing
from treespec.experiments.run import proof_of_parts


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A cache, a working folder and loaded plug-ins of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(proof_of_parts, "_PROVED", set())
    unchecked = shape_checks.disabled()(testing.assert_lossless)  # as users enumerate
    monkeypatch.setattr(testing, "assert_lossless", unchecked)
    monkeypatch.chdir(tmp_path)
    yield
    plugin_files.load()
