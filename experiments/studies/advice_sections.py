"""The parts of RESULTS.md on the advice of searches: on unseen texts, live, before runs, and simulated."""

from collections.abc import Callable, Iterable
from typing import Any

from treespec.experiments.studies.result_tables import Parts, Row, named, one_table, percent, table
from treespec.search.intervals import Interval

__all__ = ["advice", "advice_live", "advice_runs"]

COUNTED = (
    "*Agree*: prediction and replay on the other half differ by at most the root of the sum of squares of "
    "the half-widths of their 95 % intervals, as printed, since the other half has an error of its own. "
    "*Inside*: the replay on the other half lies in the predicted interval; 83 % would if both halves have "
    "the same error."
)


def advice(data: Row) -> Parts:
    """Advice on unseen texts, against all small trees, and among equals: the parts that were measured."""
    figures = data["figures"]
    writers: dict[str, Callable[[Any], list[str]]] = {
        "traces": _unseen,
        "exhaustive": _exhaustive,
        "stretches": _stretches,
        "equals": _equals,
        "noisy": _noisy,
        "sources": _sources,
        "time": _time,
        "parts": _commits,
    }
    return {part: write(figures[part]) for part, write in writers.items() if part in figures}


def _unseen(traces: Row) -> list[str]:
    rows = named(traces, "trace")
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
        "worst predicted shape": lambda row: row["others"]["worst"],
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
        "used both ways: one half lies as far above the mean of all texts as the other lies below it, so "
        "only the error of the prediction remains. One way alone also contains the chance difference of "
        "the halves. Quotients are quotients of means, ± their standard error over splits. Speeds of the "
        "choice are medians. The last column is the logarithm of the speed of all choices over the speed "
        "of the choices by rates, ± its standard error over texts.",
        table(others, rows),
        "A shape that is not chosen is predicted by its own replay, which needs no search: here one way "
        f"of {first['others']['splits']:,} splits. Both halves are drawn alike, so these quotients differ "
        "from 1 by chance only; the informative figure is how often the halves agree. The last two "
        "columns give the largest difference between predictions from all texts and replays on all texts. "
        "Only chosen shapes, the first tree and the first chain, are cross-fitted.",
        COUNTED,
        *_times(rows),
    ]


def _exhaustive(figures: Row) -> list[str]:
    columns: dict[str, Callable[[Row], Any]] = {
        "nodes at most": lambda row: row["nodes"],
        "over": lambda row: row["over"],
        "median": lambda row: f"{row['median']:.3f}",
        "at worst": lambda row: f"{row['worst']:.3f}",
        "slower in": lambda row: f"{row['slower']} of {figures['cases']}",
    }
    rows = [
        {**figures["of the best"], "nodes": 8, "over": "the best of all trees"},
        *({**row, "over": "the choice by rates"} for row in named(figures["over rates"], "nodes")),
    ]
    return [
        f"Speed of the choice on {figures['cases']} made-up traces and machines, evaluated by replay:",
        table(columns, rows, words=2),
    ]


def _stretches(turns: Row) -> list[str]:
    trace, rates = (
        max(abs(quotient - 1) for quotient in turns[part].values())
        for part in ("from the trace", "from rates")
    )
    return [
        "In texts where easy and hard stretches alternate, predictions from a trace are off by at most "
        f"{percent(trace, 1)}, and predictions from rates by at most {percent(rates)}, on average over "
        f"{turns['repeats']} traces."
    ]


def _equals(equals: Row) -> list[str]:
    return [
        f"Of {equals['searches']:,} searches among equally fast shapes, {percent(equals['share'], 1)} "
        "advised one of them."
    ]


def _noisy(by_rounds: Row) -> list[str]:
    first = next(iter(by_rounds.values()))
    shares = " and ".join(
        f"{percent(result['share'], 1)} with times from {rounds} rounds"
        for rounds, result in by_rounds.items()
    )
    return [
        f"With {percent(first['noise'])} noise in every sampled time, and the best shape of every size as "
        f"fast as plain decoding, the share of {first['searches']:,} searches that advised anything was "
        f"{shares}."
    ]


def _sources(by_number: Row) -> list[str]:
    shares = " and in ".join(
        f"{percent(result['share'], 1)} of {result['searches']:,} searches among {number} drafts (the best "
        f"chain looks {percent(result['flattered']['chain'], 1)} faster than it is, on average)"
        for number, result in by_number.items()
    )
    return [
        "Where several drafts have equally fast chains, all faster than plain decoding, one of them is "
        f"advised in {shares}."
    ]


def _time(time: Row) -> list[str]:
    columns: dict[str, Callable[[Row], Any]] = {
        "trace": lambda row: row["trace"],
        "texts": lambda row: f"{row['texts']:,}",
        "positions": lambda row: f"{row['positions']:,}",
        "seconds": lambda row: f"{row['seconds']:.1f}",
        "most memory": lambda row: f"{row['gigabytes']:.2f} GiB",
    }
    return [
        "Duration of the command `treespec search TRACE --latency L` from start to end, the median of "
        "three runs:",
        table(columns, named(time["files"], "trace")),
    ]


def _commits(parts: Row) -> list[str]:
    commits = (f"{name} {part['git_hash'][:7]}" for name, part in parts.items())
    return [f"Commits at which the parts were measured: {', '.join(commits)}."]


def advice_live(data: Row) -> Parts:
    """Predicted tokens per step compared with live runs."""
    rows = named(data["figures"]["live"], "trace", "where")
    return one_table(
        {
            "trace": lambda row: row["trace"],
            "decoded": lambda row: row["where"],
            "texts": lambda row: row["texts"],
            "shapes": lambda row: len(row["shapes"]),
            "median error": lambda row: percent(row["median error"], 1),
            "the worst": lambda row: f"{100 * row['worst'][0]:+.1f} % ({row['worst'][1]})",
        },
        rows,
        notes=_times(rows),
    )


def advice_runs(data: Row) -> Parts:
    """The speed of the shape chosen before a run over that of the fastest shape of the run."""
    return one_table(
        {
            "target": lambda row: row["pair"],
            "sampling": lambda row: row["setting"],
            "chosen": lambda row: row["chosen"],
            "fastest here": lambda row: row["fastest"],
            "speed, chosen over fastest": lambda row: Interval.of(*row["over"]),
            "over the fastest of the other half": lambda row: Interval.of(
                *row["over_by_other_half"]
            ),
        },
        named(data["figures"]["runs"], "pair", "setting"),
        notes=[
            "Which shape is the fastest of a run is partly chance. For the last column the fastest shape "
            "is therefore chosen on one half of the texts and compared on the other half, both ways."
        ],
    )


def _quotient(row: Row) -> str:
    return f"{row['quotient']:.3f} ± {row['error']:.3f}"


def _times(rows: Iterable[Row]) -> list[str]:
    """The files of times that the traces were searched with, where these are known."""
    by_file: dict[str, tuple[Row, list[str]]] = {}
    for row in rows:
        if (times := row.get("times")) is not None:
            by_file.setdefault(times["sha256"], (times, []))[1].append(row["trace"])
    return [
        f"Times used for {'; '.join(dict.fromkeys(names))}: `{times['file']}`, measured "
        f"{times['measured'] or 'at an unknown time'} in {times['rounds']} rounds, "
        f"sha256 {key[:12]}{', disturbed' if times['disturbed'] else ''}."
        for key, (times, names) in by_file.items()
    ]
