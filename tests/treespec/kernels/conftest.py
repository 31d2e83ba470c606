"""The kernels as compiled for different processors."""

import pytest

from treespec.kernels import build
from treespec.models.passes import compiled_pass

BUILDS = (
    "-DTREESPEC_PAIRS",
    "-UTREESPEC_PAIRS",
    "-UTREESPEC_PAIRS -DTREESPEC_ROWS=3 -DTREESPEC_BYTES=16",
)


@pytest.fixture(autouse=True, scope="session")
def compiler():
    if (missing := compiled_pass.missing_for_compiling()) is not None:
        pytest.skip(missing)


@pytest.fixture(params=BUILDS)
def kernel(request, monkeypatch):
    """Kernels with products of pairs (if the processor has them), without, and with fewer registers."""
    built = build.built(*request.param.split())
    monkeypatch.setattr(build, "kernels", lambda: built)
