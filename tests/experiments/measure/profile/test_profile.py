"""`treespec profile` and `treespec search --latency`, from a config to a file to a ranking."""

import json

import pytest
import yaml

from treespec import TreeShape, load_pair
from treespec.draft.trained.block_files import store_block
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.profile import profile as profile_commands
from treespec.experiments.measure.profile.plan import default_sizes
from treespec.experiments.measure.profile.profile import profile
from treespec.experiments.measure.traces import trace
from treespec.experiments.training.fresh_heads import LayerSizes, fresh_block
from treespec.search import AcceptanceEstimate, LatencyModel, best_tree, expected_tokens


def config(settings, **changes):
    return Config.model_validate({**settings, **changes})


def test_trace_then_profile_then_search(call, tmp_path):
    """The commands of the guide, one after the other: each reads what those before it wrote."""
    few = ("--sizes", "1,2,5,9", "--prefixes", "16,32,120", "--repeats", "2")
    done = call("profile", "exp.yaml", "seed=3", "--out", "latency.json", *few)
    assert done.exit_code == 0, done.output
    assert "after 32 tokens" in done.stdout
    assert "latency.json: 2 rounds, laws deterministic, iid, without_replacement" in done.stdout
    assert "prefix 120 is left out" in done.stderr
    model = LatencyModel.load(tmp_path / "latency.json")
    assert model.prefixes == (16, 32)
    assert model.about["hardware"]["threads"] >= 1
    assert model.about["target"]["dtype"] == "float32"
    assert model.about["rounds"] == 2
    assert model.law_times("iid").rule == "chain"
    assert model.law_times("without_replacement").sampling == "T=1"
    assert model.law_times("deterministic").sampling == "T=0"
    for law in model.laws:
        shape = TreeShape.chain(3) if law == "iid" else TreeShape.kary(2, 2)
        assert 0 < model.plain_s(20, law=law) < 1
        assert 0 < model.step_s(shape, 20, law=law) < 1
    ranked = call("search", "0.6,0.2", "--latency", "latency.json", "--law", "deterministic")
    assert ranked.exit_code == 0, ranked.output
    assert "after 16 tokens, batch 1" in ranked.stdout
    words = ("exp.yaml", "prompts.count=4", "max_new_tokens=24", "--sampling", "T=1")
    traced = call("trace", *words, "--out", "trace.npz", "-q")
    assert traced.exit_code == 0, traced.output
    ranked = call("search", "trace.npz", "--latency", "latency.json", "--json")
    assert ranked.exit_code == 0, ranked.output
    ranking = json.loads(ranked.stdout)
    assert ranking["verdict"].startswith(
        ("Use ", "Not decided ", "Decode plainly", "By prediction")
    )
    chains = [row for row in ranking["rows"] if row["kind"] == "chain"]
    assert {row["law"] for row in chains} == {"iid"}
    shapes = {f"chain:{row['depth']}": row for row in chains if row["basis"] == "replay"}
    told = call("replay", "trace.npz", "--shapes", ",".join(shapes), "--json")
    for row in json.loads(told.stdout)["rows"]:
        valued = shapes[row["shape"]]["tokens_per_step"]["estimate"]
        assert valued == pytest.approx(row["tokens_per_step"])
    again = call("profile", "exp.yaml", "--out", "latency.json")
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_predictions_are_of_the_right_size(settings, loaded_pair):
    """On a tiny pair whose times jump about, so only to a factor; benchmarks compare on a large one."""
    made = profile(
        config(settings, samplings=[{"temperature": 0}]),
        sizes=[1, 2, 5, 9, 17],
        prefixes=[16],
        repeats=5,
        load=lambda models: loaded_pair,
    )
    assert made.model.laws == ("deterministic",)
    assert not [note for note in made.notes if "disturbed" not in note]
    own = made.model.law_times("deterministic")
    shape = TreeShape.chain(16)
    levels = own.first.at(1, 16) + 15 * own.level.at(1, 16)
    whole, verify = made.model.step_s(shape), made.model.verify_s(17)
    assert levels + verify <= whole < 1.5 * (levels + verify)


