"""Heads that share rows of the target's head: stored without them, and written with them for engines."""

import json

import pytest
import torch
from heads import block, eagle3, files
from marginal_heads import states_of, target
from safetensors.torch import save_file
from tiny_models import SMALL, build

from treespec.draft.trained.block_files import load_block, save_block, store_block
from treespec.draft.trained.eagle3_files import load_eagle3, save_eagle3, store_eagle3
from treespec.errors import LoadError
from treespec.models.transformers_model import TransformersModel

TEXT = [5, 17, 80, 2, 41, 63, 9, 33]
ROWS = "lm_head.weight"
FAMILIES = {
    "eagle3": (
        eagle3,
        {"layer_ids": (2, 0, 3), "embedding": True},
        load_eagle3,
        save_eagle3,
        store_eagle3,
    ),
    "block": (
        block,
        {"layout": "speculators", "small": True, "layer_ids": (1, 3)},
        load_block,
        save_block,
        store_block,
    ),
}


def stored(folder, family, **settings):
    """A random head for some tokens, without their rows; `settings` are changed ones of its config.json."""
    made, options, *_ = FAMILIES[family]
    made.checkpoint(folder, **options)
    tensors, config = files.read(folder)
    for file in folder.iterdir():
        file.unlink()
    del tensors[ROWS]
    (folder / "config.json").write_text(json.dumps({**config, "head_of_target": True, **settings}))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def rows_of(head):
    states = states_of(target(), head.contract.reads, TEXT[:-1])
    if head.contract.family == "block":
        text = head.new_text()
        head.read(text, states)
        return head(text, TEXT[-1], [], head.depth)
    head.give(head.fused(states), anew=True)
    head.prefill(torch.tensor(TEXT[:3]))
    return head.run(torch.tensor(TEXT[3:]), (-1, 0, 1, 2, 3)).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_with_and_without_the_rows_it_is_the_same_head_to_the_last_bit(family, tmp_path):
    *_, load, save, store = FAMILIES[family]
    head = load(stored(tmp_path / "read", family), target())
    assert (head.contract.head, head.contract.vocabulary) == ("target's", 40)
    save(head, tmp_path / "whole")
    store(head, tmp_path / "lean")
    (whole, settings), (lean, said) = (files.read(tmp_path / name) for name in ("whole", "lean"))
    assert whole.keys() - lean.keys() == {ROWS}
    assert said.pop("head_of_target")
    assert said == settings
    again = [load(str(tmp_path / name), target()) for name in ("whole", "lean")]
    assert [one.contract.head for one in again] == ["own", "target's"]
    kept = again[1].kept if family == "block" else again[1].net.kept
    assert torch.equal(whole[ROWS], target().model.get_output_embeddings().weight[kept])
    right = rows_of(head)
    assert all(torch.equal(rows_of(one), right) for one in again)
    store(again[0], tmp_path / "own")
    assert files.read(tmp_path / "own")[1] == settings


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_neither_stored_nor_shared_are_missed(family, tmp_path):
    load = FAMILIES[family][2]
    with pytest.raises(LoadError, match=r"has no tensor 'lm_head\.weight'"):
        load(stored(tmp_path, family, head_of_target=None), target())


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_another_width_are_not_shared(family, tmp_path):
    wide = TransformersModel(build("llama", **{**SMALL, "hidden_size": 64, "num_hidden_layers": 4}))
    load, settings = FAMILIES[family][2], {"target_hidden_size": 64}
    with pytest.raises(LoadError, match=r"is a head of width 32 .*, but the target's is 64"):
        load(stored(tmp_path, family, **settings), wide)
