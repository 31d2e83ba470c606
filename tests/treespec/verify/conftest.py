"""Fixtures for several files: random drafted trees, and the outcome of a verifier on them."""

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import TreespecError


@pytest.fixture
def random_tree():
    return _random_tree


@pytest.fixture
def outcome():
    return _outcome


def _random_tree(rule, generator, vocab, size, device="cpu"):
    """A tree drafted by laws that the rule covers, and target logits that resemble the draft's."""

    def below(n):
        return int(torch.randint(n, (), generator=generator))

    parents, most = [-1], 2 if rule.laws == {Law.HUB} else size
    for node in range(1, size):
        free = [parent for parent in range(node) if parents.count(parent) < most]
        parents.append(node - 1 if rule is verify.chain else free[below(len(free))])
    shape = TreeShape(tuple(parents))
    usual = rule.laws & {Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC}
    covered = sorted(usual or rule.laws, key=str)
    laws = [covered[below(len(covered))] for _ in range(size)]
    logits = 2 * torch.randn(size, vocab, generator=generator)
    noise = torch.randn(len(shape.internal), vocab, generator=generator)
    draft = Sampling(top_k=max(2, vocab // 2))(logits[list(shape.internal)] + noise)
    tokens, coins = torch.zeros(size, dtype=torch.int64), TorchCoins(generator)
    for row, node in enumerate(shape.internal):
        children = list(shape.children[node])
        tokens[children] = coins.draw_many(draft[row : row + 1], len(children), laws[node])[0]
    tree = TokenTree(shape, tokens.to(device), draft.to(device), laws)
    return tree, logits.to(device)


def _outcome(verifier, tree, rows, coins):
    """The verdict and the next uniform of the stream, or the error's type and message."""
    try:
        return verifier(tree, rows, coins), coins.peek(1)
    except (TreespecError, IndexError) as error:
        return type(error), str(error)
