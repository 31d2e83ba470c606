"""The report's shares of right tokens: coverage over a head of known rates, tables, and old records."""

import numpy as np
import polars as pl
import pytest
from known_rates import TRUTH, held, report_of
from run_folders.folders import write_run

from treespec.experiments.report.next_right import (
    NO_ROW_HEAD,
    compact_tables,
    lines,
    next_right_table,
    notes,
)
from treespec.experiments.report.right_shares import BELOW, SIBLING, SPINE, NextRight
from treespec.experiments.report.run import load_run, report_data
from treespec.search.traces.next_right import AcceptedNodes


def test_intervals_hold_the_rates_of_a_synthetic_head(without_shape_checks):
    counts = held(range(6))
    assert len(counts) == len(TRUTH) + 1
    assert all(count >= 4 for count in counts.values()), counts


@pytest.mark.slow
def test_intervals_hold_the_rates_in_180_of_200_seeds(without_shape_checks):
    counts = held(range(200))
    assert all(count >= 180 for count in counts.values()), counts


def test_estimates_converge_to_the_rates(without_shape_checks):
    found = report_of(1, prompts=24, tokens=160)
    for (place, band, what), truth in TRUTH.items():
        assert getattr(found.shares[place, band], what).estimate == pytest.approx(truth, abs=0.1)
    assert found.no_row().estimate == 0  # the head has rows at its leaves


def by_hand(marks, texts=4):
    """A method with these nodes in every text: depth, spine, right, fresh."""
    depth, spine, right, fresh = np.array(marks * texts).T
    text = np.repeat(np.arange(texts), len(marks))
    return NextRight(AcceptedNodes(text, depth, spine.astype(bool), right, fresh), texts)


MARKS = [(0, 1, 1, 1), (0, 1, 0, 1), (1, 1, 1, -1), (1, 0, 0, 1), (2, 0, 1, 1), (5, 0, -1, 1)]


def test_shares_by_hand():
    found = by_hand(MARKS)
    root, spine = found.shares[SPINE, "root"], found.shares[SPINE, BELOW]
    assert (root.nodes, root.right.estimate, root.fresh.estimate) == (8, 0.5, 1.0)
    assert root.less_fresh.estimate == -0.5
    assert (spine.nodes, spine.right.estimate, spine.compared) == (4, 1.0, 0)
    sibling = found.shares[SIBLING, BELOW]
    assert (sibling.nodes, sibling.rows, sibling.compared) == (12, 8, 8)
    assert (sibling.right.estimate, sibling.fresh.estimate) == (0.5, 1.0)
    assert found.shares[SIBLING, "depth 4–7"].rows == 0
    assert found.less_spine(BELOW).estimate == -0.5
    assert found.no_row().estimate == pytest.approx(1 / 6)
    assert found.no_row(SIBLING).estimate == pytest.approx(1 / 3)
    # All texts agree: what so many nodes say, not an interval without width.
    assert spine.right.low == pytest.approx(0.51, abs=0.01)
    assert spine.right.high == 1


def test_fewer_than_four_texts_have_no_interval():
    share = by_hand(MARKS, texts=3).shares[SIBLING, BELOW]
    assert not share.right.bounded
    assert not share.less_fresh.bounded


def test_texts_of_one_file_are_one_sample():
    found = by_hand(MARKS, texts=8)
    apart = NextRight(found.nodes, 8, (0, 0, 1, 1, 2, 2, 2, 2))
    assert found.shares[SIBLING, BELOW].right.estimate == apart.share(SIBLING, BELOW).right.estimate
    assert not apart.share(SIBLING, BELOW).right.bounded  # three files


def test_the_table_shows_fresh_drafts_where_they_differ():
    found = by_hand(MARKS)
    rows = lines("head", found)
    assert [row.about for row in rows] == [
        SPINE, "fresh, same nodes", SIBLING, "fresh, same nodes", "sibling less fresh",
    ]  # fmt: skip
    assert rows[2].cells[BELOW].text == "50 %"
    assert rows[2].cells[NO_ROW_HEAD].text == "33 %"
    assert rows[4].cells[BELOW].text == "-50"
    equal = by_hand([(0, 1, 1, 1), (1, 1, 0, 0), (1, 0, 1, 1)])
    assert [row.about for row in lines("model", equal)] == [SPINE, SIBLING, "sibling less spine"]
    chain = by_hand([(0, 1, 1, 1), (1, 1, 0, 0)])
    assert [row.about for row in lines("chain", chain)] == [SPINE]
    table = next_right_table("T=0", [*rows, *lines("model", equal)])
    heads = [column.head for column in table.columns]
    assert heads == [
        "method", "next token", BELOW, "root", "depth 1", "depth 2", NO_ROW_HEAD,
    ]  # fmt: skip
    assert rows[2].cells["depth 4–7"].text == "–"  # a node without a row: no column
    assert [table.repeats(i) for i in range(len(table.rows))] == [
        False, True, True, True, True, False, True, True,
    ]  # fmt: skip
    assert str(table.rows[2][2]) == "50 %"
    assert "Fresh" in notes([found])[1]
    assert "fresh_drafts" in notes([by_hand([(0, 1, 1, -1)])])[1]


def test_the_terminal_names_only_methods_that_accepted_siblings():
    found = {("T=0", "head"): by_hand(MARKS), ("T=0", "chain"): by_hand([(0, 1, 1, 1)])}
    (table,) = compact_tables(found)
    assert [str(row[0]) for row in table.rows] == ["head"]
    assert [column.head for column in table.columns][-2:] == ["less fresh", NO_ROW_HEAD]
    plain = {("T=0", "head"): by_hand([(0, 1, 1, -1), (1, 0, 1, -1), (1, 1, 0, -1)])}
    (table,) = compact_tables(plain)
    assert not any("fresh" in column.head for column in table.columns)
    assert compact_tables({("T=0", "chain"): by_hand([(0, 1, 1, 1)])}) == []


def test_records_without_the_columns_are_read(tmp_path):
    folder = write_run(tmp_path / "run", prompts=4)
    path = folder / "steps.parquet"
    pl.read_parquet(path).drop("spine", "right", "fresh").write_parquet(path)
    run = load_run(folder)
    assert run.steps["right"].null_count() == len(run.steps)
    assert run.next_right == {}
    assert run.findings["next_right"] is None
    assert all(not entry["next_right"] for entry in report_data(run, None)["samplings"])
