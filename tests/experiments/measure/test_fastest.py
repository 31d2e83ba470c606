"""`treespec search --latency` over several sources and circumstances."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from treespec import TreeShape
from treespec.experiments.cli.main import app
from treespec.experiments.config.shapes import BestShape, tree_of
from treespec.search import LatencyModel, Trace, best_tree, best_tree_among, replay


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def stretches(rng, texts, positions, stay, beyond=16):
    """A trace of easy and hard stretches; a stretch ends at each position with probability `1 - stay`."""
    change = rng.random((texts, positions + beyond)) >= stay
    hard = change.cumsum(axis=1) % 2 == 1
    accepted = np.where(hard[..., None], (0.15, 0.12, 0.1), (0.97, 0.01, 0.005)).reshape(-1, 3)
    ranks = (rng.random((len(accepted), 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    return Trace(
        offsets=np.arange(texts + 1) * (positions + beyond), tokens=np.zeros(len(ranks), dtype=int),
        ranks=ranks, probs=accepted, accepted=accepted, law="iid", rule="rrs",
        sampling={"temperature": 1.0}, width=3, kept=np.full(texts, positions),
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Traces of long and short easy stretches, and times of cheap and expensive verification."""
    folder = tmp_path_factory.mktemp("search")
    for name, stay in (("long", 0.97), ("short", 0.6)):
        stretches(np.random.default_rng(1), 12, 80, stay).save(folder / f"{name}.npz")
    sizes = {"verify": {64: {1: 0.02, 16: 0.022}, 256: {1: 0.02, 16: 0.06}}, "draft": 0.0005}
    LatencyModel.from_tables(**sizes, law="iid").save(folder / "cheap.json")
    LatencyModel.from_tables(verify={1: 0.02, 16: 0.12}, draft=0.004, law="iid").save(
        folder / "dear.json"
    )
    return folder


def test_several_traces_are_ranked_together(files):
    done = call(
        "search",
        files / "long.npz",
        files / "short.npz",
        "--latency",
        files / "cheap.json",
        "--json",
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["source"] for row in rows} == {"long", "short"}
    assert sum(row["kind"] == "plain" for row in rows) == 1
    chosen = [row for row in rows if row["basis"] == "other texts"]
    assert {(row["source"], row["kind"]) for row in chosen} == {
        (source, kind) for source in ("long", "short") for kind in ("tree", "chain")
    }
    speeds = [row["tokens_per_s"]["estimate"] for row in chosen]
    assert speeds == sorted(speeds, reverse=True)
    assert rows[0] is chosen[0]
    alone = json.loads(
        call("search", files / "long.npz", "--latency", files / "cheap.json", "--json").stdout
    )
    assert "source" not in alone["rows"][0]
    mine = next(row for row in rows if row["source"] == "long")
    assert mine["tokens_per_s"] == alone["rows"][0]["tokens_per_s"]
    told = call(
        "search", files / "long.npz", files / "short.npz", "--latency", files / "cheap.json"
    )
    lines = told.stdout.splitlines()
    assert "trace" in lines[1]
    assert lines[2].endswith("other texts")
    assert any(line.endswith("same texts") for line in lines)
    assert "tokens/step: emitted tokens" in told.stdout


def test_each_source_may_have_its_own_times(files):
    found = call(
        *("search", files / "long.npz", files / "short.npz", "--latency", files / "dear.json"),
        *("--latency", files / "cheap.json", "--prefix", "64", "--size", 8, "--json"),
    )
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["rows"][0]["source"] == "short"
    wrong = call("search", "0.6", *("--latency", files / "dear.json") * 2)
    assert wrong.exit_code == 2
    assert "1 sources, but --latency names 2 files" in wrong.output


def test_times_of_another_draft_are_refused_by_name(files, tmp_path):
    """Otherwise a draft of another size would be ranked by times that it does not have."""

    def models(draft, **more):
        return {"models": {"target": "big", "draft": draft, **more}}

    for name in ("small", "large"):
        trace = replace(Trace.load(files / "long.npz"), about=models(name))
        trace.save(tmp_path / f"{name}.npz")
        times = LatencyModel.load(files / "cheap.json")
        replace(times, about=models(name, enlarge="1B")).save(tmp_path / f"{name}.json")
    traces = tmp_path / "small.npz", tmp_path / "large.npz"
    wrong = call("search", *traces, "--latency", tmp_path / "small.json")
    assert wrong.exit_code == 2
    said = " ".join(wrong.output.split())
    assert "large: acceptance of iid is of draft large, but the times are of draft small" in said
    own = ("--latency", tmp_path / "small.json", "--latency", tmp_path / "large.json")
    assert call("search", *traces, *own, "--size", 4).exit_code == 0
    unnamed = call("search", *traces, "--latency", files / "cheap.json", "--size", 4)
    assert unnamed.exit_code == 0