def test_methods_that_bring_their_own_drafts_are_named(call, settings, loaded_pair):
    lookup = {
        "kind": "tree",
        "draft": {"source": "lookup"},
        "shape": {"kind": "budget", "depth": 2},
    }
    said = "only models.draft is measured: 'lookup chain 2' brings its own draft"
    few = {"sizes": [2, 5], "prefixes": [16], "repeats": 1}
    changed = config(settings, methods=[*settings["methods"], lookup])
    (note,) = (
        n for n in profile(changed, **few, load=lambda m: loaded_pair).notes if "own draft" in n
    )
    assert note.startswith(said)
    methods = "methods=[{kind: tree, draft: {source: lookup}, shape: {kind: budget, depth: 2}}]"
    words = ("max_new_tokens=3", "samplings=[{temperature: 0}]")
    done = call("trace", "exp.yaml", methods, *words, "--out", "t.npz", "-q")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(said)


def test_laws_of_methods_are_measured(settings, loaded_pair):
    tree = {"kind": "tree", "shape": {"kind": "kary", "branching": 2, "depth": 1}}
    methods = [{**tree, "law": "deterministic", "rule": "onehot"}]
    made = profile(
        config(settings, samplings=[{"temperature": 0.5}, {"temperature": 1.0}], methods=methods),
        sizes=[2, 5],
        prefixes=[16],
        repeats=1,
        load=lambda models: loaded_pair,
    )
    assert made.model.law_times("deterministic").rule == "onehot"
    assert made.model.law_times("deterministic").sampling == "T=0.5"
    assert any("law iid: measured under T=0.5, not under T=1" in note for note in made.notes)


