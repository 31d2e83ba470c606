"""One drafter of each source, over a target and a draft of any kind."""

from pathlib import Path
from typing import Any

import torch
from head_formats import fitted_head
from marginal_heads import random_block, random_medusa

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import (
    BlockDraft,
    Cascade,
    Datastore,
    Documents,
    Eagle,
    Eagle3,
    EarlyExit,
    Jacobi,
    LayerSkip,
    Lookahead,
    Medusa,
    Merge,
    ModelDrafter,
    Mtp,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixTree,
    TokenRecycling,
)
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Drafter

__all__ = ["BEST", "BUSHY", "COLD", "PROCESSORS", "drafters"]

COLD = Sampling(temperature=0.0)
BUSHY, BEST = TreeShape.expansion([3, 2, 1]), Law.DETERMINISTIC
PROCESSORS: dict[str, Any] = {
    "repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": 0.3, "no_repeat_ngram_size": 2,
    "min_length": 36, "min_new_tokens": 10, "suppress_tokens": tuple(range(6, 40)),
    "begin_suppress_tokens": tuple(range(40, 60)), "bad_words_ids": ((41,), (42, 43)),
    "sequence_bias": (((44,), 2.0), ((45, 46), -3.0)), "forced_eos_token_id": 5,
    "exponential_decay_length_penalty": (10, 1.1),
    "custom": (lambda ids, scores: scores + (torch.arange(scores.shape[1]) % 2 == ids.shape[1] % 2),),
}  # fmt: skip


def drafters(
    target: TransformersModel,
    draft: TransformersModel,
    ids: list[int],
    folder: Path,
    cold: Sampling = COLD,
) -> dict[str, Drafter]:
    """One drafter of each source, by its name in configs; documents and datastore hold `ids`."""
    vocab, layers = target.vocab_size, target.layer_count
    tree = {"size": 16, "branching": 3}
    store = Datastore.build(folder / "store", [ids], vocab_size=vocab)
    lookup = PromptLookup(3, **tree)
    parts = {
        "table": TokenRecycling(),
        "layers": EarlyExit(target, 1, TreeShape.chain(3), BEST, cold),
        "lookup": PromptLookup(6, **tree),
    }
    return {
        "model": ModelDrafter(draft, BUSHY, BEST, cold),
        "early_exit": EarlyExit(target, 1, BUSHY, BEST, cold),
        "layer_skip": LayerSkip(target, [f"mlp.{layers - 1}"], BUSHY, BEST, cold),
        "lookup": PromptLookup(6, **tree),
        "documents": Documents([ids], 6, vocab_size=vocab, **tree),
        "suffix_tree": SuffixTree(6, **tree),
        "suffix_automaton": SuffixAutomaton(6),
        "retrieval": Retrieval(store, 6, **tree),
        "token_recycling": TokenRecycling(),
        "lookahead": Lookahead(),
        "jacobi": Jacobi(6),
        "medusa": Medusa(random_medusa(target, ids), BUSHY, BEST, cold),
        "block": BlockDraft(random_block(target, ids), BUSHY, BEST, cold),
        "eagle": Eagle(fitted_head(target, ids, Features(final="post")), BUSHY, BEST, cold),
        "eagle3": Eagle3(fitted_head(target, ids, Features((1, layers))), BUSHY, BEST, cold),
        "mtp": Mtp(fitted_head(target, ids, Features(final="post")), BUSHY, BEST, cold),
        "cascade": Cascade(draft, lookup, verify.onehot, 6, cold),
        "merge": Merge(parts, 24, rates=dict.fromkeys(parts, ((0.8, 0.3, 0.1),))),
    }
