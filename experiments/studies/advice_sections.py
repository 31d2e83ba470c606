"""What RESULTS.md says of the advice of searches: on unseen texts, live, before runs, and simulated."""

from collections.abc import Callable, Iterable
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, percent, table
from treespec.search.intervals import Interval

__all__ = ["advice", "advice_live", "advice_runs"]

COUNTED = (
    "*Agree*: |prediction - other half| is at most the root of the sum of squares of the half-widths of "
    "both 95 % intervals, as they are printed, since the other half has an error of its own. *Inside*: the "
    "other half is in the predicted interval alone, where 83 % would be if both halves have the same error."
)


def advice(data: Row) -> Parts:
    """Advice on unseen texts, against all small trees, and among equals; the parts that were measured."""
    figures = data["figures"]
    said: dict[str, Callable[[Any], list[str]]] = {
        "traces": _unseen,
        "exhaustive": _exhaustive,
        "stretches": _stretches,
        "equals": _equals,
        "noisy": _noisy,
        "sources": _sources,
        "time": _time,
        "parts": _commits,
    }
    return {part: write(figures[part]) for part, write in said.items() if part in figures}


def _unseen(traces: Row) -> list[str]:
    rows = [one | {"trace": name} for name, one in traces.items()]
    advised: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "texts": lambda row: row["texts"],
        "advised: predicted over unseen": lambda row: _quotient(row["advised"]["both ways"]),
        "one way": lambda row: _quotient(row["advised"]["one way"]),
        "agree": lambda row: percent(row["advised"]["agreed"]),
        "inside": lambda row: percent(row["advised"]["inside"]),
        "speed over the best there": lambda row: row["choice"]["of best there"],
        "over the choice by rates": lambda row: row["choice"]["over rates"],
        "of all texts together": lambda row: (
            f"{100 * row['choice']['pooled']['log']:+.1f} ± {percent(row['choice']['pooled']['error'], 1)}"
        ),
    }
    others: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "other shapes": lambda row: len(row["others"]["quotients"]),
        "farthest off": lambda row: row["others"]["worst"],
        "predicted over unseen": lambda row: _quotient(
            row["others"]["quotients"][row["others"]["worst"]]
        ),
        "agree": lambda row: percent(row["others"]["agreed"]),
        "the least of a shape": lambda row: (
            f"{percent(row['others']['least agreed'][0])} ({row['others']['least agreed'][1]})"
        ),
        "inside": lambda row: percent(row["others"]["inside"]),
        "off own replay": lambda row: percent(row["own replay"]["others"], 1),
        "chosen: off own replay": lambda row: percent(row["own replay"]["chosen"], 1),
    }
    first = rows[0]
    return [
        table(advised, rows),
        f"The advised shape is searched in both halves of {first['splits']} splits, and each split is "
        "taken both ways: as much as one half is above the mean of all texts, the other is below it, so "
        "that what is left is the error of predicting. One way alone has the chance of the halves, too. "
        "Quotients are of means, ± the standard error over splits. The speed of the choice is a median; "
        "the last column is the logarithm of the speed of all choices over that of those by rates, ± its "
        "standard error over texts.",
        table(others, rows),
        "A shape that is not chosen is predicted by its own replay: here in one way of "
        f"{first['others']['splits']:,} splits, which need no search. Both halves are drawn alike, so that "
        "these quotients are 1 but for the chance of the splits, and what informs is how often halves "
        "agree. The last columns are predictions from all texts beside replays on all texts, at most: a "
        "shape that was chosen, the first tree or chain, is cross-fitted.",
        COUNTED,
        *_times(rows),
    ]


def _exhaustive(every: Row) -> list[str]:
    columns: dict[str, Callable[[Row], Any]] = {
        "nodes at most": lambda row: row["nodes"],
        "over": lambda row: row["over"],
        "median": lambda row: f"{row['median']:.3f}",
        "at worst": lambda row: f"{row['worst']:.3f}",
        "slower in": lambda row: f"{row['slower']} of {every['cases']}",
    }
    rows = [{"nodes": 8, "over": "the best of all trees"} | every["of the best"]]
    rows += [
        {"nodes": size, "over": "the choice by rates"} | one
        for size, one in every["over rates"].items()
    ]
    return [
        f"The speed of the choice on {every['cases']} made-up traces and machines, valued by replay:",
        table(columns, rows, words=2),
    ]


