"""States of a target on disk: they teach what a pass teaches, and a reading that was killed goes on."""

import errno
import json

import pytest
import torch

from treespec.experiments.errors import TrainingError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.experiments.training import stored_states as module
from treespec.experiments.training.on_policy import continued
from treespec.experiments.training.packing import PackedTexts, Texts
from treespec.experiments.training.stored_states import stored_states
from treespec.experiments.training.teacher import TargetPass, Teacher
from treespec.features import Features


@pytest.fixture
def data(loaded_pair):
    vocab = loaded_pair.target.vocab_size
    generator = torch.Generator().manual_seed(0)
    lengths = [40, 7, 150, 64, 23, 90, 12]
    ids = [torch.randint(0, vocab, (n,), generator=generator).numpy() for n in lengths]
    return PackedTexts(Texts(ids, [3] * len(ids)), rows=2, length=64, seed=0)


def test_they_teach_what_a_pass_teaches(loaded_pair, data, tmp_path):
    """In every epoch, whose rows hold other texts; states to the last place of float16."""
    target, reads = loaded_pair.target, Features((0, 1))
    stored = stored_states(target, reads, data, tmp_path, Reporter(None))
    for kept in (None, torch.arange(0, target.vocab_size, 3)):
        for step in (0, 4, 9):
            batch = data[step]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                right = Teacher(target, reads, kept)(batch)
                found = Teacher(target, reads, kept, stored)(batch)
            real = batch.place >= 0
            assert torch.equal(found.tokens, right.tokens)
            for mine, its in ((found.features, right.features), (found.logs, right.logs)):
                mine, its = mine[real].float(), its[real].float()
                of_others = (its - its.roll(1, 0)).norm()  # the next token's, for example
                assert (mine - its).norm() < 0.1 * of_others


def test_a_reading_that_was_killed_goes_on_with_the_same_states(
    loaded_pair, data, tmp_path, monkeypatch
):
    target = loaded_pair.target
    whole = stored_states(target, Features((0, 1)), data, tmp_path / "whole", Reporter(None))
    monkeypatch.setattr(module, "BATCHES_BETWEEN", 1)
    runs, through = [], TargetPass.with_normalisers

    def killed(self, packed):
        runs.append(packed)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return through(self, packed)

    monkeypatch.setattr(TargetPass, "with_normalisers", killed)
    with pytest.raises(KeyboardInterrupt):
        stored_states(target, Features((1,)), data, tmp_path / "killed", Reporter(None))
    assert json.loads((tmp_path / "killed/read.json").read_text()) == {"1": 2, "post": 2}
    again = stored_states(target, Features((1,)), data, tmp_path / "killed", Reporter(None))
    batches = -(-data.rows_of_epoch(0) // data.rows)
    assert len(runs) == batches + 1  # none is read twice but the one that was killed
    batch = data[5]
    one, other = (known(batch).states for known in (whole, again))
    assert torch.equal(one[:, :, 1:], other)
    both = stored_states(target, Features((0, 1)), data, tmp_path / "killed", Reporter(None))
    assert len(runs) == 2 * batches + 1  # for the first boundary alone
    assert torch.equal(both(batch).states, one)


def test_a_disk_without_room_is_said_before_anything_is_read(
    loaded_pair, data, tmp_path, monkeypatch
):
    def full(file: int, begin: int, size: int) -> None:
        if len([*tmp_path.glob("*.bin")]) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"GB.*No space left on device; set states: computed"):
        stored_states(loaded_pair.target, Features((1,)), data, tmp_path, Reporter(None))
    assert not [*tmp_path.glob("*.bin")]


def test_what_a_draft_wrote_itself_is_read_anew(loaded_pair, data, tmp_path):
    """Its tokens are not those of the texts, so nothing that is stored is said about them."""
    target, reads = loaded_pair.target, Features((1,))
    stored = stored_states(target, reads, data, tmp_path, Reporter(None))
    options = {"vocab_size": target.vocab_size, "ends": ()}
    batch = data[0]
    own = continued(plain_twin(target), batch, torch.Generator().manual_seed(0), **options)
    assert own.ids.ne(batch.ids).any()
    right, found = (Teacher(target, reads, None, one)(own) for one in (None, stored))
    assert torch.equal(found.features, right.features)
    assert torch.equal(found.logs, right.logs)
