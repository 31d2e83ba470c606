"""A folder with bad files, made once for all tests of a file."""

import pytest
from hostile.commands import special_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With some of every kind that is no file."""
    with special_files(tmp_path_factory.mktemp("bounds")) as path:
        yield path