def test_an_interrupted_profile_is_written_and_says_so(call, tmp_path, monkeypatch):
    measure = profile_commands.profile_pair

    def interrupted(*args, progress=lambda what: None, **options):
        def stop(what):
            if what.startswith("round 2"):
                raise KeyboardInterrupt
            progress(what)

        return measure(*args, progress=stop, **options)

    monkeypatch.setattr(profile_commands, "profile_pair", interrupted)
    few = ("--sizes", "1,2,5", "--prefixes", "16")
    done = call("profile", "exp.yaml", "--out", "latency.json", *few)
    assert done.exit_code == 130, done.output
    assert "interrupted: 1 of 9 rounds" in done.stderr
    model = LatencyModel.load(tmp_path / "latency.json")
    assert model.about["rounds"] == 1
    assert model.verify_s(5) > 0

    def at_once(*args, **options):
        raise_at_once = {"progress": lambda what: (_ for _ in ()).throw(KeyboardInterrupt)}
        return measure(*args, **{**options, **raise_at_once})

    monkeypatch.setattr(profile_commands, "profile_pair", at_once)
    nothing = call("profile", "exp.yaml", "--out", "other.json", *few)
    assert nothing.exit_code == 2
    assert "nothing to write" in nothing.stderr
    assert not (tmp_path / "other.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "1,x"], "--sizes = '1,x'"),
        (["--sizes", "0,4"], "sizes = 0"),
        (["--prefixes", "-3"], "prefixes = -3"),
        (["--prefixes", "4000"], "prefix 4000 is left out"),
        (["--repeats", "0"], "repeats = 0"),
        (["--out", "nowhere/latency.json"], "no folder nowhere"),
    ],
)
def test_wrong_input(call, arguments, words):
    done = call("profile", "exp.yaml", "--out", "latency.json", *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_default_sizes():
    assert default_sizes("cpu")[-1] == 512
    stairs = default_sizes("cuda")
    assert {64, 65, 128, 129, 512} <= set(stairs)
    assert max(stairs) == 512


def test_nothing_fits_is_an_error(settings, loaded_pair):
    with pytest.raises(ConfigError, match="give shorter --prefixes"):
        profile(config(settings), sizes=[2], prefixes=[500], repeats=1, load=lambda m: loaded_pair)


class Busy:
    """Two neighbours, all the time."""

    def busy_percent(self):
        return 63.0


def test_a_disturbed_profile_says_so_in_its_file(call, tmp_path, monkeypatch):
    monkeypatch.setattr(profile_commands.profile, "__kwdefaults__", {
        **profile_commands.profile.__kwdefaults__, "watch": Busy,
    })  # fmt: skip
    few = ("--sizes", "2,5", "--prefixes", "16", "--repeats", "2")
    done = call(
        "profile", "exp.yaml", "--out", "latency.json", *few, "samplings=[{temperature: 0}]"
    )
    assert done.exit_code == 0, done.output
    said = (
        "Caution: 2 of 2 rounds (the calmest of 3) were disturbed: other processes used up to 63 %"
    )
    assert said in " ".join(done.stderr.split())
    model = LatencyModel.load(tmp_path / "latency.json")
    assert model.disturbed.startswith("2 of 2 rounds (the calmest of 3) were disturbed")
    assert model.about["rounds_measured"] == 3


TIMES = {
    "version": 1,
    "batches": {"1": {"verify_ms": {"1": 20, "32": 24}, "laws": {"any": {"level_ms": 0.5}}}},
}


def test_search_by_speed(call, tmp_path):
    (tmp_path / "latency.json").write_text(json.dumps(TIMES))
    done = call("search", "0.6,0.2,0.1", "--latency", "latency.json", "--to", "treespec")
    assert done.exit_code == 0, done.output
    assert "the fastest is the tree of" in done.stdout
    assert "the rates have no intervals" in done.stdout
    assert '"parents"' in done.stdout
    as_json = call("search", "0.6,0.2,0.1", "--latency", "latency.json", "--size", 8, "--json")
    best = json.loads(as_json.stdout)["rows"][0]
    shape = TreeShape(tuple(best["parents"]))
    assert shape.size <= 8
    worth = expected_tokens(shape, [0.6, 0.2, 0.1])
    assert best["tokens_per_step"]["estimate"] == pytest.approx(worth)
    plain = call("search", "0.01", "--latency", "latency.json")
    assert "plain decoding is the fastest" in plain.stdout


def test_search_from_an_estimate(call, tmp_path):
    (tmp_path / "latency.json").write_text(json.dumps(TIMES))
    estimate = AcceptanceEstimate.from_json(ESTIMATE)
    (tmp_path / "rates.json").write_text(estimate.to_json())
    alone = call("search", "rates.json", "--size", 4)
    assert alone.exit_code == 0, alone.output
    assert "the best tree of 4 nodes" in alone.stdout
    ranked = call("search", "rates.json", "--latency", "latency.json", "--size", 8)
    assert ranked.exit_code == 0, ranked.output
    assert "few texts" in ranked.stdout  # the estimate's warning


ESTIMATE = json.dumps(
    {
        "kind": "acceptance", "version": 1, "by": "rank", "law": "deterministic", "rule": "greedy",
        "source": "on-policy", "interval": "wilson", "level": 0.95, "monotone": False,
        "shrinkage": 0.0, "seed": 0, "warnings": ["few texts"],
        "texts": {
            "hits": [[[60, 20]], [[55, 25]]],
            "trials": [[[100, 100]], [[100, 100]]],
            "mass": [[[60.0, 20.0]], [[55.0, 25.0]]],
        },
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.json"], "'missing.json': there is no such file"),
        (["broken.json"], "broken.json: "),
        (["0.6", "--latency", "missing.json"], "--latency 'missing.json': there is no such file"),
        (["0.6", "--latency", "broken.json"], "broken.json: not JSON: line 1"),
        (["0.6", "--latency", "latency.json", "--size", 33], "up to 32 nodes"),
        (["0.6", "--latency", "latency.json", "--batch", 2], "batch = 2"),
    ],
)
def test_search_says_what_is_wrong(call, tmp_path, arguments, words):
    (tmp_path / "latency.json").write_text(json.dumps(TIMES))
    (tmp_path / "broken.json").write_text("{")
    done = call("search", *map(str, arguments))
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.output


def test_a_target_without_a_draft_model_is_profiled_and_searched(call, tmp_path, settings):
    """A text source needs no model: its trees are ranked by the target's times alone."""
    budget = {"kind": "budget", "depth": 3}
    lookup = {"kind": "tree", "name": "lookup", "shape": budget, "draft": {"source": "lookup"}}
    models = settings["models"] | {"draft": "none"}
    sampled = [{"temperature": 1.0}]
    changes = {"models": models, "samplings": sampled, "methods": [{"kind": "plain"}, lookup]}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(settings | changes))
    few = ("--sizes", "1,2,5", "--prefixes", "16", "--repeats", "2", "--out", "latency.json")
    done = call("profile", "exp.yaml", *few)
    assert done.exit_code == 0, done.output
    assert "there is no draft model" in done.output
    model = LatencyModel.load(tmp_path / "latency.json")
    assert model.laws == ("deterministic",)
    assert model.about["draft"] is None
    assert model.law_times("deterministic").level.at(1, 16) < 1e-4
    wanted = ("exp.yaml", "--method", "lookup", "max_new_tokens=40", "--out", "lookup.npz")
    assert call("trace", *wanted).exit_code == 0
    found = call("search", "lookup.npz", "--latency", "latency.json", "--prefix", "16")
    assert found.exit_code == 0, found.output
    assert "plain" in found.stdout


