"""Checks the shapes in public signatures while the tests run, and keeps every test off the network."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TREESPEC_EAGER"] = "1"  # only tests of the choice itself measure or compile
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import shape_checks

shape_checks.install()

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "treespec", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("treespec")


def pytest_collection_modifyitems(items):
    """Tests marked `gpu` need a device: without one they are skipped, and say so."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _few_threads():
    """Tiny tensors gain nothing from threads and lose much to their start."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_shape_checks():
    """For enumerations: the checks would cost more than what they check, and others run with them."""
    with shape_checks.disabled():
        yield


@pytest.fixture(scope="session")
def quick_interpreter():
    """Spares half of the time of Triton's interpreter: what it does anew at every call and operation.

    It replaces Triton's language at each call (here once, for as long as the process lives), makes a table
    to look up a dtype, and asserts that sums of int32 fit, which at the sizes of these tests they do.
    """
    from triton.runtime import interpreter

    patch, plain, done = interpreter._patch_lang, interpreter._get_np_dtype, set()
    kept = lru_cache(plain)

    def once(function):
        if id(function.__globals__) not in done:
            done.add(id(function.__globals__))
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = once
    interpreter._get_np_dtype = lambda t: (plain if t.scalar.is_ptr() else kept)(t.scalar)
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


@pytest.fixture
def interpret():
    """Runs a file of tests in a process where Triton interprets; which it does is decided at its import."""

    def run(file: str, *options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, file]
        env = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return run
