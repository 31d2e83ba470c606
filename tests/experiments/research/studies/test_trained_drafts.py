"""The study of trained drafts: its methods, its runs, and the table of two block heads."""

import numpy as np
import pytest

from treespec import load_pair
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.report.statistics import Totals
from treespec.experiments.research.studies.coherence import ALL, QUANTITIES, TREES, side_by_side
from treespec.experiments.research.studies.draft_sizes import size_of
from treespec.experiments.research.studies.trained_choice import sources_of
from treespec.experiments.research.studies.trained_plan import (
    DRAWN_RUN,
    methods_of,
    planned,
    runs_of,
)
from treespec.experiments.research.studies.trained_report import over_chains

CONFIG = Config.model_validate({
    "name": "small", "models": {"target": "embedded", "draft": "none"}, "max_new_tokens": 32,
    "prompts": {"kind": "embedded", "count": 96, "tokens": 64},
    "samplings": [{"temperature": 0}, {"temperature": 1}],
    "methods": [
        {"kind": "plain"},
        {"kind": "tree", "name": "lookup, chain", "draft": {"source": "lookup"},
         "shape": {"kind": "budget", "depth": 4}},
        {"kind": "tree", "name": "recycling, tree", "draft": {"source": "token_recycling"},
         "shape": {"kind": "budget", "depth": 3, "size": 8, "branching": 3}},
        {"kind": "tree", "name": "head, chain", "shape": "chain:2",
         "draft": {"source": "eagle3", "model": "embedded-eagle3"}},
    ],
})  # fmt: skip


def shape(kind, speed, **more):
    return {"shape": {"kind": kind, **more}, "nodes": 8, "tokens_per_step": 1.5,
            "tokens_per_second": speed}  # fmt: skip


def chosen():
    tree = shape("expansion", 30.0, branching=[3, 2])
    budget = shape("budget", 21.0, depth=3, size=8, branching=2)
    of_lookup = {"chain": shape("budget", 20.0, depth=3), "tree": budget}
    of_head = {"chain": shape("chain", 25.0, depth=3), "tree": tree}
    cold = {
        "lookup": of_lookup | {"equal": budget},
        "head": of_head | {"equal": shape("chain", None, depth=7)},
    }
    warm = {"chain": shape("chain", 25.0, depth=1), "tree": shape("chain", 12.0, depth=2)}
    drawn = {"8": tree, "16": shape("chain", None, depth=15)}
    return {
        "shapes": {"T=0": cold, "T=1": {"lookup": of_lookup, "head": warm}},
        "plain": {"T=0": 10.0, "T=1": 10.0},
        "drawn": {"head": "head", "sampling": "T=1", "shapes": drawn},
        "sizes": {},
    }


def test_methods_of_a_setting_are_the_chosen_shapes():
    assert list(sources_of(CONFIG)) == ["lookup", "recycling", "head"]
    cold = planned(CONFIG, chosen(), "T=0")
    assert [(p.name, p.form) for p in cold] == [
        ("lookup, chain", "chain"),
        ("lookup, tree", "tree"),
        ("lookup, tree", "equal"),  # the same shape is run once
        ("recycling, tree", "tree"),
        ("recycling, tree", "equal"),
        ("head, chain", "chain"),
        ("head, tree", "tree"),
        ("head, 8 nodes", "equal"),
    ]
    assert len(methods_of(cold)) == 6
    warm = {p.name: p for p in planned(CONFIG, chosen(), "T=1")}
    assert str(warm["head, chain"].method.law) == "deterministic"
    assert warm["head, chain, drawn"].method.law is None
    assert warm["head, chain, drawn"].method.shape.depth == 3  # chosen at temperature 0
    assert not any(p.drawn for p in warm.values() if p.source != "head")


def test_trees_stand_beside_the_chains_of_their_source():
    plans = planned(CONFIG, chosen(), "T=0")
    columns = {(plan.name, "new_tokens"): np.full(12, 60.0) for plan in plans}
    seconds = {"head, tree": 2.0, "head, chain": 3.0, "lookup, tree": 4.0, "lookup, chain": 2.0}
    columns |= {(name, "decode_s"): np.full(12, of) for name, of in seconds.items()}
    found = over_chains(Totals.of(columns), plans)
    assert {tree: ratio.estimate for tree, ratio in found.items()} == pytest.approx(
        {"head, tree": 1.5, "lookup, tree": 0.5}  # recycling's chain was not asked for
    )


def test_runs_fit_the_hours_and_can_be_built():
    runs = dict(runs_of(CONFIG, chosen(), 0.5))
    assert list(runs) == ["T=0", "T=1", DRAWN_RUN]
    for run in runs.values():
        assert build(run).methods[0].name == "plain"
        assert run.prompts.count % 8 == 0
    assert runs["T=0"].prompts.count == 40  # 16.4 seconds each, in 0.2 hours
    rules = {(str(m.rule), str(m.law)) for m in runs[DRAWN_RUN].methods[1:]}
    assert ("traversal", "without_replacement") in rules
    assert len(runs[DRAWN_RUN].methods) == 1 + 2 * 4


def test_the_size_of_a_head_leaves_out_what_is_the_targets():
    pair = load_pair("embedded")
    head = load_eagle3("embedded-eagle3", pair.target)
    size = size_of(head.net, pair, once=False)
    assert size.trained == 1_968_768  # as its training counted
    rows = head.net.lm_head.weight.nbytes
    assert size.level_bytes > rows
    fused = sum(p.nbytes for p in head.net.fuse.parameters())
    own = sum(p.nbytes for p in head.net.parameters()) - head.net.model.embed_tokens.weight.nbytes
    assert size.level_bytes == own - fused


def test_differences_are_paired_and_seeds_are_summed():
    random = np.random.default_rng(0)

    def counts(right):
        rows = random.integers(10, 20, 24)
        shares = dict.fromkeys(("rows", "compared"), rows) | {
            key: random.binomial(rows, right) for key in ("right", "right compared")
        }
        places = {(place, kind): of for place in ("on the spine", "after a sibling")
                  for kind, of in (shares | {"fresh": random.binomial(rows, 0.5)}).items()}  # fmt: skip
        whole = {"emitted": 2 * rows, "steps": rows}
        return {(tree, key): of for tree in TREES for key, of in (places | whole).items()}

    rows = [*side_by_side({(s, c): counts(0.5 + 0.2 * c) for s in "ab" for c in (True, False)})]
    assert {row["seed"] for row in rows} == {"a", "b", ALL}
    found = {(r["seed"], r["quantity"]): r for r in rows if r["tree"] == next(iter(TREES))}
    assert {quantity for _, quantity in found} == set(QUANTITIES)
    after = found[ALL, "next right after a sibling"]
    assert after["difference"].estimate == pytest.approx(
        after["causal"].estimate - after["two-way"].estimate
    )
    assert after["difference"].low < 0.2 < after["difference"].high
    assert after["difference"].low > 0
    assert found["a", "tokens per step"]["causal"].estimate == 2
