"""Marginal heads: their rows are those of a straight line, whatever was drafted or batched before."""

import pytest
import torch
from fresh_drafts import BUSHY, TEXT, require_of_text_alone
from marginal_heads import FORMATS, states_of, target

from treespec import Law, Sampling
from treespec.draft import BlockDraft, Medusa
from treespec.draft.trained.block_files import save_block
from treespec.draft.trained.medusa import save_medusa
from treespec.errors import InvalidArgument
from treespec.features import Features

WARM = Sampling()


def finite(rows):
    """The rows with one number for tokens that a head lacks."""
    rows = rows.double()
    return torch.where(rows < -1e29, -1e30, rows)


def projected(head, states):
    """The features in the order in which a block head projects them."""
    rules = getattr(head, "rules", None)
    return states if rules is None else states[:, list(rules.order)]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("path", [[], [12, 90]], ids=["spine", "below a path"])
def test_rows_are_those_of_a_straight_line(name, path, tmp_path):
    form, model = FORMATS[name], target(dtype=torch.float64)
    head = form.read(tmp_path, model)
    drafter = form.drafter(head, BUSHY, Law.IID, WARM)
    states = states_of(model, drafter.reads, TEXT[:-1])
    drafter.prefill(torch.tensor(TEXT), states)
    with drafter._below(path):
        rows = drafter.rows_after(path, drafter.depth)
    right = form.rows(tmp_path, model, projected(head, states), TEXT[-1], path)
    torch.testing.assert_close(finite(rows), finite(right), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_a_head_that_was_written_is_the_same_to_the_last_bit(name, tmp_path):
    form, model = FORMATS[name], target()
    head = form.read(tmp_path / "read", model)
    save = save_medusa if form.drafter is Medusa else save_block
    if form.drafter is BlockDraft and {0, 4} & set(head.contract.reads.states):
        with pytest.raises(InvalidArgument, match="DFlash's ids mean outputs of layers"):
            save(head, tmp_path / "written")
        return
    save(head, tmp_path / "written")
    again = form.load(str(tmp_path / "written"), model)
    assert (again.contract.reads, again.contract.head) == (head.contract.reads, head.contract.head)
    states, rows = states_of(model, head.contract.reads, TEXT[:-1]), []
    for one in (head, again):
        drafter = form.drafter(one, BUSHY, Law.IID, WARM)
        drafter.prefill(torch.tensor(TEXT), states)
        rows.append(drafter.rows_after([], drafter.depth))
    assert torch.equal(*rows)


@pytest.mark.parametrize("name", ["dflash", "jetspec"])
def test_what_stands_behind_a_text_is_never_read(name, tmp_path):
    """So nothing has to clear the rows of a block: the next rows are written over them."""
    head = FORMATS[name].read(tmp_path, target())
    states = states_of(target(), head.contract.reads, TEXT[:-1])
    clean, poisoned = head.new_text(), head.new_text()
    for part in (states[:0], states[:3], states[3:]):
        with torch.inference_mode():
            poisoned._rows[..., poisoned.length :, :] = torch.nan
            head.read(poisoned, part)
            poisoned._rows[..., poisoned.length :, :] = torch.nan
        head.read(clean, part)
        for path in ([], [12, 90], []):
            rows = [head(text, TEXT[-1], path, head.depth) for text in (clean, poisoned)]
            assert torch.equal(*rows)


AUTHORS = {
    "medusa": (4,), "dflash": (1, 2, 3), "dflash, last layer first": (4, 1), "jetspec": (1, 2, 3),
    "transformers": (1, 2, 3), "dflash, default ids": (3,), "speculators": (1, 3),
}  # fmt: skip
"""By format, the indices among transformers' `hidden_states` (the last is after the norm) that are read."""


@pytest.mark.parametrize("name", AUTHORS)
def test_states_are_those_that_the_authors_read(name, tmp_path):
    """Not merely those that the drafter says it reads."""
    form, model = FORMATS[name], target(dtype=torch.float64)
    drafter = form.drafter(form.read(tmp_path, model), BUSHY, Law.IID, WARM)
    with model.as_transformers() as plain, torch.no_grad():
        hidden = plain(torch.tensor([TEXT[:-1]]), output_hidden_states=True).hidden_states
    drafter.prefill(torch.tensor(TEXT), states_of(model, drafter.reads, TEXT[:-1]))
    states = torch.stack([hidden[i][0] for i in AUTHORS[name]], dim=1)
    right = form.rows(tmp_path, model, states, TEXT[-1], [])
    rows = drafter.rows_after((), drafter.depth)
    torch.testing.assert_close(finite(rows), finite(right), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(8,), (2,), (1,), (8, 1, 5)])
@pytest.mark.parametrize(
    "name", ["medusa", "dflash", "dflash, last layer first", "jetspec", "speculators, small"]
)
def test_a_draft_depends_on_the_text_alone(name, lengths, tmp_path):
    """After each of 40 steps, what it proposes is what a fresh drafter proposes on the whole text."""
    head = FORMATS[name].read(tmp_path)
    require_of_text_alone(
        lambda shape: FORMATS[name].drafter(head, shape, Law.IID, WARM), target(), lengths
    )


def test_the_contract_says_what_is_read(tmp_path):
    reads = {}
    for i, name in enumerate(FORMATS):
        reads[name] = str(FORMATS[name].read(tmp_path / str(i)).contract)
    assert reads["medusa, numbers missing"].endswith("own head; 4 heads of 2 residual blocks")
    assert reads["medusa, legacy"].startswith("medusa: reads the state after the final norm; ")
    assert "target's head" in reads["medusa, legacy"]
    assert reads["dflash, last layer first"] == (
        "block: reads boundary 1, the state after the final norm; order [final, boundary 1]; norm gain w; "
        "all tokens; target's head; target's embedding; blocks of 6, two-way, mask 95; "
        "a row predicts its own place"
    )
    assert "blocks of 6, causal, mask 95" in reads["jetspec"]
    assert "rows for 40 tokens; own head" in reads["speculators, small"]
    assert "a row predicts the next token" in reads["speculators, from the anchor"]
    assert "reads boundaries 2, 4;" in reads["speculators, boundary before the norm"]
    assert FORMATS["dflash, default ids"].read(tmp_path / "x").contract.reads == Features((3,))
