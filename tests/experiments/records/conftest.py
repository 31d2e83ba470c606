"""The config of the run folders that are tried here."""

import pytest

from treespec.experiments.config.schema import Config


@pytest.fixture
def config():
    return Config.model_validate(
        {
            "name": "x",
            "prompts": {"kind": "embedded", "count": 2},
            "max_new_tokens": 4,
            "samplings": [{"temperature": 0}],
            "methods": [{"kind": "plain"}],
        }
    )
