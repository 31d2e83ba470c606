"""What RESULTS.md says of draft sources: by size and kind of text, and what they cost."""

from collections.abc import Callable
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, table
from treespec.experiments.studies.skip_sets import summary

__all__ = ["draft_sources", "skip_sets", "sources", "which_source"]


def sources(data: Row) -> Parts:
    """Draft sources by size and kind of text: tokens per step, speedups, and merges over single sources."""
    groups = data["figures"]["categories"]
    names = list(groups[0]["tokens"])
    sizes = list(dict.fromkeys(name.rpartition(" of ")[2] for name in names))

    def of_size(what: str, size: str) -> str:
        columns: dict[str, Callable[[Row], Any]] = {"draft": lambda row: row["name"]}
        columns |= {
            f"{group['name']} ({group['prompts']})": lambda row, group=group: group[what][
                row["full"]
            ]
            for group in groups
        }
        rows = [
            {"full": name, "name": name.removesuffix(f" of {size}")}
            for name in names
            if name.endswith(f" of {size}")
        ]
        return table(columns, rows)

    merges: dict[str, Callable[[Row], Any]] = {
        "texts": lambda row: row["category"],
        "at most": lambda row: f"{row['size']} nodes",
        "merge of": lambda row: row["merge"],
        "the best of them, by tokens per step": lambda row: row["tokens"]["best"],
        "merge over it": lambda row: row["tokens"]["ratio"],
        "the best of them, by tokens per second": lambda row: row["speed"]["best"],
        "merge over that": lambda row: row["speed"]["ratio"],
        "the best of all, by tokens per step": lambda row: row["tokens of all"]["best"],
        "merge over this": lambda row: row["tokens of all"]["ratio"],
        "the fastest of all": lambda row: row["speed of all"]["best"],
        "over the fastest": lambda row: row["speed of all"]["ratio"],
    }
    parts = {
        f"{size} nodes": [
            f"**At most {size} nodes**: tokens per step.",
            of_size("tokens", size),
            "Speedup over plain decoding.",
            of_size("speedups", size),
        ]
        for size in sizes
    }
    return parts | {
        "merges": [
            "**Merges over the best single source**, of those that they merge and of all, chosen on the "
            "same texts.",
            table(merges, data["figures"]["merges"], words=4),
        ]
    }


def which_source(data: Row) -> Parts:
    """The fastest draft on each kind of text, beside the draft model at its best, and over all texts."""
    columns: dict[str, Callable[[Row], Any]] = {
        "texts": lambda row: row["category"],
        "fastest of all drafts and sizes": lambda row: row["fastest"],
        "over plain decoding": lambda row: row["speedup"],
        "the draft model at its best": lambda row: row["over the model"]["best"],
        "over it": lambda row: row["over the model"]["ratio"],
    }
    duel, over_plain = data["figures"]["samplings"][0]["verdict"][:2]
    return {
        "": [
            table(columns, data["figures"]["fastest"], words=2),
            f"Over all of these texts: {duel} {over_plain}",
        ]
    }


def draft_sources(data: Row) -> Parts:
    """What sources cost by what they remember, how that grows, and a datastore of millions."""
    figures = data["figures"]
    columns: dict[str, Callable[[Row], Any]] = {
        "source": lambda row: row["source"],
        "tokens": lambda row: f"{row['tokens']:,}",
        "µs a token read": lambda row: row["read_us"],
        "operations a token read": lambda row: f"{row['read_operations']:.0f}",
        "µs a proposal, median": lambda row: f"{row['propose_p50_us']:.0f}",
        "99 %": lambda row: f"{row['propose_p99_us']:.0f}",
        "operations a proposal": lambda row: f"{row['propose_operations']:.0f}",
        "draft tokens, mean": lambda row: f"{row['drafted']:.1f}",
        "bytes a token": lambda row: None if row["bytes"] is None else f"{row['bytes']:.0f}",
    }
    ratios: dict[str, Callable[[Row], Any]] = {
        "source": lambda row: row["source"],
        "time of a token read": lambda row: row["read_us"],
        "operations": lambda row: row["read_operations"],
        "time of a proposal": lambda row: row["propose_p50_us"],
        "operations of it": lambda row: row["propose_operations"],
    }
    first, store = figures["growth"][0], figures["datastore"]
    return {
        "": [
            "By the tokens that a source remembers; all draft for the same stretch of text, as far as it "
            "is accepted. Operations are bytecode instructions. A source that remembers more finds more to "
            "draft, and larger drafts cost more. Bytes are what the process grew by, some megabytes of "
            "libraries included that it comes to use.",
            table(columns, figures["sources"]),
            f"At {first['to']:,} tokens over that at {first['from']:,}:",
            table(ratios, figures["growth"]),
            f"A datastore of {store['tokens']:,} tokens of {store['texts']:,} files was sorted and written "
            f"in {store['build_s']:.0f} s, with {store['build_peak_mb']:,.0f} MB of memory at most, into a "
            f"file of {store['file_mb']:.0f} MB. A look-up and its tree took {store['propose_p50_us']:.0f} "
            f"µs in the median and {store['propose_p99_us']:.0f} µs at the 99th percentile; of "
            f"file and source {store['resident_mb']:.0f} MB were in memory after {store['steps']:,} steps.",
        ]
    }


def skip_sets(data: Row) -> Parts:
    """A searched skip set beside random ones of its size."""
    columns: dict[str, Callable[[Row], Any]] = {
        "left out": lambda row: row["set"],
        "acceptance": lambda row: f"{row['acceptance']:.3f}",
        "tokens per step": lambda row: row["tokens_per_step"],
        "tokens per second": lambda row: f"{row['tokens_per_second']:.1f}",
    }
    return {"": [table(columns, summary(data["figures"]))]}
