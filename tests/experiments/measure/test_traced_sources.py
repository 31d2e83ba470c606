"""`treespec trace --method` for sources other than the pair's draft model, and readers of their traces."""

import json

import pytest
import torch
from typer.testing import CliRunner

from treespec import Law, TokenTree, TorchCoins, decode, load_pair, plugins
from treespec.draft import ModelDrafter
from treespec.experiments.cli.main import app
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.source_budgets import FoundBudget
from treespec.experiments.measure.traces import trace
from treespec.plugins import Budget
from treespec.search import LatencyModel
from treespec.search.traces.replay import replay, replay_budget
from treespec.target import ModelTarget

BUDGET = {"kind": "budget", "depth": 5, "size": 10, "branching": 3}
SETTINGS = {
    "name": "traced",
    "models": {"target": "embedded"},
    "prompts": {"kind": "embedded", "count": 2, "tokens": 64},
    "max_new_tokens": 16,
    "samplings": [{"temperature": 0}],
}
LAYERS = {"source": "early_exit", "layers": 3}
SKIPS = {"source": "layer_skip", "skip": ["mlp.1", "attention.4"]}


def tree(draft, shape, **more):
    return {"kind": "tree", "draft": draft, "shape": shape, **more}


def config(*methods, **change):
    return Config.model_validate(SETTINGS | {"methods": methods} | change)


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded")


@pytest.mark.parametrize("draft", [LAYERS, SKIPS], ids=lambda draft: draft["source"])
def test_parts_of_the_target_are_recorded_as_the_draft_that_they_are(draft, pair):
    """The replays of a chain and a tree equal their live runs."""
    asked = config(tree(draft, "chain:3"), tree(draft, "expansion:2x1x2"))
    built = build(asked).methods
    made = trace(asked, method=built[0].name, width=2, beyond=3, load=lambda models: pair)
    assert made.about["draft"]["source"] == draft["source"]
    assert made.about["models"]["draft"].startswith(draft["source"])  # and not the pair's
    offsets = made.offsets.tolist()
    for method in built:
        found = replay(made, method.shape)
        accepted = []
        for i, begin in enumerate(offsets[:-1]):
            text = made.tokens[begin : offsets[i + 1]].tolist()
            prompt = prompt_of(asked, pair, i)
            steps = list(decode(
                ModelTarget(pair.target), method.drafter(pair, "T=0"), method.choices["T=0"].rule,
                torch.tensor(prompt), sampling=method.choices["T=0"].sampling, coins=TorchCoins(0),
                max_new_tokens=int(made.text_kept[i]),
            ))  # fmt: skip
            ids = [token for step in steps for token in step.tokens]
            assert ids == text[: made.text_kept[i]]
            accepted += [step.verdict.accepted for step in steps]
        assert found.accepted.tolist() == accepted
        assert max(accepted) > 1


def prompt_of(asked, pair, i):
    from treespec.experiments.run.prompts import encode, read_prompts

    raw = read_prompts(asked.prompts, more=0)[: asked.prompts.count]
    return encode(raw, asked.prompts, pair.tokenizer)[i].ids


@pytest.fixture(scope="module")
def of_lookup(pair, tmp_path_factory):
    """A trace file of prompt lookup, for a pair without a draft model as users have it."""
    asked = config(tree({"source": "lookup"}, BUDGET, name="lookup"))
    made = trace(asked, method="lookup", load=lambda models: pair)
    return made, made.save(tmp_path_factory.mktemp("traces") / "lookup.npz")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_text_source_is_recorded_within_its_budget(of_lookup):
    made, _ = of_lookup
    assert made.text_drafts.budget == Budget(10, 5, 3)
    assert (made.width, made.law, made.rule) == (3, "deterministic", "greedy")
    assert made.about["draft"] == {"source": "lookup", "ngram": 3, "places": 256}
    assert "draft" not in made.about["models"]  # its times are the target's alone


def test_replay_takes_budgets_as_configs_write_them(of_lookup):
    made, path = of_lookup
    budgets = ["{kind: budget, depth: 4}", "{kind: budget, depth: 4, size: 8, branching: 2}"]
    done = call(
        "replay", path, *(part for text in budgets for part in ("--growth", text)), "--json"
    )
    rows = json.loads(done.output)["rows"]
    assert [row["shape"] for row in rows] == ["budget 1x4, 5", "budget 2x4, 8"]
    right = [replay_budget(made, budget) for budget in (Budget(5, 4, 1), Budget(8, 4, 2))]
    assert [row["tokens_per_step"] for row in rows] == [replay.tokens_per_step for replay in right]
    assert [row["nodes"] for row in rows] == [replay.nodes_per_step for replay in right]
    refused = call("replay", path, "--shapes", "chain:4")
    assert refused.exit_code == 2
    assert "replay a budget" in refused.output


def test_estimate_counts_what_was_drafted(of_lookup):
    _, path = of_lookup
    done = call("estimate", path, "--by", "depth", "--json")
    found = json.loads(done.output)
    assert found["expected_calibration_error"] is None
    assert found["source"] == "on-policy"
    assert call("estimate", path, "--starts", "chain:4").exit_code == 2


