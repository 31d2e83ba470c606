"""Autoregressive heads: rows are those of a straight line, whatever tree, step or batch they stand in."""

import json
from dataclasses import replace

import pytest
import torch
from fresh_drafts import BUSHY, FLOAT32, TEXT, require_of_text_alone
from head_formats import FORMATS, head_of, target
from marginal_heads import states_of
from safetensors import safe_open
from safetensors.torch import save_file

from treespec import Law, Sampling, TorchCoins, decode, verify
from treespec.draft.trained.eagle3_files import save_eagle3
from treespec.errors import InvalidArgument
from treespec.models.passes.choosing_passes import choose_passes
from treespec.target import ModelTarget

DRAFTED = [12, 90, 7]
WIDE = torch.float64


def require_close(rows, right):
    """The rows differ by at most 1e-5 of their norm; both lack the same tokens."""
    lacking = rows == torch.finfo(rows.dtype).min
    assert torch.equal(lacking, right == -torch.inf)
    rows, right = (torch.where(lacking, 0.0, x.double()) for x in (rows, right))
    assert bool(((rows - right).norm(dim=-1) <= 1e-5 * right.norm(dim=-1)).all())


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_a_straight_line(name, tmp_path):
    """Over the text, whose states are the target's, and over a drafted path below it, whose are its own."""
    model = FORMATS[name].target(WIDE)
    head = head_of(name, tmp_path, model)
    states = states_of(model, head.contract.reads, TEXT[:-1])
    right = FORMATS[name].rows(tmp_path, model, TEXT, states, DRAFTED)
    head.give(head.fused(states), anew=True)
    head.prefill(torch.tensor(TEXT[:3]))
    nodes = TEXT[3:] + DRAFTED
    rows = head.run(torch.tensor(nodes), tuple(range(-1, len(nodes) - 1))).logits
    require_close(rows, right[2:])


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("mtp")])
def test_a_head_that_was_written_is_the_same_to_the_last_bit(name, tmp_path):
    form, model = FORMATS[name], target()
    head = head_of(name, tmp_path / "read", model)
    if form.options.get("layernorms"):
        with pytest.raises(InvalidArgument, match=r"norms .* cannot be written"):
            form.save(head, tmp_path / "written")
        return
    form.save(head, tmp_path / "written")
    settings = json.loads((tmp_path / "written/config.json").read_text())
    assert settings["model_type"] == ("qwen3" if form.options.get("qwen3") else "llama")
    again = form.load(str(tmp_path / "written"), model)
    assert again.contract == head.contract
    states = states_of(model, head.contract.reads, TEXT[:-1])
    rows = []
    for one in (head, again):
        one.give(one.fused(states), anew=True)
        one.prefill(torch.tensor(TEXT[:3]))
        rows.append(one.run(torch.tensor(TEXT[3:]), (-1, 0, 1, 2, 3)).logits)
    assert torch.equal(*rows)
    with pytest.raises(InvalidArgument, match="is not empty"):
        form.save(head, tmp_path / "written")


def test_flags_are_written_and_notes_are_not(tmp_path):
    model = target()
    head = head_of("eagle3, vllm", tmp_path / "read", model)
    assert "; fc_norm" in str(head.contract)
    head.contract = replace(head.contract, notes=("norm_before_residual",))
    save_eagle3(head, tmp_path / "written")
    settings = json.loads((tmp_path / "written/config.json").read_text())
    assert settings["fc_norm"] is True
    assert "norm_before_residual" not in settings


SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3, speculators"])
def test_older_readers_find_how_positions_turn(name, tmp_path):
    form, model = FORMATS[name], target()
    form.family.checkpoint(tmp_path / "read", **form.options, rope_theta=5e5, rope_scaling=SCALED)
    head = form.load(str(tmp_path / "read"), model)
    form.save(head, tmp_path / "written")
    settings = json.loads((tmp_path / "written/config.json").read_text())
    assert (settings["rope_theta"], settings["rope_scaling"]) == (5e5, SCALED)
    again = form.load(str(tmp_path / "written"), model)
    turns = [one.net.model.rotary_emb.inv_freq for one in (head, again)]
    assert torch.equal(*turns)
    plain = head_of(name, tmp_path / "plain", model)
    assert not torch.allclose(turns[0], plain.net.model.rotary_emb.inv_freq)
    form.save(plain, tmp_path / "plainly")
    assert "rope_scaling" not in json.loads((tmp_path / "plainly/config.json").read_text())


