"""`treespec search`, `treespec export`, and the shape `optimal` in configs."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from treespec import TreeShape
from treespec.experiments.cli.main import app
from treespec.experiments.config.shapes import OptimalShape, tree_of
from treespec.search import LatencyModel, Trace, expected_tokens, formats, optimal_tree


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_search_shows_the_tree_and_its_worth():
    done = call("search", "0.6,0.2,0.1", "--size", 6, "--depth", 3, "--to", "eagle")
    assert done.exit_code == 0, done.output
    shape = optimal_tree([0.6, 0.2, 0.1], 6, depth=3)
    assert f"{expected_tokens(shape, [0.6, 0.2, 0.1]):.3f}" in done.output
    assert formats.dump(shape, "eagle").content in done.output
    assert "a chain of 4 nodes: 2.176" in done.output  # 1 + 0.6 + 0.36 + 0.216
    assert "The root is not counted." in done.output


def test_search_with_rates_by_level():
    done = call("search", "0.9,0;0.5,0.4", "--size", 4)
    assert done.exit_code == 0, done.output
    assert str(optimal_tree([[0.9, 0.0], [0.5, 0.4]], 4)) in done.output


def test_sequoias_vector_times_and_sizes(tmp_path):
    """A vector as rates, one draft time for all widths, and the sizes that an engine verifies."""
    vector, times = tmp_path / "vector.pt", tmp_path / "latency.json"
    vector.write_bytes(formats.dump_rates([0.6, 0.2, 0.1]))
    done = call("search", vector, "--size", 6)
    assert done.exit_code == 0, done.output
    assert str(optimal_tree([0.6, 0.2, 0.1], 6)) in done.output
    assert tree_of(OptimalShape(kind="optimal", rates=str(vector), size=6)).size == 6
    sizes = [1, 2, 4, 8, 16]
    verify = dict(zip(map(str, sizes), [10, 10, 10, 12, 14], strict=True))
    batch = {"verify_ms": verify, "laws": {"any": {"level_ms": 0.3}}}
    times.write_text(json.dumps({"version": 1, "batches": {"1": batch}}))
    words = ("search", vector, "--latency", times, "--sizes")
    done = call(*words, "1,2,4,8,16", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {row.get("size") for row in found["rows"]} <= {*sizes}
    assert found["rows"][0]["kind"] == "tree"
    assert found["rows"][0]["step_ms"]["estimate"] == pytest.approx(
        verify[str(found["rows"][0]["size"])] + 0.3 * found["rows"][0]["depth"]
    )
    assert "--sizes = 0" in call(*words, "0,4").output
    assert "--sizes selects among times" in call("search", vector, "--sizes", "4").output
    vector.write_bytes(b"no tensor")
    done = call("search", vector)
    assert done.exit_code == 2
    assert str(vector) in done.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.pt"], "treespec estimate TRACE --out rates.pt"),
        (["0.6;x"], "rates = '0.6;x', but expected numbers separated by commas"),
        (["0.6,0.7"], "sums to 1.3"),
        (["0.6", "--size", 0], "size"),
        (["0.6", "--size", 9, "--depth", 2], "largest"),
        (["0.6", "--to", "nobody"], "nobody"),
    ],
)
def test_search_says_what_is_wrong(arguments, words):
    done = call("search", *arguments)
    assert done.exit_code == 2, done.output
    assert words in done.output
    assert "Traceback" not in done.output


def test_export_from_text_and_from_a_file(tmp_path):
    done = call("export", "[[0], [1], [0, 0]]", "--from", "medusa", "--to", "treespec")
    assert done.exit_code == 0, done.output
    assert formats.load(done.stdout) == TreeShape((-1, 0, 0, 1))
    path = tmp_path / "tree.json"
    path.write_text(done.stdout)
    grown = tmp_path / "tree.pt"
    assert call("export", path, "--to", "sequoia", "--out", grown).exit_code == 0
    assert formats.load(grown) == TreeShape((-1, 0, 0, 1))
    again = call("export", path, "--to", "sequoia", "--out", grown)
    assert again.exit_code == 2
    assert "already exists" in again.output
    binary = call("export", path, "--to", "sequoia")
    assert binary.exit_code == 2
    assert "format sequoia is binary: name a file with --out" in binary.output


def test_export_says_what_is_lost():
    done = call("export", "[[0], [1], [0, 0]]", "--from", "medusa", "--to", "sglang")
    assert done.exit_code == 0, done.output
    assert "Lost: " in done.stderr
    assert "Lost" not in done.stdout


def test_the_shape_optimal_in_a_config():
    shape = OptimalShape(kind="optimal", rates=[0.6, 0.2], size=7, depth=3)
    assert tree_of(shape) == optimal_tree([0.6, 0.2], 7, depth=3)
    levels = OptimalShape(kind="optimal", rates=[[0.6, 0.2], [0.3, 0.3]], size=5)
    assert tree_of(levels) == optimal_tree([[0.6, 0.2], [0.3, 0.3]], 5)


def test_a_found_tree_is_written_for_export(tmp_path):
    out = tmp_path / "tree.json"
    done = call("search", "0.6,0.2", "--size", 4, "--to", "treespec", "--out", out)
    assert done.exit_code == 0, done.output
    assert call("export", out, "--to", "medusa").exit_code == 0
    assert call("search", "0.6", "--out", out).exit_code == 2  # it already exists


def test_options_about_times_need_times():
    done = call("search", "0.6", "--law", "iid")
    assert done.exit_code == 2
    assert "--law selects among times" in done.output


def test_a_tree_longer_than_the_name_of_a_file_is_read():
    choices = formats.dump(TreeShape.kary(2, 5), "medusa").content
    assert len(choices) > 255
    assert call("export", choices, "--to", "eagle").exit_code == 0


def test_chains_of_a_trace_are_judged_by_first_children_alone(tmp_path):
    """A first child follows a second child, none follows a first child: no chain beats a chain of one."""
    ranks = np.tile([1, 0, 3], 60)
    Trace(
        offsets=np.arange(5) * 45, tokens=np.zeros_like(ranks), ranks=ranks,
        probs=np.full((180, 3), 0.3), accepted=(ranks[:, None] == np.arange(3)).astype(float),
        law="deterministic", rule="greedy", sampling={}, width=3,
    ).save(tmp_path / "trace.npz")  # fmt: skip
    times = LatencyModel.from_tables(verify={1: 0.02, 64: 0.02}, draft=0.001)
    path = times.save(tmp_path / "latency.json")
    limits = ("--size", 4, "--branching", 1, "--json")
    done = call("search", tmp_path / "trace.npz", "--latency", path, *limits)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    chains = {len(row["parents"]) - 1: row["tokens_per_step"]["estimate"] for row in rows}
    assert [chains[1], chains[max(chains)]] == pytest.approx([3 / 2, 3 / 2], abs=0.02)
