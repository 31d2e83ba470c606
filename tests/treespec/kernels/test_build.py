"""Compiling the kernels."""

import pytest

from treespec.errors import Unavailable
from treespec.kernels import build


def test_a_kernel_that_does_not_compile_is_named(monkeypatch):
    monkeypatch.setattr(build, "source", lambda: "no code")
    with pytest.raises(Unavailable, match="kernels of compiled passes cannot be compiled here"):
        build.built()


@pytest.mark.parametrize(("vendor", "flags"), [("AuthenticAMD", 1), ("GenuineIntel", 0), (None, 0)])
def test_pairs_are_multiplied_where_that_is_quick(vendor, flags, monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(build, "CPU_INFO", info)
    if vendor is not None:
        info.write_text(f"processor : 0\nvendor_id : {vendor}\n")
    assert len(build._pairs()) == flags