def _stretches(turns: Row) -> list[str]:
    trace, rates = (
        max(abs(one - 1) for one in turns[part].values())
        for part in ("from the trace", "from rates")
    )
    return [
        "Where easy and hard stretches of text take turns, predictions from a trace are off by at most "
        f"{percent(trace, 1)}, those from rates by {percent(rates)}, in the mean of {turns['repeats']} "
        "traces."
    ]


def _equals(equals: Row) -> list[str]:
    return [
        f"Of {equals['searches']:,} searches among equally fast shapes {percent(equals['share'], 1)} "
        "advised one."
    ]


def _noisy(many: Row) -> list[str]:
    first = next(iter(many.values()))
    shares = " and ".join(
        f"{percent(one['share'], 1)} with times from {rounds} rounds"
        for rounds, one in many.items()
    )
    return [
        f"With times whose samples are {percent(first['noise'])} off, and the best of every size as fast "
        f"as plain decoding, so many of {first['searches']:,} searches advised anything: {shares}."
    ]


def _sources(by_number: Row) -> list[str]:
    each = " and ".join(
        f"{percent(one['share'], 1)} of {one['searches']:,} searches among {number}, where it looks "
        f"{percent(one['flattered']['chain'], 1)} faster than it is in the mean"
        for number, one in by_number.items()
    )
    head = (
        "Of drafts whose chains are equally fast, and faster than plain decoding, one is advised in"
    )
    return [f"{head} {each}."]


def _time(time: Row) -> list[str]:
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "texts": lambda row: f"{row['texts']:,}",
        "positions": lambda row: f"{row['positions']:,}",
        "seconds": lambda row: f"{row['seconds']:.1f}",
        "most memory": lambda row: f"{row['gigabytes']:.2f} GiB",
    }
    rows = [one | {"trace": name} for name, one in time["files"].items()]
    return [
        "`treespec search TRACE --latency L` as a process, from its start to its end, the median of three:",
        table(columns, rows),
    ]


def _commits(parts: Row) -> list[str]:
    at = (f"{name} {one['git_hash'][:7]}" for name, one in parts.items())
    return [f"Measured at: {', '.join(at)}."]


def advice_live(data: Row) -> Parts:
    """Predicted tokens per step against live runs."""
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "decoded": lambda row: row["where"],
        "texts": lambda row: row["texts"],
        "shapes": lambda row: len(row["shapes"]),
        "median error": lambda row: percent(row["median error"], 1),
        "the worst": lambda row: f"{100 * row['worst'][0]:+.1f} % ({row['worst'][1]})",
    }
    rows = [
        one | {"trace": name, "where": where}
        for name, places in data["figures"]["live"].items()
        for where, one in places.items()
    ]
    return {"": [table(columns, rows), *_times(rows)]}


def advice_runs(data: Row) -> Parts:
    """What was chosen before a run over the fastest of the run."""
    columns: dict[str, Callable[[Row], Any]] = {
        "target": lambda row: row["pair"],
        "sampling": lambda row: row["setting"],
        "chosen": lambda row: row["chosen"],
        "fastest here": lambda row: row["fastest"],
        "its speed over that": lambda row: Interval.of(*row["over"]),
        "over the fastest by the other half": lambda row: Interval.of(*row["over_by_other_half"]),
    }
    rows = [
        one | {"pair": pair, "setting": setting}
        for pair, settings in data["figures"]["runs"].items()
        for setting, one in settings.items()
    ]
    said = (
        "The fastest of a run is the fastest by chance, too: so it is looked for in one half of the texts "
        "and compared in the other, and the other way round, in the last column."
    )
    return {"": [table(columns, rows), said]}


def _quotient(one: Row) -> str:
    return f"{one['quotient']:.3f} ± {one['error']:.3f}"


def _times(rows: Iterable[Row]) -> list[str]:
    """Which times traces were searched with; nothing where it is not known."""
    of: dict[str, tuple[Row, list[str]]] = {}
    for row in rows:
        if (times := row.get("times")) is not None:
            of.setdefault(times["sha256"], (times, []))[1].append(row["trace"])
    return [
        f"Times of {'; '.join(dict.fromkeys(names))}: `{times['file']}`, measured "
        f"{times['measured'] or 'at an unknown time'} in {times['rounds']} rounds, "
        f"sha256 {key[:12]}{', disturbed' if times['disturbed'] else ''}."
        for key, (times, names) in of.items()
    ]
