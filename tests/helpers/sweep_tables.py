"""The columns of a sweep's tables that a repetition reproduces."""

import polars as pl

MEASURED_PREFIXES = ("tokens_per_second", "text_tokens", "speedup")
MEASURED_SUFFIXES = ("_s", "_ms", "_bytes", "_j")
MEASURED_NAMES = ("baseline", "fastest")
"""Columns that hold times, memory and energy, or follow from them; all others are the same in every
repetition."""


def without_times(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that must be the same wherever and however often a sweep runs."""
    return frame.select(
        name
        for name in frame.columns
        if name not in MEASURED_NAMES
        and not name.startswith(MEASURED_PREFIXES)
        and not name.endswith(MEASURED_SUFFIXES)
    )