BRANCHING = (
    "eagle",
    "eagle3, specforge",
    "mtp, deepseek",
    "mtp, glm",
    "mtp, qwen3_next",
    "mtp, mimo, pre",
)
ALONE = (
    "eagle",
    "eagle3",
    "eagle3, specforge",
    "eagle3, two layers",
    "mtp, qwen3_next",
    "mtp, mimo, pre",
)


@pytest.mark.parametrize("name", BRANCHING)
def test_a_node_reads_the_state_of_its_parent(name, tmp_path):
    """Two branches in one pass give what each gives as a text of its own."""
    model = FORMATS[name].target(WIDE)
    head = head_of(name, tmp_path, model)
    states = states_of(model, head.contract.reads, TEXT[:-1])
    head.give(head.fused(states), anew=True)
    head.prefill(torch.tensor(TEXT[:-1]))
    parents = (-1, 0, 0, 1, 2)
    tree = torch.tensor([TEXT[-1], 12, 44, 90, 7])
    rows = torch.cat([head.run(tree[:1], (-1,)).logits, head.run(tree[1:], parents, 1).logits])
    for path, nodes in (([12, 90], [0, 1, 3]), ([44, 7], [0, 2, 4])):
        right = FORMATS[name].rows(tmp_path, model, TEXT, states, path)
        require_close(rows[nodes], right[-3:])


def drafting(name, head):
    """What makes a drafter with the head for trees of a shape."""
    return lambda shape: FORMATS[name].drafter(head, shape, Law.IID, Sampling())


@pytest.mark.parametrize(
    ("lengths", "dtype", "most"),
    [
        ((8,), WIDE, 1e-9),
        ((2,), WIDE, 1e-9),
        ((1,), WIDE, 1e-9),
        ((8,), torch.float32, FLOAT32),
        ((8, 1, 5), torch.float32, FLOAT32),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ALONE)
def test_a_draft_depends_on_the_text_alone(name, lengths, dtype, most, tmp_path):
    """After each of 40 steps, what it proposes is what a fresh drafter proposes on the whole text."""
    model = FORMATS[name].target(dtype)
    require_of_text_alone(drafting(name, head_of(name, tmp_path, model)), model, lengths, most)


@pytest.mark.parametrize("name", ["mtp, deepseek, as vLLM", "mtp, glm"])
@pytest.mark.usefixtures("without_shape_checks")
def test_a_draft_of_experts_depends_on_the_text_alone(name, tmp_path):
    """Experts are chosen in float32, whatever the model's precision."""
    head = head_of(name, tmp_path)
    for lengths in ((8,), (8, 1, 5)):
        require_of_text_alone(drafting(name, head), FORMATS[name].target(), lengths)


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "name", ["eagle", "eagle3, specforge", "mtp, qwen3_next", "mtp, mimo, pre"]
)
def test_a_compiled_draft_depends_on_the_text_alone(name, tmp_path):
    head = head_of(name, tmp_path)
    choose_passes(head, "compiled", draft=True)
    for lengths in ((8,), (2,), (1,), (8, 1, 5)):
        require_of_text_alone(drafting(name, head), FORMATS[name].target(), lengths)


def test_a_vocabulary_without_the_right_tokens_gives_the_right_text(tmp_path):
    """Whatever the head drafts is refused, and the target supplies every token."""
    model = target()
    prompt, cold = torch.tensor(TEXT), Sampling(temperature=0.0)
    with model.as_transformers() as plain:
        ids = plain.generate(prompt[None], max_new_tokens=24, do_sample=False)[0].tolist()[
            len(TEXT) :
        ]
    kept = torch.tensor([token for token in range(model.vocab_size) if token not in ids][:40])
    FORMATS["eagle3"].family.checkpoint(tmp_path, layout="specforge", layer_ids=(2, 1, 3))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["d2t"] = kept - torch.arange(40)
    tensors["t2d"] = torch.zeros(model.vocab_size, dtype=torch.bool).index_fill(0, kept, True)
    save_file(tensors, tmp_path / "model.safetensors")
    head = FORMATS["eagle3"].load(str(tmp_path), model)
    drafter = FORMATS["eagle3"].drafter(head, BUSHY, Law.DETERMINISTIC, cold)
    found, drafted = [], set()
    for step in decode(
        ModelTarget(model), drafter, verify.greedy, prompt, sampling=cold, coins=TorchCoins(0),
        max_new_tokens=24,
    ):  # fmt: skip
        found += step.tokens
        drafted |= set(step.tree.token_ids[1:])
        assert not step.verdict.accepted
    assert found == ids
    assert drafted <= set(kept.tolist())
