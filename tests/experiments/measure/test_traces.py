"""`treespec trace` and `treespec replay`."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from treespec import TreeShape
from treespec.experiments.cli.main import app
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.replays import read_shapes
from treespec.experiments.measure.traces import trace
from treespec.search import InvalidTrace, Trace, formats
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.growth import Eagle2
from treespec.search.traces.replay import replay


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def traced(settings, loaded_pair):
    """Record a trace of the tiny pair, with changes of the config and arguments of `trace`."""

    def run(change=None, **arguments):
        config = Config.model_validate(settings | {"max_new_tokens": 3} | (change or {}))
        return trace(config, **({"load": lambda models: loaded_pair, "beyond": 3} | arguments))

    return run


@pytest.fixture(scope="module")
def files(traced, tmp_path_factory):
    """Traces at two temperatures."""
    tmp_path = tmp_path_factory.mktemp("traces")
    return [
        traced(sampling=name, width=3).save(tmp_path / f"{i}.npz")
        for i, name in enumerate(("T=0", "T=1"))
    ]


def test_law_and_rule_are_those_of_a_run(traced):
    cold, warm = (traced(sampling=name, width=2) for name in ("T=0", "T=1"))
    assert (cold.law, cold.rule) == ("deterministic", "greedy")
    assert (warm.law, warm.rule) == ("without_replacement", "rrsw")
    assert warm.texts == 2
    assert warm.kept.max() <= 6
    assert len(warm.tokens) == warm.kept.sum() + 3 * 2
    one = traced(sampling="T=1", width=1)
    assert (one.law, one.rule) == ("without_replacement", "rrsw")
    assert traced(sampling="T=1", law="iid").rule == "rrs"
    assert traced(sampling="T=1", rule="naive", law="deterministic").law == "deterministic"


def test_the_file_of_each_excerpt_is_recorded(traced):
    starts = {"early": 0, "late": 20}
    prompts = {"kind": "embedded", "count": 4, "tokens": 8, "excerpts": starts}
    assert traced({"prompts": prompts}, sampling="T=0", width=2).files.tolist() == [0, 0, 1, 1]
    assert traced(sampling="T=0", width=2).files is None


def test_law_and_rule_of_a_method(traced):
    chain = traced(sampling="T=1", method="chain 3")
    assert (chain.law, chain.rule) == ("iid", "rrs")
    tree = traced(sampling="T=0", method="expansion 2x2")
    assert (tree.law, tree.rule) == ("deterministic", "greedy")
    with pytest.raises(ConfigError, match=r"no tree method 'plain' .*'chain 3'"):
        traced(sampling="T=1", method="plain")
    with pytest.raises(ConfigError, match="leave out --law"):
        traced(sampling="T=1", method="chain 3", law="iid")


def test_a_trace_says_where_it_is_from(traced):
    made = traced({"samplings": [{"temperature": 0.5}]}, width=2)  # the only setting needs no name
    assert made.sampling["temperature"] == 0.5
    assert made.about["sampling"] == "T=0.5"
    assert made.about["models"]["dtype"] == "float32"
    assert made.about["seed"] == 7
    assert {"prompts_hash", "versions", "hardware", "git_hash", "created"} <= set(made.about)


def test_following_the_prompts_own_texts(traced, settings):
    prompts = settings["prompts"] | {"tokens": 4}
    made = traced({"prompts": prompts}, sampling="T=1", follow=True)
    whole = traced(
        {"prompts": prompts | {"tokens": 8}, "max_new_tokens": 2}, sampling="T=1", follow=True
    )
    assert made.forced
    assert made.about["prompt_tokens"] == [4, 4]
    np.testing.assert_array_equal(
        made.tokens[made.text_of == 0][4:6], whole.tokens[whole.text_of == 0][:2]
    )
    with pytest.raises(ConfigError, match=r"set prompts\.tokens"):
        traced(sampling="T=1", follow=True)
    with pytest.raises(ConfigError, match="nothing follows the first"):
        traced({"prompts": prompts | {"tokens": 9999}}, sampling="T=1", follow=True)


def test_what_cannot_be_traced_is_refused(traced):
    with pytest.raises(
        ConfigError, match="several samplings: use --sampling to choose one of 'T=0', 'T=1'"
    ):
        traced()
    with pytest.raises(ConfigError, match="no sampling 'T=2'"):
        traced(sampling="T=2")
    with pytest.raises(InvalidTrace, match="'traversal' cannot be traced"):
        traced(sampling="T=1", rule="traversal")
    with pytest.raises(ConfigError, match="unknown 'bogus'"):
        traced(sampling="T=1", law="bogus")


def test_the_command_writes_a_trace(settings, tmp_path):
    config, out = tmp_path / "c.yaml", tmp_path / "t.npz"
    config.write_text(json.dumps(settings))
    done = call(
        "trace", config, "max_new_tokens=3", "--sampling", "T=0", "--width", 2, "--out", out, "-q"
    )
    assert done.exit_code == 0, done.output
    assert "2 texts, 38 positions, 2 children each, law deterministic, rule greedy" in done.output
    assert Trace.load(out).kept.tolist() == [3, 3]
    for where, words in (
        (out, "already exists"),
        (tmp_path / "no" / "t.npz", "there is no folder"),
    ):
        again = call("trace", config, "--sampling", "T=0", "--out", where)
        assert again.exit_code == 2
        assert words in again.output


def test_growths_are_recorded_for_and_replayed(settings, tmp_path):
    config, out = tmp_path / "c.yaml", tmp_path / "t.npz"
    config.write_text(json.dumps(settings))
    words = ("trace", config, "max_new_tokens=6", "--sampling", "T=0", "--out", out, "-q")
    done = call(*words, "--beam", 3, "--beam-depth", 4)
    assert done.exit_code == 0, done.output
    assert "draft rows for growths: 4 levels, 3 children each" in done.output
    eagle = "{kind: eagle2, k: 3, depth: 3, size: 8}"
    spec = "{kind: specexec, size: 30, branching: 3, depth: 4}"
    both = ("--growth", eagle, "--growth", spec)
    done = call("replay", out, "--shapes", "chain:2", *both, "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["shape"] for row in rows] == ["chain:2", "EAGLE-2 3x3, 8", "SpecExec 30"]
    trace, growth = Trace.load(out), Eagle2(3, 3, 8)
    found = replay_growth(trace, growth)
    assert rows[1]["tokens_per_step"] == found.tokens_per_step
    assert (rows[1]["nodes"], rows[1]["depth"]) == (8, 3)
    assert rows[2]["sure"] < 1  # more nodes than three a level
    shown = call("replay", out, *both).stdout
    assert "the share of steps that are known to be those of a live run" in " ".join(shown.split())
    for wrong, said in (
        ("{kind: eagle2, k: 3}", "such as '{kind: eagle2"),
        ("{kind: chain, depth: 3}", "it is not a growth: name trees with --shapes"),
        ("{kind: cost_aware, size: 8, branching: 2, depth: 3}", "nothing is measured here"),
        ("{", "--growth '{'"),
        ("{kind: eagle2, k: 9, depth: 3, size: 8}", "asks for 9 children of a node"),
    ):
        done = call("replay", out, "--growth", wrong)
        assert done.exit_code == 2, wrong
        assert said in " ".join(done.stderr.split()), done.stderr
    assert "nothing to replay" in call("replay", out).stderr
    assert (
        call(*words[:-3], "--out", tmp_path / "u.npz", "--law", "iid", "--beam", 2).exit_code == 2
    )


def test_replay_prints_what_replay_finds(files):
    done = call("replay", *files, "--shapes", "chain:3,kary:2x2,chains:2x2,expansion:3x1", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    trees = [
        TreeShape.chain(3), TreeShape.kary(2, 2), TreeShape.independent_chains(2, 2),
        TreeShape.expansion([3, 1]),
    ]  # fmt: skip
    assert [row["shape"] for row in rows[:4]] == [
        "chain:3",
        "kary:2x2",
        "chains:2x2",
        "expansion:3x1",
    ]
    for i, row in enumerate(rows):
        found = replay(Trace.load(files[i // 4]), trees[i % 4])
        assert row["tokens_per_step"] == found.tokens_per_step
        assert row["accepted_by_depth"] == found.accepted_by_depth.tolist()
        assert (row["nodes"], row["depth"], row["steps"]) == (
            found.shape.size, found.shape.depth, len(found.accepted),
        )  # fmt: skip
        assert row["low"] <= row["tokens_per_step"] <= row["high"]
        assert row["sampling"] == ("T=0", "T=1")[i // 4]


def test_replay_prints_a_table(files, tmp_path):
    path = tmp_path / "tree.json"
    path.write_text(formats.dump(TreeShape.kary(2, 2), "treespec").content)
    done = call("replay", files[1], "--shapes", f"chain:2,{path}")
    assert done.exit_code == 0, done.output
    found = replay(Trace.load(files[1]), TreeShape.kary(2, 2))
    assert f"{found.tokens_per_step:.3f}" in done.output
    assert "T=1, rrsw (without_replacement), 2 texts" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ("chain:x", "'chain:x' is not a tree"),
        ("chain:2x2", "'chain:2x2' is not a tree"),
        ("kary:2", "'kary:2' is not a tree"),
        ("star:3", "neither a known kind of tree nor a file"),
        ("expansion:0", "'expansion:0' is not a tree"),
        ("", "'' is not a tree"),
        ("kary:4x1", "the trace holds 3 at each position"),
        ("chain:40", "record more beyond the end"),
    ],
)
def test_bad_shapes_are_refused(files, shapes, words):
    done = call("replay", files[0], "--shapes", shapes)
    assert done.exit_code == 2, done.output
    assert words in done.output.replace("\n", " ")


def test_bad_traces_are_refused(tmp_path):
    path = tmp_path / "no.npz"
    assert "no such file" in call("replay", path, "--shapes", "chain:2").output
    path.write_text("hello")
    done = call("replay", path, "--shapes", "chain:2")
    assert done.exit_code == 2
    assert "no.npz: not an archive" in done.output


def test_shapes_have_names():
    assert read_shapes(" chain:2 , kary:2x3 ")["kary:2x3"] == TreeShape.kary(2, 3)
