"""A config that searches before it runs."""

import os

import pytest

SEARCHED = [
    {"kind": "plain"},
    {"kind": "tree", "shape": {"kind": "chain", "depth": 2}},
    {"kind": "tree", "shape": {"kind": "kary", "branching": 2, "depth": 2}},
    {"kind": "tree", "shape": {"kind": "optimal", "rates": "measured", "size": 5, "depth": 3}},
    {"kind": "tree", "shape": {"kind": "best", "max_size": 6, "depth": 3, "branching": 2}},
    {
        "kind": "tree",
        "shape": {"kind": "cost_aware", "size": 6, "branching": 2, "depth": 3, "width": 2},
    },
    {
        "kind": "tree",
        "shape": {"kind": "eagle2", "k": 2, "depth": 2, "size": 5, "calibration": "measured"},
    },
]


@pytest.fixture(scope="module")
def searching(settings, prompt_file):
    """A config that searches on the prompts that are not measured."""
    search = {
        "prompts": {"kind": "jsonl", "path": os.fspath(prompt_file), "tokens": 8},
        "max_new_tokens": 12,
        "width": 2,
        "depth": 3,
        "sizes": [1, 2, 4, 8, 16],
        "repeats": 2,
    }
    return settings | {"methods": SEARCHED, "search": search, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def brief(searching):
    """A search for tests that check which files it leaves, not what it finds."""
    return searching["search"] | {"repeats": 1, "sizes": [1, 8], "max_new_tokens": 6}
