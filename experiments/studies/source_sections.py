"""The parts of RESULTS.md on draft sources: results by size and kind of text, and costs."""

from collections.abc import Callable
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, one_table, table
from treespec.experiments.studies.skip_sets import summary

__all__ = ["draft_sources", "equal_nodes", "skip_sets", "sources", "which_source"]

LEAST_OF_BEST = 0.97
"""Goal: least lower bound of a merge's ratio to the best single source."""

RUN_LAYERS = ("model", "early_exit", "layer_skip")
"""Sources that draft with passes of a model; all others look up."""


def sources(data: Row) -> Parts:
    """Tokens per step and speedups of draft sources by size and kind of text, and of merges of them."""
    groups = data["figures"]["categories"]
    names = list(groups[0]["tokens"])

    def table_of_size(measure: str, size: str) -> str:
        columns: dict[str, Callable[[Row], Any]] = {
            "draft": lambda row: row["name"],
            **{
                f"{group['name']} ({group['prompts']})": lambda row, group=group: group[measure][
                    row["full"]
                ]
                for group in groups
            },
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
        "most tokens per step among its sources": lambda row: row["tokens"]["best"],
        "tokens per step, merge over this": lambda row: row["tokens"]["ratio"],
        "fastest among its sources": lambda row: row["speed"]["best"],
        "speed, merge over this": lambda row: row["speed"]["ratio"],
        "most tokens per step of all": lambda row: row["tokens of all"]["best"],
        "tokens per step, over this": lambda row: row["tokens of all"]["ratio"],
        "fastest of all": lambda row: row["speed of all"]["best"],
        "speed, over this": lambda row: row["speed of all"]["ratio"],
    }
    rows = data["figures"]["merges"]
    words = {
        "tokens": "tokens per step, over its sources",
        "tokens of all": "over all",
        "speed": "speed, over its sources",
        "speed of all": "over all",
    }
    held = [f"{said}, {_held(rows, key)} of {len(rows)}" for key, said in words.items()]
    return {
        **{
            f"{size} nodes": [
                f"**At most {size} nodes**: tokens per step.",
                table_of_size("tokens", size),
                "Speedup over plain decoding.",
                table_of_size("speedups", size),
            ]
            for size in dict.fromkeys(name.rpartition(" of ")[2] for name in names)
        },
        "merges": [
            "**Merges over the best single source**: over the best of the sources that they merge, and "
            "over the best of all. The best source was chosen on the same texts that it is compared on.",
            table(merges, rows, words=4),
            f"Rows whose lower bound is at least {LEAST_OF_BEST}: {', '.join(held)}.",
        ],
    }


def _held(rows: list[Row], key: str) -> int:
    """In how many rows a merge is at least about as good as the best single source."""
    return sum(row[key]["ratio"]["low"] >= LEAST_OF_BEST for row in rows)


def equal_nodes(data: Row) -> Parts:
    """Merges over the best single source of their size, by kind of text."""
    by_merge: dict[str, list[Row]] = {}
    for row in data["figures"]["merges"]:
        by_merge.setdefault(row["merge"], []).append(row)
    held = [
        f"{_held(rows, 'tokens of all')} of {len(rows)} of the merge of {merge}"
        for merge, rows in by_merge.items()
    ]
    return one_table(
        {
            "texts": lambda row: f"{row['category']} ({row['prompts']})",
            "at most": lambda row: f"{row['size']} nodes",
            "merge of": lambda row: row["merge"],
            "best single source": lambda row: row["tokens of all"]["best"],
            "tokens per step, merge over it": lambda row: row["tokens of all"]["ratio"],
        },
        data["figures"]["merges"],
        words=4,
        intro=[
            f"{data['config']['max_new_tokens']} new tokens of each text. The best source was chosen on "
            "the same texts that it is compared on. In merges models draft as deep as the tree, alone six "
            "levels deep in trees."
        ],
        notes=[f"Rows whose lower bound is at least {LEAST_OF_BEST}: {', '.join(held)}."],
    )


def which_source(data: Row) -> Parts:
    """The fastest draft on each kind of text, compared with the best use of the draft model; all texts."""
    duel, over_plain = data["figures"]["samplings"][0]["verdict"][:2]
    rows = data["figures"]["fastest"]
    free = sum(not any(model in row["fastest"] for model in RUN_LAYERS) for row in rows)
    return one_table(
        {
            "texts": lambda row: row["category"],
            "fastest of all drafts and sizes": lambda row: row["fastest"],
            "its speed over plain decoding": lambda row: row["speedup"],
            "the draft model's best form": lambda row: row["over the model"]["best"],
            "the fastest over the draft model": lambda row: row["over the model"]["ratio"],
        },
        rows,
        words=2,
        notes=[
            f"On {free} of {len(rows)} kinds of text the fastest draft runs no model. Over all texts "
            f"together: {duel} {over_plain}",
        ],
    )


def draft_sources(data: Row) -> Parts:
    """Costs of sources by the tokens that they remember, their growth, and a datastore of millions."""
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
    growth, store = figures["growth"][0], figures["datastore"]
    drafted = {(row["source"], row["tokens"]): row["drafted"] for row in figures["sources"]}
    ends = [
        (row, drafted[row["source"], row["from"]], drafted[row["source"], row["to"]])
        for row in figures["growth"]
    ]
    grown = [row | {"more": many / few if few and many else None} for row, few, many in ends]
    ratios: dict[str, Callable[[Row], Any]] = {
        "source": lambda row: row["source"],
        "time of a token read": lambda row: row["read_us"],
        "operations": lambda row: row["read_operations"],
        "time of a proposal": lambda row: row["propose_p50_us"],
        "operations of it": lambda row: row["propose_operations"],
        "draft tokens": lambda row: row["more"],
        "time per draft token": lambda row: row["more"] and row["propose_p50_us"] / row["more"],
    }
    return {
        "": [
            "Costs by the number of tokens that a source remembers. All sources draft for the same "
            "stretch of text, and the path that matches it is accepted. Operations are bytecode "
            "instructions. A source that remembers more finds more to draft, and larger drafts cost more. "
            "Bytes are the growth of the process, which includes some megabytes of libraries that are "
            "loaded meanwhile.",
            table(columns, figures["sources"]),
            f"Cost with {growth['to']:,} remembered tokens over the cost with {growth['from']:,}; the time "
            "per draft token is the median time of a proposal over its mean number of draft tokens:",
            table(ratios, grown),
            f"A datastore of {store['tokens']:,} tokens from {store['texts']:,} files was sorted and "
            f"written in {store['build_s']:.0f} s, with at most {store['build_peak_mb']:,.0f} MB of "
            f"memory, into a file of {store['file_mb']:.0f} MB. One look-up and its tree took "
            f"{store['propose_p50_us']:.0f} µs in the median and {store['propose_p99_us']:.0f} µs at the "
            f"99th percentile. After {store['steps']:,} steps, {store['resident_mb']:.0f} MB of the file "
            "and the source were in memory.",
        ]
    }


def skip_sets(data: Row) -> Parts:
    """A searched skip set compared with random ones of the same size."""
    return one_table(
        {
            "left out": lambda row: row["set"],
            "acceptance": lambda row: f"{row['acceptance']:.3f}",
            "tokens per step": lambda row: row["tokens_per_step"],
            "tokens per second": lambda row: f"{row['tokens_per_second']:.1f}",
        },
        summary(data["figures"]),
    )
