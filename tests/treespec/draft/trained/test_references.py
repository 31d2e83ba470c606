"""Facts about the references of trained heads themselves: what their rows depend on."""

from pathlib import Path

import pytest
import torch
from heads import block, eagle, eagle3, files, medusa, mtp
from torch import Tensor

TOKENS = [5, 17, 80, 2, 41, 63, 9, 33]
DRAFTED = [12, 90, 7]


def target(
    features: int = 1, width: int = files.HIDDEN, seed: int = 7
) -> tuple[Tensor, Tensor, Tensor]:
    """Features of all tokens but the last, embedding, head."""
    random = files.Random(seed)
    return (
        random.normal(len(TOKENS) - 1, features, width),
        random.embedding(files.VOCAB),
        random.head(files.VOCAB),
    )


EAGLE = {
    "eagle": {},
    "eagle, bias said": {"bias": True},
    "eagle, no bias": {"bias": False},
    "hass": {"layernorms": True},
    "target's embedding": {"embedding": False},
    "speculators": {"layout": "speculators"},
    "speculators, norms": {"layout": "speculators", "layernorms": True, "bias": False},
    "theta": {"rope_theta": 50.0},
}
EAGLE3 = {
    "eagle3": {},
    "specforge": {"layout": "specforge", "embedding": True, "layer_ids": (1, 2, 3)},
    "nvidia": {"layout": "nvidia", "flags": ("norm_before_fc",), "layer_ids": (1, 2, 3)},
    "nvidia, no aux": {"layout": "nvidia", "aux": False, "count": 1},
    "vllm": {"layout": "vllm", "flags": ("fc_norm", "norm_output")},
    "speculators": {"layout": "speculators", "flags": ("norm_before_residual",)},
    "speculators 3.1": {
        "layout": "speculators", "layers": 2, "qwen3": True, "flags": ("fc_norm", "norm_output"),
    },
    "full vocabulary": {"small": False},
    "wider target": {"target_hidden": 48, "embedding": True},
    "two states": {"count": 2},
}  # fmt: skip
MTP = {
    layout: {"layout": layout}
    for layout in ("deepseek", "glm", "qwen3_next", "mimo", "speculators")
}
PAIRS = {
    f"{module.__name__.split('.')[-1]}: {name}": (module, case)
    for module, cases in ((eagle, EAGLE), (eagle3, EAGLE3), (mtp, MTP))
    for name, case in cases.items()
}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS)
def head_rows(request: pytest.FixtureRequest, tmp_path: Path):
    """Rows of one checkpoint, as a function of tokens and path, and its features, to be changed."""
    module, case = request.param
    module.checkpoint(tmp_path, **case)
    tensors, config = files.read(tmp_path)
    count = case.get("count", 3 if module is eagle3 else 1)
    features, embedding, head = target(count, case.get("target_hidden", files.HIDDEN))

    def rows(tokens=TOKENS, drafted=DRAFTED, features=features):
        return module.rows(tensors, config, tokens, features, drafted, embedding, head)

    return rows, features


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Largest difference of each row, where both have a finite value."""
    return torch.where(torch.isfinite(a), (a - b).abs(), 0).amax(-1)


def test_a_pair_is_seen_by_its_row_and_those_after_it(head_rows):
    rows, features = head_rows
    whole = rows()
    assert whole.shape == (len(TOKENS) - 1 + len(DRAFTED), files.VOCAB)
    assert len(set(whole.argmax(-1).tolist())) > 3
    moved = features.clone()
    moved[3] += 1
    for other in (rows(tokens=[*TOKENS[:4], 70, *TOKENS[5:]]), rows(features=moved)):
        assert distance(whole, other)[:3].max() == 0
        assert distance(whole, other)[3:].min() > 1e-4
    other = rows(drafted=[DRAFTED[0], 30, DRAFTED[2]])
    assert distance(whole, other)[: len(TOKENS)].max() == 0
    assert distance(whole, other)[len(TOKENS) :].min() > 1e-4


def test_a_recycled_state_is_no_feature(head_rows):
    rows, features = head_rows
    longer = torch.cat((features, features[:1]))
    taught = rows(tokens=[*TOKENS, DRAFTED[0]], drafted=DRAFTED[1:], features=longer)
    assert distance(rows(), taught)[: len(TOKENS) - 1].max() < 1e-12
    assert distance(rows(), taught)[len(TOKENS) - 1 :].min() > 1e-4


@pytest.mark.parametrize("flag", eagle3.FLAGS)
def test_every_flag_of_eagle3_moves_rows(tmp_path, flag):
    """Only `norm_output` leaves the rows of the text alone: it changes what is recycled."""
    eagle3.checkpoint(tmp_path, flags=(flag,))
    tensors, config = files.read(tmp_path)
    features, embedding, head = target(3)
    arguments = (TOKENS, features, DRAFTED, embedding, head)
    on = eagle3.rows(tensors, config, *arguments)
    off = eagle3.rows(tensors, {**config, flag: False}, *arguments)
    moved = distance(on, off) > 1e-4
    assert moved[len(TOKENS) - 1 :].all()
    assert moved[: len(TOKENS) - 1].all() == (flag != "norm_output")


def test_a_reduced_vocabulary_has_rows_of_its_tokens_only(tmp_path):
    eagle3.checkpoint(tmp_path)
    tensors, config = files.read(tmp_path)
    features, embedding, head = target(3)
    logits = eagle3.rows(tensors, config, TOKENS, features, [], embedding, head)
    assert (torch.isfinite(logits) == tensors["t2d"]).all()
    assert tensors["t2d"].sum() == len(tensors["d2t"]) == files.DRAFT_VOCAB


@pytest.mark.parametrize("layout", ["medusa", "legacy"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_medusa_row_is_of_its_own_head(tmp_path, layout, layers):
    medusa.checkpoint(tmp_path, layout, layers=layers, said=False)
    tensors, config = files.read(tmp_path)
    state, _, head = target()
    whole = medusa.rows(tensors, config, state[0, 0], head)
    assert whole.shape == (4, files.VOCAB)
    tensors["2.0.linear.bias"] += 1
    moved = distance(whole, medusa.rows(tensors, config, state[0, 0], head)) > 1e-4
    assert moved.tolist() == [False, False, True, False]
    moved = distance(whole, medusa.rows(tensors, config, state[0, 0], head + 1))
    assert (moved[0] > 1e-4) == (layout == "legacy")


BLOCK = {
    "dflash": {},
    "dflash, size nested": {"nested_size": True},
    "jetspec": {"layout": "jetspec"},
    "transformers": {"layout": "transformers"},
    "speculators": {"layout": "speculators"},
    "speculators, small, from anchor": {
        "layout": "speculators", "small": True, "sample_from_anchor": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCK.values(), ids=BLOCK)
def test_what_a_block_row_sees(tmp_path, case):
    """A token in place of a mask moves its own row and later ones; earlier ones if the block is two-way."""
    block.checkpoint(tmp_path, **case)
    tensors, config = files.read(tmp_path)
    features, embedding, head = target(3)
    whole = block.rows(tensors, config, features, 5, embedding, head)
    skipped = not case.get("sample_from_anchor")
    assert whole.shape == (6 - skipped, files.VOCAB)
    assert len(set(whole.argmax(-1).tolist())) > 2
    masks = block.rows(tensors, config, features, 5, embedding, head, [95])
    assert distance(whole, masks).max() == 0
    other = block.rows(tensors, config, features, 5, embedding, head, [95, 11])
    moved = distance(whole, other) > 1e-5
    assert moved[2 - skipped :].all()
    assert moved[: 2 - skipped].all() == (case.get("layout") != "jetspec")
    features = torch.cat((features[:-1], features[-1:] + 1))
    other = block.rows(tensors, config, features, 5, embedding, head)
    assert distance(whole, other).min() > 1e-4


@pytest.mark.parametrize("layout", MTP)
def test_what_mtp_recycles_moves_the_path_only(tmp_path, layout):
    mtp.checkpoint(tmp_path, layout)
    tensors, config = files.read(tmp_path)
    features, embedding, head = target()
    arguments = (tensors, config, TOKENS, features, DRAFTED, embedding, head)
    moved = distance(mtp.rows(*arguments), mtp.rows(*arguments, recycled="pre")) > 1e-4
    assert moved[len(TOKENS) - 1 :].all()
    assert not moved[: len(TOKENS) - 1].any()
    assert distance(mtp.rows(*arguments), mtp.rows(*arguments, zero_first=True)).min() > 1e-4


@pytest.mark.parametrize("layout", MTP)
def test_the_order_of_an_mtp_projection(tmp_path, layout):
    """With the state's half of the projection at 0 features say nothing."""
    mtp.checkpoint(tmp_path, layout)
    tensors, config = files.read(tmp_path)
    features, embedding, head = target()
    (name,) = [
        name
        for name in tensors
        if name.endswith(("eh_proj.weight", ".fc.weight", "input_proj.weight"))
    ]
    state = slice(None, 32) if layout == "mimo" else slice(32, None)
    tensors[name][:, state] = 0
    both = [
        mtp.rows(tensors, config, TOKENS, f, DRAFTED, embedding, head)
        for f in (features, -features)
    ]
    assert distance(*both).max() < 1e-12
