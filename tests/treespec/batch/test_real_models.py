"""Texts of tiny models of real architectures, decoded together: each is what it is alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from every_source import BEST, BUSHY, COLD, PROCESSORS, drafters
from many_texts import LENGTHS, alone, prompts, require_equal, together
from tiny_models import VOCAB, build, perturbed

from treespec import Law, Sampling, Step, TorchCoins, TreeShape, verify
from treespec.batch import Text, driver
from treespec.draft import ModelDrafter, NoDrafter, PromptLookup
from treespec.features import Features
from treespec.models import attention, routes, runner
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Drafter
from treespec.sampling.processors import Processors
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget

ARCHITECTURES = ("llama", "qwen3", "gpt_neox", "gemma2", "stablelm")
SOURCES = ("model", "early_exit", "layer_skip", "lookup", "documents", "suffix_tree", "suffix_automaton",
           "retrieval", "token_recycling", "lookahead", "jacobi", "medusa", "block", "eagle", "eagle3",
           "cascade", "merge")  # fmt: skip


@cache
def pair(name: str) -> tuple[TransformersModel, TransformersModel]:
    """Target and draft in float64, where no two logits are so near that a joined pass could swap them."""
    target = build(name).double()
    return TransformersModel(target), TransformersModel(perturbed(target, 0.15).double())


def texts(
    name: str,
    drafter: Callable[[int, TransformersModel], Drafter] | None = None,
    sampling: Sampling = COLD,
    rule: Any = verify.greedy,
    new: Callable[[int], int] = lambda i: 4 + 5 * i % 8,
) -> Callable[[int], Text]:
    """Makes text i of eight: unequal prompts, ends and, unless a drafter is given, trees."""
    target, draft = pair(name)
    given = prompts(VOCAB)
    law = BEST if sampling.greedy else Law.WITHOUT_REPLACEMENT
    shapes = (BUSHY, TreeShape.chain(3), BUSHY, TreeShape.expansion([4]))

    def make(i: int) -> Text:
        own = drafter(i, draft) if drafter else ModelDrafter(draft, shapes[i % 4], law, sampling)
        return Text(
            ModelTarget(target), own, rule, given[i], sampling, TorchCoins(i), new(i),
            stop=stop_at_tokens(range(4)),
        )  # fmt: skip

    return make


def test_all_sources_are_here(tmp_path: Path) -> None:
    assert tuple(drafters(*pair("llama"), [1, 2, 3], tmp_path)) == SOURCES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_of_every_source_are_what_they_are_alone(name: str, tmp_path: Path) -> None:
    """Each source once or twice, prompts of 1 to 120 tokens, ends at different steps, eight at a time."""
    target, draft = pair(name)
    assert isinstance(target.finding.route, routes.OwnMask) == (name == "stablelm")
    given = prompts(VOCAB, LENGTHS * 3)[: len(SOURCES) * 2 - 3]

    def make(i: int) -> Text:
        parts = drafters(target, draft, given[0].tolist() * 2, tmp_path)
        return Text(
            ModelTarget(target), parts[SOURCES[i % len(SOURCES)]], verify.greedy, given[i], COLD,
            TorchCoins(i), max_new_tokens=5 + 7 * i % 12, stop=stop_at_tokens(range(6)),
        )  # fmt: skip

    told = require_equal(make, len(given), places=8)
    assert len({len(one.tokens) for one in told}) > 3
    assert sum(sum(one.accepted) for one in told) > 20


@pytest.mark.parametrize("places", [1, 3, None])
def test_texts_that_follow_others_are_what_they_are_alone(places: int | None) -> None:
    require_equal(texts("qwen3"), 8, places)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sampled_texts_are_those_of_their_own_coins(name: str) -> None:
    warm = Sampling(0.9)
    told = require_equal(texts(name, sampling=warm, rule=verify.rrsw), 8, 5)
    assert sum(sum(one.accepted) for one in told) > 8


def test_processors_see_the_text_that_they_belong_to() -> None:
    cold = Sampling(0.0, processors=Processors(**PROCESSORS).ending({1, 5}, 16))
    found = require_equal(texts("llama", sampling=cold, new=lambda i: 16), 6)
    plain = together([texts("llama", new=lambda i: 16)(i) for i in range(6)])
    assert all(a.tokens != b.tokens for a, b in zip(found, plain, strict=True))


class Reads(PromptLookup):
    """Notes the features that it is lent, and drafts from them."""

    reads = Features((0, 1), "post")

    def __init__(self) -> None:
        super().__init__(3, size=8, branching=3)
        self.heard: list[torch.Tensor] = []

    def prefill(self, tokens: torch.Tensor, features: Any = None) -> None:
        self.heard = [features.clone()]
        super().prefill(tokens)

    def commit(self, step: Step) -> None:
        assert step.features is not None
        self.heard.append(step.features.clone())
        super().commit(step)


@pytest.mark.parametrize("name", ["llama", "stablelm"])
def test_features_are_those_of_a_texts_own_nodes(name: str) -> None:
    """Beside others that read nothing, whose passes are run without features."""
    made: dict[int, list[Reads]] = {}

    def drafter(i: int, draft: TransformersModel) -> Drafter:
        if i % 3 == 2:
            return NoDrafter()
        made.setdefault(i, []).append(Reads())
        return made[i][-1]

    require_equal(texts(name, drafter), 8)
    assert len(made) == 6
    for mine, own in made.values():
        for found, expected in zip(mine.heard, own.heard, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def opened(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    """The masks of texts in one, in which nodes attend to all rows of the texts before theirs too."""
    whole = torch.block_diag(*(mask.exp() for mask in masks))
    row = key = 0
    for mask in masks:
        whole[row : row + mask.shape[0], :key] = 1
        row, key = row + mask.shape[0], key + mask.shape[1]
    return whole.log()[None, None]


def see_neighbours(patch: pytest.MonkeyPatch) -> None:
    """In our attention, over the keys of all texts."""
    split = attention.TreeAttention.__call__

    def attend(
        self: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any
    ) -> Any:
        if len(self.passes) == 1:
            return split(self, module, query, key, value, mask, **options)
        masks = [torch.zeros(one.row_count, one.key_count).double() for one in self.passes]
        for found, one in zip(masks, self.passes, strict=True):
            bias = one.bias(None, query.dtype, query.device)
            found += 0 if bias is None else bias
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=opened(masks), scale=options["scale"], enable_gqa=True
        )

    patch.setattr(attention.TreeAttention, "__call__", attend)


def unmask_neighbours(patch: pytest.MonkeyPatch) -> None:
    """In the mask for the model's own attention."""
    trees = routes.OwnMask.trees

    def open_mask(self: Any, passes: Any) -> dict[str, Any]:
        masks = [trees(self, [one])["attention_mask"][0, 0] for one in passes]
        found = opened(masks).clamp(min=torch.finfo(self.dtype).min)
        return {"attention_mask": found}

    patch.setattr(routes.OwnMask, "trees", open_mask)