def test_search_finds_limits(of_lookup, tmp_path):
    made, path = of_lookup
    found = json.loads(call("search", path, "--size", "8", "--json").output)
    known = {
        (depth, wide): replay_budget(made, Budget(8 if wide > 1 else depth + 1, depth, wide))
        for depth in range(1, 6)
        for wide in range(1, 4)
    }
    assert found["tokens_per_step"] == max(replay.tokens_per_step for replay in known.values())
    best = known[found["budget"]["depth"], found["budget"]["branching"]]
    assert found["nodes_per_step"] == best.nodes_per_step
    assert "in a config: shape: {kind: budget" in call("search", path, "--size", "8").output
    small = call("search", path)  # the trace holds fewer nodes than a tree has as a rule
    assert small.exit_code == 0
    assert small.output == call("search", path, "--size", "10").output
    assert call("search", path, "--size", "1").exit_code == 2
    times = tmp_path / "times.json"
    times.write_text(LatencyModel.from_tables(verify={1: 0.02, 16: 0.022}, draft=0.001).to_json())
    ranked = json.loads(call("search", path, "--latency", times, "--json").output)
    rows = [row for row in ranked["rows"] if row["kind"] == "growth"]
    assert {row["growth"]["kind"] for row in rows} == {"budget"}
    assert {row["kind"] for row in ranked["rows"]} == {"growth", "plain"}
    asked = rows[-1]["growth"]
    again = replay_budget(made, Budget(asked["size"], asked["depth"], asked["branching"]))
    assert rows[-1]["tokens_per_step"]["estimate"] == pytest.approx(again.tokens_per_step, abs=0.2)
    # A step takes what its nodes take: no pass of a draft model is in it.
    assert rows[-1]["step_ms"]["estimate"] < 22


def test_a_found_budget_says_what_was_chosen_and_what_was_given():
    chain = FoundBudget({"depth": 3, "size": 4, "branching": 1}, 8, 1.5, 4.0, 3, 1.5)
    assert "within 8 nodes, the root included: a chain of depth 3\n" in str(chain)
    tree = FoundBudget({"depth": 3, "size": 8, "branching": 2}, 8, 1.75, 6.0, 4, 1.5)
    assert "root included: trees of depth at most 3 and branching at most 2\n" in str(tree)
    assert "\nthe best chain, of depth 4: 1.500 tokens per step\n" in str(tree)


def test_no_tree_is_made_of_what_such_a_source_accepts(of_lookup, tmp_path):
    _, path = of_lookup
    times = tmp_path / "times.json"
    times.write_text(LatencyModel.from_tables(verify={1: 0.02, 16: 0.022}, draft=0.001).to_json())
    for shape in (
        {"kind": "optimal", "rates": str(path), "size": 4},
        {"kind": "best", "acceptance": str(path), "latency": str(times)},
    ):
        with pytest.raises(ConfigError, match="no tree can be given to it"):
            build(config({"kind": "tree", "shape": shape}))


LIVE = [
    (tree({"source": "token_recycling"}, BUDGET), "token_recycling cannot be traced: what it"),
    (tree({"source": "lookahead", "window": 2, "ngram": 3, "guesses": 1}, BUDGET), "lookahead cannot be"),
    (tree({"source": "jacobi"}, {"kind": "budget", "depth": 4}), "jacobi cannot be traced"),
    (
        tree({"source": "cascade", "draft": {"source": "lookup"}}, {"kind": "budget", "depth": 4}),
        "those of its first model, whatever drafts for that model",
    ),
    (
        tree(
            {"source": "merge", "sources": [{"source": "lookup"}, {"source": "suffix_tree"}],
             "rates": [[[0.5]], [[0.5]]]}, BUDGET,
        ),
        "record each source alone",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "said"), LIVE, ids=[said[:12] for _, said in LIVE])
def test_sources_whose_trees_depend_on_earlier_ones_are_refused_by_name(method, said, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(SETTINGS | {"methods": [method | {"name": "it"}]}))
    done = call("trace", path, "--method", "it", "--out", tmp_path / "x.npz")
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "x.npz").exists()


class Doubled(ModelDrafter):
    """Drafts differently from its model."""

    def propose(self, coins):
        tree = super().propose(coins)
        return TokenTree(tree.shape, tree.tokens * 0, None, tree.law)


def test_a_drafter_that_may_draft_otherwise_than_its_model_is_refused(pair):
    """A trace of the model would hold other drafts."""

    def make(wanted, settings):
        return Doubled(wanted.pair.draft, wanted.tree, wanted.law, wanted.sampling)

    before = plugins.kept()
    try:
        plugins.drafter("doubled", laws=(Law.DETERMINISTIC,))(make)
        method = tree({"source": "doubled"}, "chain:2", name="it")
        asked = validated("test.yaml", SETTINGS | {"methods": [method]})
        with pytest.raises(ConfigError, match="a Doubled may not draft as its model alone"):
            trace(asked, method="it", load=lambda models: pair)
    finally:
        plugins.restore(before)


def test_options_of_draft_models_are_refused_for_sources_without_one(pair):
    asked = config(tree({"source": "lookup"}, BUDGET, name="lookup"))
    for more, said in (
        ({"width": 3}, "leave out --width"),
        ({"beam": 4}, "--beam 4 is for growths"),
    ):
        with pytest.raises(Exception, match=said):
            trace(asked, method="lookup", load=lambda models: pair, **more)