def test_the_draft_of_a_method_is_timed_and_its_trees_ranked(tmp_path):
    """A trained head has levels of its own; a block head times no tree deeper than its block."""
    pair = load_pair("embedded")
    block = fresh_block(
        pair.target, LayerSizes(32), 0, block_size=3, mask_token=0, causal=True, kept=None
    )
    store_block(block, tmp_path / "block")
    drafts = {
        "head": {"source": "eagle3", "model": "embedded-eagle3"},
        "block": {"source": "block", "model": str(tmp_path / "block")},
        "lookup": {"source": "lookup"},
    }
    shapes = {"lookup": {"kind": "budget", "depth": 2}}
    config = Config.model_validate({
        "name": "heads", "models": {"target": "embedded", "draft": "none"}, "max_new_tokens": 24,
        "prompts": {"kind": "embedded", "count": 2, "tokens": 24}, "samplings": [{"temperature": 0}],
        "methods": [
            {"kind": "tree", "name": name, "draft": draft, "shape": shapes.get(name, "chain:1")}
            for name, draft in drafts.items()
        ],
    })  # fmt: skip
    given = {"sizes": [1, 5, 13], "prefixes": [24], "repeats": 1, "load": lambda models: pair}
    timed = profile(config, method="head", **given).model
    assert timed.about["models"]["draft"] == "eagle3 model=embedded-eagle3"
    deep = timed.law_times("deterministic")
    assert deep.level.at(1, 24) > 1e-4  # a pass of the head
    assert timed.step_s(TreeShape.chain(4), 24) > timed.step_s(TreeShape.chain(1), 24)
    recorded = trace(config, method="head", beyond=4, beam_depth=4, load=lambda models: pair)
    ranking = best_tree(recorded, timed, max_size=5)
    assert {row.kind for row in ranking.rows} >= {"chain", "plain"}
    flat = profile(config, method="block", **given).model.law_times("deterministic")
    assert flat.level.at(1, 24) < deep.level.at(1, 24)
    with pytest.raises(ConfigError, match="lookup is neither"):
        profile(config, method="lookup", **given)
    with pytest.raises(ConfigError, match="no tree method 'haed'"):
        profile(config, method="haed", **given)