def swap_results(patch: pytest.MonkeyPatch) -> None:
    """The first two of a pass get each other's scores, which only trees of one size hide from shapes."""
    run = runner.TreeRunner.run_together

    def swapped(self: Any, parts: Any) -> Any:
        found = run(self, parts)
        if len(found) > 1 and found[0].logits.shape == found[1].logits.shape:
            found[:2] = found[1::-1]
        return found

    patch.setattr(runner.TreeRunner, "run_together", swapped)


def swap_caches(patch: pytest.MonkeyPatch) -> None:
    joined = runner.joined

    def swapped(caches: Any) -> Any:
        if len(caches) > 1 and caches[0].end - caches[0].start == caches[1].end - caches[1].start:
            caches = [caches[1], caches[0], *caches[2:]]
        return joined(caches)

    patch.setattr(runner, "joined", swapped)


MUTANTS = [
    ("llama", see_neighbours),
    ("stablelm", unmask_neighbours),
    ("llama", swap_results),
    ("stablelm", swap_results),
    ("llama", swap_caches),
]


@pytest.mark.parametrize(("name", "plant"), MUTANTS)
def test_faults_are_found(name: str, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pair(name)  # is probed before it is broken
    make = texts(name, new=lambda i: 8)
    require_equal(make, 4)
    plant(monkeypatch)
    require_equal(make, 1)  # alone, nothing is wrong
    with pytest.raises(AssertionError):
        require_equal(make, 4)


def test_shared_coins_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the door let them in."""
    monkeypatch.setattr(driver, "_require_own", lambda texts, what: None)
    make = texts("llama", sampling=Sampling(0.9), rule=verify.rrsw)
    shared = TorchCoins(0)
    mixed = together([replace(make(i), coins=shared) for i in range(4)])
    own = [alone(replace(make(i), coins=TorchCoins(0))) for i in range(4)]
    assert all(a.tokens != b.tokens for a, b in zip(mixed, own, strict=True))
