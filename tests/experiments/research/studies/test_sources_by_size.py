import polars as pl
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.config.schema import Config
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.research.studies.sources_by_size import (
    MODELS,
    SIZES,
    merged,
    methods,
)
from treespec.search import optimal_tree
from treespec.tree import TreeShape

FILES = ("python.datastore", "past.npz", "successors.npz", "ngrams.npz", "held_out.txt")
RATES = [[0.6, 0.2, 0.1], [0.5, 0.1]]


class AnyName(dict):
    """The same rates for every source."""

    def __missing__(self, name):
        return RATES


def test_every_source_is_in_the_config_at_every_size():
    every = list(methods({name: name for name in FILES}, AnyName()))
    config = Config.model_validate(
        {
            "name": "sources",
            "models": MODELS,
            "prompts": {"kind": "tasks"},
            "max_new_tokens": 8,
            "samplings": [{"temperature": 0}],
            "methods": every,
        }
    )
    names = [method["name"] for method in every[1:]]
    assert len(set(names)) == len(names) == len(config.methods) - 1
    for method in every[1:]:
        size = int(method["name"].rpartition(" of ")[2])
        assert size in SIZES
        shape = method["shape"]
        assert (shape["size"] if "size" in shape else shape["depth"] + 1) == size
        if shape["kind"] == "optimal":  # rows that were learned may be shorter than others
            assert optimal_tree(shape["rates"], size).size == size
    sources_at = {
        size: {m["draft"]["source"] for m in every[1:] if m["name"].endswith(f" of {size}")}
        for size in SIZES
    }
    assert sources_at[8] == sources_at[16]
    assert sources_at[16] - sources_at[64] == {"cascade"}
    assert all(f"lookahead warm, tree of {size}" in names for size in SIZES)
    merges = [m["draft"] for m in every[1:] if m["draft"]["source"] == "merge"]
    recycled = [s for draft in merges for s in draft["sources"] if s["source"] == "token_recycling"]
    assert len(recycled) == len(merges)
    assert all("warm" in source for source in recycled)  # as when its rates were measured
    warm = {m["name"] for m in every[1:] if "warm" in m["draft"]}
    assert {name.partition(" warm")[0] for name in warm} == {
        *("suffix_tree", "token_recycling", "lookahead")
    }


MERGED = "merge of model, lookup, tree of 4"

METHODS = (
    SyntheticMethod("plain", "plain", other_ms=1.0),
    SyntheticMethod("lookup, chain of 4", "tree", TreeShape.chain(3), (0.3,), (1.0, 10.0, 0.1, 0.1)),
    SyntheticMethod("model, chain of 4", "tree", TreeShape.chain(3), (0.7,), (9.0, 10.0, 0.1, 0.1)),
    SyntheticMethod(MERGED, "tree", TreeShape.chain(3), (0.8,), (9.0, 10.0, 0.1, 0.1)),
    SyntheticMethod("other, chain of 4", "tree", TreeShape.chain(3), (0.9,), (0.1, 1.0, 0.1, 0.1)),
    SyntheticMethod("model, chain of 8", "tree", TreeShape.chain(7), (0.9,), (9.0, 10.0, 0.1, 0.1)),
)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    plain = load_run(write_run(tmp_path / "run", METHODS, prompts=8, temperatures=(0.0,)))
    category = pl.Series([*["code"] * 4, *["logs"] * 4])[plain.prompts["prompt"].to_list()]
    prompts = plain.prompts.with_columns(category.alias("category"))
    return Run(plain.folder, plain.manifest, prompts, plain.steps)


def test_a_merge_is_compared_with_the_best_single_source_of_its_size(run):
    rows = merged(run)
    assert [(row["category"], row["size"]) for row in rows] == [("code", 4), ("logs", 4)]
    totals = run.prompts.filter(pl.col("prompt") < 4).group_by("method").agg(
        pl.col("steps", "new_tokens", "decode_s").sum()
    )  # fmt: skip
    of = {row["method"]: row for row in totals.iter_rows(named=True)}
    merge, best = of[MERGED], of["model, chain of 4"]
    assert rows[0]["merge"] == "model, lookup"
    assert rows[0]["tokens"]["best"] == "model, chain"
    assert rows[0]["tokens"]["ratio"]["estimate"] == pytest.approx(
        merge["new_tokens"] / merge["steps"] / (best["new_tokens"] / best["steps"])
    )
    speeds = {name: row["new_tokens"] / row["decode_s"] for name, row in of.items()}
    own = max(("lookup, chain of 4", "model, chain of 4"), key=speeds.get)
    assert rows[0]["speed"]["best"] == own.removesuffix(" of 4")
    assert rows[0]["speed"]["ratio"]["estimate"] == pytest.approx(
        speeds[merge["method"]] / speeds[own]
    )
    assert rows[0]["speed of all"]["best"] == "other, chain"
