"""Measurements with known truth, without a run folder."""

import numpy as np

from treespec.experiments.records.loading import Method
from treespec.experiments.report.measurements import Measurements

CHAIN, TREE = (-1, 0, 1), (-1, 0, 0)


def measurements(seconds):
    """64 tokens per prompt; `seconds` by name: t... is a tree, c... a chain, a assisted, g generate."""
    kinds = {
        "t": ("tree", TREE),
        "c": ("tree", CHAIN),
        "a": ("assisted", None),
        "g": ("generate", None),
    }
    methods = tuple(Method(name, *kinds[name[0]], {}, {}, True, name) for name in seconds)
    prompts = len(next(iter(seconds.values())))
    values = {}
    for name, of_prompts in seconds.items():
        values[name, "new_tokens"] = np.full(prompts, 64.0)
        values[name, "decode_s"] = np.asarray(of_prompts, dtype=float)
    return Measurements("T=0", methods, tuple(range(prompts)), prompts, values, ())
