"""The exact law of a text among others is its law alone: every branch is walked beside texts that play.

The texts beside a branch play with one of five seeds, which take turns from branch to branch. So a law that
depends on them differs from the text's own, and `EnumeratingCoins` refuses a choice whose weights differ in
the next branch, beside other texts.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from proof_table import CASES, PROMPTS, TEXTS, Case, Stored, lossless_rules

from treespec import Law, Sampling, Step, TorchCoins, TreeShape, verify
from treespec.batch import Failed, Text, decode_many
from treespec.draft import ModelDrafter
from treespec.errors import TreespecError
from treespec.target import ModelTarget
from treespec.testing import TabularModel, laws, output_law, target_law
from treespec.verify import Rule

SEEDS = range(5)
NEIGHBOURS = (TreeShape.chain(2), TreeShape.expansion([2]), TreeShape.from_parents([-1, 0, 0, 1]))
"""Trees of the texts beside; the first and the last have the sizes of trees that are proved."""


def neighbours(seed: int, like: Text, count: int = 2) -> list[Text]:
    """Texts on the same weights, of other lengths and trees, which end at other steps."""
    model = like.target.model
    made = []
    for i in range(count):
        prompt = torch.cat([like.prompt[:1].repeat(i), like.prompt[i:]])[
            : len(like.prompt) - seed % 2
        ]
        shape = NEIGHBOURS[(seed // 3 + i) % len(NEIGHBOURS)]
        made.append(
            Text(
                ModelTarget(model), ModelDrafter(model, shape, Law.IID, Sampling()), verify.rrs, prompt,
                Sampling(), TorchCoins(10 * seed + i), max_new_tokens=1 + (seed + 2 * i) % 4,
            )
        )  # fmt: skip
    return made


def among(count: int = 2) -> Any:
    """A `decode` that decodes a text beside others, the first in the order of passes or the last."""
    turns = cycle(SEEDS)

    def decoded(
        target: Any, drafter: Any, verifier: Any, prompt: Any, **settings: Any
    ) -> Iterator[Step]:
        seed = next(turns)
        text = Text(target, drafter, verifier, prompt, **settings)
        place = seed % (count + 1)
        texts = neighbours(seed, text, count)
        texts.insert(place, text)
        for i, step in decode_many(texts):
            if isinstance(step, Failed):
                raise step.error
            if i == place:
                yield step

    return decoded


def law(case: Case, rule: Rule, stored: Stored, tokens: int) -> tuple[Any, Any]:
    """The law of a case's text beside others, and the target's own."""
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    target, prompt = case.target, PROMPTS[case.vocab]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laws, "decode", among())
        found = output_law(
            rule, TreeShape.chain(2), case.law, target=target, draft=target, tokens=tokens, prompt=prompt,
            sampling=sampling, draft_with=lambda *_: case.make(stored),
        )  # fmt: skip
    return found.probs, target_law(target, prompt, tokens, sampling)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Stored]:
    folder = tmp_path_factory.mktemp("stores")
    return {vocab: Stored.write(folder / str(vocab), vocab) for vocab in TEXTS}


def _proofs() -> Iterator[Any]:
    """The whole table. The fast gate runs one case of each source and rule, over fewer tokens."""
    sources: set[str] = set()
    rules: set[Rule] = set()
    for case in CASES:
        for rule in case.rules:
            quick = rule not in rules or (case.source not in sources and not rule.one_hot)
            if quick:
                sources.add(case.source)
                rules.add(rule)
                yield pytest.param(case, rule, 2, id=f"{case}-{rule}-quick")
            yield pytest.param(case, rule, 3, id=f"{case}-{rule}", marks=pytest.mark.slow)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("case", "rule", "tokens"), list(_proofs()))
def test_a_text_among_others_keeps_its_law(
    case: Case, rule: Rule, tokens: int, stores: dict[int, Stored]
) -> None:
    found, right = law(case, rule, stores[case.vocab], tokens)
    assert float((found - right).abs().max()) <= 1e-12


def test_every_source_and_rule_is_among_the_fast_proofs() -> None:
    quick = [one.values for one in _proofs() if not one.marks]
    assert {case.source for case, *_ in quick} == {case.source for case in CASES}
    assert {rule for _, rule, *_ in quick} == set(lossless_rules())


def swapped(self: TabularModel, parts: Any) -> Any:
    """A pass that gives the first text the scores of another whose tree has the same size."""
    found = [table._scores(nodes) for table, nodes in parts]
    sizes = [len(scores.logits) for scores in found]
    if sizes[0] in sizes[1:]:
        other = sizes.index(sizes[0], 1)
        found[0], found[other] = found[other], found[0]
    return found


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("label", ["iid chain", "iid tree"])
def test_swapped_trees_are_found(
    label: str, stores: dict[int, Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = (one for one in CASES if str(one) == f"model-{label}")
    rule = next(one for one in case.rules if not one.one_hot)
    monkeypatch.setattr(TabularModel, "run_together", swapped)
    with pytest.raises((AssertionError, TreespecError)):
        test_a_text_among_others_keeps_its_law(case, rule, 2, stores)
