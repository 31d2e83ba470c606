"""Checks the shapes in public signatures while the tests run, and keeps every test off the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook(["treespec", "attention_masks"], "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "treespec", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("treespec")


@pytest.fixture(autouse=True)
def _few_threads():
    """Tiny tensors gain nothing from threads and lose much to their start."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_shape_checks():
    """For enumerations: the checks would cost ten times what they check, and others run with them."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
