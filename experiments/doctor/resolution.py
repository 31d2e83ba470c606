"""Measure how small a difference between two methods this machine can show at the moment."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["tell_apart"]

PROMPTS, NEW_TOKENS = 6, 32


def tell_apart(pair: "Pair") -> str:
    """Run two identical copies of plain decoding and two chains in turns on the embedded pair.

    Args:
        pair: the loaded models.

    Returns:
        How much the two copies differ in this short run, in words; longer runs show smaller differences.

    Raises:
        AssertionError: if the copy of plain decoding decoded no prompt.
    """
    from treespec.experiments.benchmarks.brief_run import brief_run
    from treespec.experiments.config.schema import Config
    from treespec.experiments.report.times import resolution_sentence

    config = Config.model_validate(
        {
            "name": "doctor",
            "prompts": {"kind": "embedded", "count": PROMPTS, "tokens": 48},
            "max_new_tokens": NEW_TOKENS,
            "samplings": [{"temperature": 0}],
            "methods": [
                {"kind": "plain"},
                *({"kind": "tree", "shape": {"kind": "chain", "depth": d}} for d in (2, 4)),
            ],
            "trees": 0,
            "meters": [],
            "alone": 0,
        }
    )
    with brief_run(config, load=lambda models: pair) as loaded:
        sentence = resolution_sentence(loaded.measurements["T=0"])
    assert sentence is not None, "the twin of plain decoding decoded no prompt"
    return sentence.replace("This run", f"a run of {PROMPTS} prompts", 1)
