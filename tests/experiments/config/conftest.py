"""A folder of bad files, created once per test file."""

import pytest
from hostile.commands import special_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of bad files, and of everything that is not a regular file."""
    with special_files(tmp_path_factory.mktemp("bounds")) as path:
        yield path
