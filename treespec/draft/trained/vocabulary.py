"""The vocabulary of a head that has rows for some of the target's tokens only."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.trained.checkpoint import Checkpoint
from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import LoadError

OF_TARGET = "head_of_target"
"""The key of config.json by which a head says that its logits are made by rows of the target's head.

It is ours: a head that is stored without these rows is a fraction of the size. Engines need them, so
`treespec draft export` writes them.
"""

ROWS = "lm_head.weight"
"""The tensor of these rows."""


def without_rows(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The files of a head whose rows are the target's, without them."""
    others = {name: tensor for name, tensor in tensors.items() if name != ROWS}
    return {**config, OF_TARGET: True}, others


def shared_rows(parts: TargetParts, kept: Int[Tensor, " v"] | None) -> Float[Tensor, "v H"]:
    """The rows of the target's head for a head's tokens."""
    weight: Any = parts.head.weight
    rows = weight[: parts.logits] if kept is None else weight[kept.to(weight.device)]
    return rows.detach()


def kept_tokens(checkpoint: Checkpoint, vocab_size: int) -> tuple[Int[Tensor, " v"] | None, int]:
    """The target's ids of a head's tokens, and their number.

    `d2t` holds *offsets*: token i of the head is token i + d2t[i] of the target. `t2d`, which says which of
    the target's tokens are among them, must agree.

    Args:
        checkpoint: the head; `draft_vocab_size` of its config.json is v.
        vocab_size: V, the width of the target's logits, over which the head's rows are spread. The target's
            embedding may have other rows: it reads tokens, and its padding is no part of the logits.

    Returns:
        None and V if the head has all tokens.

    Raises:
        LoadError: if the tables contradict each other, or name tokens that the target does not have.
    """
    rows = checkpoint.setting("draft_vocab_size", int, vocab_size)
    offsets = checkpoint.maybe("d2t", (rows,), "integers")
    present = checkpoint.maybe("t2d", (vocab_size,), "flags")
    if offsets is None:
        if rows != vocab_size:
            raise LoadError(
                f"{checkpoint.name!r} has rows for {rows:,} of {vocab_size:,} tokens, but no tensor 'd2t' "
                "that says for which"
            )
        return None, vocab_size
    kept = torch.arange(rows) + offsets.long()
    if rows and (int(kept.min()) < 0 or int(kept.max()) >= vocab_size):
        raise LoadError(
            f"'d2t' of {checkpoint.name!r} leads to tokens {int(kept.min())} to {int(kept.max())}, but the "
            f"target has {vocab_size:,}: it holds offsets, token i of the head being i + d2t[i]"
        )
    named = torch.zeros(vocab_size, dtype=torch.bool)
    named[kept] = True
    if int(named.sum()) != rows:
        raise LoadError(f"'d2t' of {checkpoint.name!r} leads to the same token twice")
    if present is not None and not torch.equal(present.bool(), named):
        raise LoadError(f"'d2t' and 't2d' of {checkpoint.name!r} name different tokens")
    return (
        (None, vocab_size)
        if rows == vocab_size and torch.equal(kept, torch.arange(rows))
        else (kept, rows)
    )


def tables_of(kept: Int[Tensor, " v"], vocab_size: int) -> dict[str, Tensor]:
    """The tensors `d2t` and `t2d` of a head with these tokens of the target."""
    present = torch.zeros(vocab_size, dtype=torch.bool, device=kept.device)
    return {
        "d2t": kept - torch.arange(len(kept), device=kept.device),
        "t2d": present.index_fill(0, kept, True),
    }
