"""Is the target's best next token the first of the drafter's row, at the nodes that a step accepts?

A node is *on the spine* if every accepted token down to it was the first of its parent's row; the root is.
Otherwise it comes *after a sibling*. Whether the next token is right less often there decides between trees
and chains: a drafter with one row for each depth (`treespec.draft.best_next`) does not know which sibling
was accepted. But texts may also be harder there, so a *fresh* draft can be rooted at the same nodes: at
each token of the text the same drafter drafts, nothing of it is accepted, and the text's own token is
committed. For drafters whose rows depend on the text alone, as those of autoregressive models, fresh rows
are the rows of the tree.

Each kept token of a text follows exactly one accepted node, so a step has a mark for each token it keeps.
"""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from treespec.decoding import decode
from treespec.draft import best_next
from treespec.experiments.records.outcome import StepOutcome
from treespec.protocols import Coins, Drafter, Rows, Target
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.step import Step, Verdict
from treespec.tree import TokenTree

RIGHT, WRONG, NO_ROW = "1", "0", "-"


class NextRight(NamedTuple):
    """A step's marks.

    Args:
        spine: accepted tokens before the first that was not the first of its parent's row.
        right: for each kept token, from the node before it: `1` if the target's best token was the first of
            the drafter's row, `0` if not, `-` if the drafter has no row at that node.
    """

    spine: int
    right: str


def next_right(drafter: Drafter, step: Step) -> NextRight:
    """The marks of a drafter's latest step, of which the target's rows are still known."""
    path, ids, rows = step.verdict.path, step.tree.token_ids, step.rows
    assert rows is not None
    first = best_next(drafter, step.tree, path)
    followed = zip(path[1:], first, strict=False)
    spine = sum(1 for _ in takewhile(lambda pair: ids[pair[0]] == pair[1], followed))
    nodes = zip(path[: len(step.tokens)], first, strict=False)
    return NextRight(spine, "".join(_mark(token, rows, node) for node, token in nodes))


def _mark(first: int | None, rows: Rows, node: int) -> str:
    if first is None:
        return NO_ROW
    return RIGHT if int(rows[node].argmax()) == first else WRONG


def fresh_right(
    target: Target,
    drafter: Drafter,
    sampling: Sampling,
    prompt: Int[Tensor, "T"],
    steps: Sequence[StepOutcome],
) -> list[str]:
    """For each step of a decoded text, what `right` is if a draft is rooted at each of its nodes.

    The text is decoded again by a rule that accepts nothing and takes the text's own token as the bonus. So
    a drafter that learns from the target's passes has learned from those of this text.

    Args:
        target: the target.
        drafter: a new drafter of the same method.
        sampling: as when the text was decoded.
        prompt: the prompt.
        steps: the steps of the text.
    """
    text = [token for step in steps for token in step.text]
    following = iter(text)

    def follow(tree: TokenTree, rows: Rows, coins: Coins) -> Verdict:
        return Verdict((0,), next(following))

    again = decode(
        target, drafter, follow, prompt, sampling=sampling, coins=TorchCoins(0),
        max_new_tokens=len(text),
    )  # fmt: skip
    marks = iter("".join(next_right(drafter, step).right for step in again))
    return ["".join(islice(marks, step.kept)) for step in steps]
