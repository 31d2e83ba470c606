"""Times of batches: whole rounds of real texts, whose passes are joined, taken apart like single steps."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from treespec import Law, Sampling, TreeShape
from treespec.draft import ModelDrafter
from treespec.errors import InvalidArgument
from treespec.experiments.measure.profile.batch_loop import BatchLoop
from treespec.experiments.measure.profile.loop import Loop
from treespec.experiments.measure.profile.plan import Setting, bundle, default_sizes
from treespec.experiments.measure.profile.profile import model_of_rounds, profile_pair
from treespec.models.load import NoDraftModel
from treespec.models.transformers_model import TransformersModel
from treespec.search import LatencyModel
from treespec.search.latency.step_parts import StepParts
from treespec.target import make_target
from treespec.verify import RULES

TREE = TreeShape.expansion([2, 2])
SHAPES = (TreeShape.chain(1), TreeShape.chain(2), TreeShape.chain(4), TREE, bundle(9))
PRICE = {"target": 5000.0, "draft": 100.0, "commit": 7.0}
"""Seconds of a joined pass of the target and of the draft, besides one for each node, and of a commit."""


def text(number, length):
    return [(7 * number + i) % 200 + 1 for i in range(length)]


class Quiet:
    """No other process does anything."""

    def busy_percent(self):
        return 0.0


def setting(texts, law=Law.DETERMINISTIC, rule="greedy", temperature=0.0):
    return Setting(
        Sampling(temperature), law, RULES[rule], f"T={temperature:g}", SHAPES, texts=texts
    )


@pytest.fixture
def passes(loaded_pair, monkeypatch):
    """By a clock that stands still otherwise, passes and commits have prices. The passes are noted."""
    clock, noted = [0.0], []
    run, commit = TransformersModel.run_together, ModelDrafter.commit

    def priced_run(self, parts):
        kind = "draft" if self.model is loaded_pair.draft.model else "target"
        nodes = [len(part.tokens) for _, part in parts]
        clock[0] += PRICE[kind] + sum(nodes)
        noted.append((kind, nodes))
        return run(self, parts)

    def priced_commit(self, step):
        clock[0] += PRICE["commit"]
        return commit(self, step)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(TransformersModel, "run_together", priced_run)
    monkeypatch.setattr(ModelDrafter, "commit", priced_commit)
    return noted


@pytest.mark.parametrize("texts", [1, 3])
def test_a_round_has_one_pass_of_the_target_whose_time_is_that_of_all_texts(
    loaded_pair, passes, texts
):
    targets = [make_target(loaded_pair.target) for _ in range(texts)]
    given = (setting(texts), 16, text, 0)
    loop = (
        BatchLoop(loaded_pair, targets, *given)
        if texts > 1
        else Loop(loaded_pair, targets[0], *given)
    )
    loop.step(TREE)
    for _ in range(3):
        passes.clear()
        seconds = loop.step(TREE)
        assert passes[-1] == ("target", [TREE.size] * texts)
        if seconds is None or len(passes) > 3:  # the texts have just begun
            continue
        assert [kind for kind, _ in passes] == ["draft", "draft", "target"]
        pending = sum(passes[0][1])
        assert seconds["verify"] == PRICE["target"] + texts * TREE.size
        assert seconds["levels"] == [PRICE["draft"] + pending, PRICE["draft"] + 2 * texts]
        assert seconds["draft"] == sum(seconds["levels"])
        assert seconds["commit"] == texts * PRICE["commit"]
        assert (seconds["accept"], seconds["rest"]) == (0, 0)
        assert seconds["whole"] == seconds["verify"] + seconds["draft"] + seconds["commit"]
        return
    pytest.fail("no step was taken apart")


def test_every_number_of_texts_gets_its_tables(loaded_pair, passes):
    """Predicted rounds are those of the prices, also of a shape that was not measured."""
    several = [setting(texts) for texts in (1, 2, 4)]
    several += [setting(2, Law.IID, "rrs", 1.0)]
    timed = profile_pair(loaded_pair, several, (16,), text, repeats=2, watch=Quiet)
    made = model_of_rounds(timed.parts, several, {})
    model = LatencyModel.from_json(made.to_json())
    assert model.to_json() == made.to_json()
    assert [*model.batches] == [1, 2, 4]
    assert {batch: [*laws] for batch, laws in model.batches.items()} == {
        1: ["deterministic"], 2: ["deterministic", "iid"], 4: ["deterministic"]
    }  # fmt: skip
    for texts in (1, 2, 4):
        law = "deterministic"
        assert model.verify_s(7, batch=texts) == PRICE["target"] + 7 * texts
        assert model.plain_s(law=law, batch=texts) == PRICE["target"] + texts
        assert model.draft_level_s(1, law=law, batch=texts) == PRICE["draft"] + texts
        assert model.draft_level_s(2, law=law, batch=texts) == PRICE["draft"] + 2 * texts
        chain = model.step_s(TreeShape.chain(3), law=law, batch=texts)
        fixed = PRICE["target"] + 3 * PRICE["draft"] + texts * (4 + 3 + PRICE["commit"])
        # Where the leaf of the last tree was accepted, the first pass runs it too.
        assert fixed <= chain <= fixed + texts
    decide = {n: model.law_times("deterministic", n).decide for n in (1, 2)}
    assert all(table is not None for table in decide.values())


def test_the_longest_text_begins_all_of_them_anew(loaded_pair):
    """So that no text is far from the prefix length, and none ends early and leaves the batch."""
    loop = BatchLoop(
        loaded_pair, [make_target(loaded_pair.target) for _ in range(3)], setting(3), 16, text, 0
    )
    lengths = []
    for _ in range(40):
        assert loop.step(TREE) is not None
        lengths.append(max(loop._lengths))
        assert lengths[-1] <= loop._limit + 2 * (TREE.depth + 1)
        assert len(set(loop._targets)) == len(loop._lengths) == 3
    assert sum(after < before for before, after in pairwise(lengths)) > 2


def test_a_target_without_a_draft_model_has_times_of_batches_too(loaded_pair):
    pair = SimpleNamespace(
        target=loaded_pair.target, draft=NoDraftModel(loaded_pair.target.vocab_size), tokenizer=None
    )
    loop = BatchLoop(
        pair, [make_target(loaded_pair.target) for _ in range(2)], setting(2), 16, text, 0
    )
    seconds = [loop.step(TREE) for _ in range(3)]
    assert all(len(one["levels"]) == 2 for one in seconds if one)
    assert seconds[-1]["verify"] > 0


def test_a_text_that_fails_ends_the_measurement(loaded_pair, monkeypatch):
    def fails(self, step):
        raise InvalidArgument("it does not commit")

    monkeypatch.setattr(ModelDrafter, "commit", fails)
    loop = BatchLoop(
        loaded_pair, [make_target(loaded_pair.target) for _ in range(2)], setting(2), 16, text, 0
    )
    with pytest.raises(InvalidArgument, match="it does not commit"):
        loop.step(TREE)


def test_passes_over_batches_are_no_larger_than_over_one_text():
    assert max(default_sizes("cpu", 8)) == 64
    assert default_sizes("cpu", 1) == default_sizes("cpu")
    assert max(default_sizes("cuda", 16)) <= 32


FEW = ("samplings=[{temperature: 0}]", "--sizes", "1,2,5", "--prefixes", "16", "--repeats", "2")


def test_the_command_measures_and_prints_every_batch(call, tmp_path):
    done = call("profile", "exp.yaml", "--out", "many.json", "--batch", "1,3", *FEW)
    assert done.exit_code == 0, done.output + done.stderr
    model = LatencyModel.load(tmp_path / "many.json")
    assert [*model.batches] == [1, 3]
    assert all(isinstance(laws["deterministic"], StepParts) for laws in model.batches.values())
    printed = [line.split() for line in done.stdout.splitlines()]
    for texts in ("1", "3"):
        for size in ("1", "2", "5"):
            assert [line[:2] for line in printed].count([texts, size]) == 1, done.stdout
        assert any(line[:3] == [texts, "plain", "step"] for line in printed)
    assert "milliseconds of all texts of a batch" in done.stdout
    found = call("search", "0.6,0.2", "--latency", "many.json")
    assert found.exit_code == 0, found.output + found.stderr
    assert (
        "predicted speed of trees, chains and plain decoding, after 16 tokens, batch 3"
        in found.stdout
    )
    assert [line.split()[0] for line in found.stdout.splitlines()[-2:]] == ["1", "3"]
    one = call("profile", "exp.yaml", "--out", "one.json", *FEW)
    assert "texts" not in one.stdout
    assert [*LatencyModel.load(tmp_path / "one.json").batches] == [1]
    wrong = call("profile", "exp.yaml", "--out", "x.json", "--batch", "0", *FEW)
    assert wrong.exit_code == 2
    assert "--batch" in wrong.stderr