def test_times_of_other_passes_are_told(files, tmp_path):
    """Compiled passes take a fraction of the time of eager ones."""

    def models(**more):
        return {"target": "big", "draft": "small", **more}

    trace, times = Trace.load(files / "long.npz"), LatencyModel.load(files / "cheap.json")
    for asked in ("eager", "auto"):
        about = {"models": models(passes=asked, draft_passes="eager")}
        replace(trace, about=about).save(tmp_path / f"{asked}.npz")
        found = {"target": {"passes": "compiled"}, "draft": {"passes": "eager"}}
        replace(times, about=about | found).save(tmp_path / f"{asked}.json")
    asked = ("search", tmp_path / "eager.npz", "--latency", tmp_path / "eager.json", "--size", 4)
    said = " ".join(call(*asked).output.split())
    assert (
        "caution: what was recorded has eager passes of the target, but the times are of compiled"
        in said
    )
    assert "or profile with models.passes=eager" in said
    assert "auto" not in said
    asked = ("search", tmp_path / "auto.npz", "--latency", tmp_path / "auto.json", "--size", 4)
    notes = " ".join(json.loads(call(*asked, "--json").stdout)["notes"])
    assert "what was recorded has" not in notes
    plain = call("search", files / "long.npz", "--latency", files / "cheap.json", "--size", 4)
    assert "caution" not in plain.output


def test_prefixes_and_batches_are_searched_one_by_one(files):
    done = call(
        "search",
        files / "short.npz",
        "--latency",
        files / "cheap.json",
        "--prefix",
        "64,256",
        "--json",
    )
    assert done.exit_code == 0, done.output
    rankings = json.loads(done.stdout)["rankings"]
    assert [ranking["prefix"] for ranking in rankings] == [64, 256]
    assert rankings[0]["rows"][0]["size"] > rankings[1]["rows"][0]["size"]
    wrong = call("search", files / "short.npz", "--latency", files / "cheap.json", "--batch", "x")
    assert wrong.exit_code == 2
    assert "--batch = 'x'" in wrong.output


def test_every_batch_of_a_profile_is_advised_on(files, tmp_path):
    """A pass that grows dear with the texts: trees for one, chains for four, nothing for many."""
    times = {
        1: ({1: 0.02, 16: 0.022}, 0.0005),
        4: ({1: 0.02, 3: 0.03, 16: 0.2}, 0.0005),
        32: ({1: 0.02, 2: 0.2, 16: 1.0}, 0.05),
    }
    models = {
        batch: LatencyModel.from_tables(verify=verify, draft=draft, law="iid", batch=batch)
        for batch, (verify, draft) in times.items()
    }
    latency = LatencyModel.of_batches(models).save(tmp_path / "batches.json")
    asked = ("search", files / "short.npz", "--latency", latency, "--size", 16)
    done = call(*asked, "--json")
    assert done.exit_code == 0, done.output
    rankings = json.loads(done.stdout)["rankings"]
    assert [ranking["batch"] for ranking in rankings] == [1, 4, 32]
    for ranking in rankings:
        batch = ranking["batch"]
        plain = next(row for row in ranking["rows"] if row["kind"] == "plain")
        assert plain["tokens_per_s"]["estimate"] == pytest.approx(batch / 0.02)
        alone = call(*asked, "--batch", batch, "--json")
        assert json.loads(alone.stdout) == ranking
    printed = call(*asked).stdout
    title = "by texts in a batch, predicted tokens/s of all of them"
    lines = printed[printed.index(title) :].splitlines()[1:]
    assert lines[0].split("  ")[0] == "texts"
    for line, ranking in zip(lines[1:], rankings, strict=True):
        cells = [cell.strip() for cell in line.split("  ") if cell]
        first = {}
        for row in ranking["rows"]:
            first.setdefault(row["kind"], row)
        assert cells[0] == str(ranking["batch"])
        assert cells[1].startswith("tree of ")
        assert cells[3] == f"chain of {first['chain']['depth']}"
        shown = [cells[2], cells[4], cells[5]]
        kinds = ("tree", "chain", "plain")
        assert shown == [f"{first[kind]['tokens_per_s']['estimate']:.1f}" for kind in kinds]
    assert "use plain decoding" in lines[3]
    both = call(*asked[:-2], "--batch", "1,32")
    assert [line.split()[0] for line in both.stdout.splitlines()[-2:]] == ["1", "32"]
    wrong = call(*asked, "--batch", "3")
    assert wrong.exit_code == 2
    assert "times are known for 1, 4, 32" in " ".join(wrong.output.split())
    out = call(*asked, "--out", tmp_path / "tree.json")
    assert out.exit_code == 2
    assert "there are rankings for batches of 1, 4, 32: choose one" in " ".join(out.output.split())
    assert not (tmp_path / "tree.json").exists()


