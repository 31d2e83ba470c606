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


def test_a_file_alone_is_compiled_once_and_refused_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.built_alone("text_search.cpp").treespec_trie_new
    (made,) = (tmp_path / "treespec" / "kernels").iterdir()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match=r"text_search\.cpp cannot be compiled here"):
        build.built_alone("text_search.cpp")
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build.subprocess, "run", None)  # not called: it is there
    assert build.built_alone("text_search.cpp")._name == str(made)