def test_one_file_holds_one_tree(files, tmp_path):
    out = tmp_path / "tree.json"
    asked = ("search", files / "short.npz", "--latency", files / "cheap.json", "--out", out)
    for option, value in (("--prefix", "64,256"), ("--batch", "1,2")):
        wrong = call(*asked, option, value)
        assert wrong.exit_code == 2
        assert f"{option} {value} asks for several rankings" in " ".join(wrong.output.split())
        assert not out.exists()
    plain = call(*asked, "--depth", 0)
    assert plain.exit_code == 2
    assert "the first row is plain decoding, so there is no tree" in " ".join(plain.output.split())
    assert call(*asked, "--prefix", "64").exit_code == 0
    assert out.exists()


def test_without_times_the_tree_of_a_size_has_most_replayed_tokens(files):
    done = call("search", files / "short.npz", "--size", 6, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["shape"]["size"] == 6
    trace = Trace.load(files / "short.npz")
    shape = TreeShape(tuple(found["shape"]["parents"]))
    value = replay.replay(trace, shape).tokens_per_step
    assert found["expected_tokens"] == pytest.approx(value, rel=0.06)
    assert value >= replay.replay(trace, TreeShape.chain(5)).tokens_per_step
    shown = call("search", files / "short.npz", "--size", 6).stdout
    assert "tokens/step: emitted tokens" in shown
    assert "order: by speed" not in shown  # there are no rows, and no intervals
    assert "resamples" not in shown
    many = call("search", files / "short.npz", "0.6")
    assert many.exit_code == 2
    assert "2 sources can only be ranked by speed" in many.output


def test_disturbed_times_are_told(files, tmp_path):
    said = "3 of 5 rounds were disturbed: profile again"
    times = replace(LatencyModel.load(files / "dear.json"), disturbed=said)
    times.save(tmp_path / "noisy.json")
    asked = ("search", files / "short.npz", "--latency", tmp_path / "noisy.json", "--size", 4)
    assert said in " ".join(call(*asked).stdout.split())
    notes = json.loads(call(*asked, "--json").stdout)["notes"]
    assert sum(said in note for note in notes) == 1
    quiet = call("search", files / "short.npz", "--latency", files / "dear.json", "--size", 4)
    assert "disturbed" not in quiet.stdout


def test_a_config_that_names_files_is_told_what_its_search_says(files, tmp_path, caplog):
    said = "3 of 5 rounds were disturbed: profile again"
    replace(LatencyModel.load(files / "cheap.json"), disturbed=said).save(tmp_path / "noisy.json")
    trace, times = str(files / "long.npz"), str(tmp_path / "noisy.json")
    shape = BestShape(kind="best", acceptance=trace, latency=times, max_size=6)
    tree = tree_of(shape)
    ranking = best_tree(Trace.load(trace), LatencyModel.load(times), max_size=6)
    assert tree == ranking.best.shape
    assert ranking.verdict in caplog.text
    assert said in caplog.text


def test_sources_of_different_settings_are_not_mixed(files):
    from treespec.search import InvalidLimit

    one, times = Trace.load(files / "long.npz"), LatencyModel.load(files / "dear.json")
    other = replace(one, sampling={"temperature": 0.5})
    with pytest.raises(InvalidLimit, match=r"a \(T=1\), b \(T=0\.5\)"):
        best_tree_among({"a": (one, times), "b": (other, times)})
    with pytest.raises(InvalidLimit, match="sources is empty"):
        best_tree_among({})
    twins = best_tree_among({"a": (one, times), "b": (one, times)}, draws=40)
    pairs: dict = {}
    for entry in twins.rows:
        pairs.setdefault(entry.shape, []).append(entry.speed.tokens_drawn)
    assert all((pair[0] == pair[-1]).all() for pair in pairs.values())  # the same texts
    alone = best_tree_among({"a": (one, times)}, draws=40)
    assert alone.best == alone.rows[0]
    assert str(alone.advice) == str(best_tree(one, times, draws=40).advice)
