"""Traces of text sources: every budget's replay equals the live run, and has its exact law."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TorchCoins, decode, load_pair, verify
from treespec.draft import (
    Datastore,
    Documents,
    NoDrafter,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
)
from treespec.draft.text.text_source import proposed
from treespec.experiments.measure import recording
from treespec.experiments.measure.source_recording import record_source
from treespec.plugins import Budget
from treespec.search import InvalidTrace, Trace, estimate_acceptance
from treespec.search.traces.replay import replay, replay_budget
from treespec.target import ModelTarget
from treespec.testing import TabularModel, outcomes, random_table
from treespec.tree.shape import TreeShape

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
GREEDY = Sampling(temperature=0.0)
TEXTS = (
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    ",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    ",
)
HIGHEST = Budget(12, 6, 3)
BUDGETS = (Budget(12, 6, 3), Budget(7, 6, 1), Budget(3, 2, 1), Budget(6, 4, 2))


def limits(budget):
    return {"depth": budget.depth, "size": budget.size, "branching": budget.branching}


def past_of(texts):
    past = SuffixCounts(16)
    for text in texts:
        past.read(text)
        past.end()
    return past


SOURCES = {
    "lookup": lambda b, known: PromptLookup(**limits(b)),
    "documents": lambda b, known: Documents(known.others, **limits(b)),
    "suffix tree": lambda b, known: SuffixTree(**limits(b)),
    "suffix tree, past texts": lambda b, known: SuffixTree(
        **limits(b), window=16, factor=0.5, offset=2.0, past=known.past
    ),
    "suffix automaton": lambda b, known: SuffixAutomaton(b.depth),
    "retrieval": lambda b, known: Retrieval(known.store, **limits(b), shortest=1),
}


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The embedded target, prompts, and other texts for the sources that need them."""
    pair = load_pair("embedded", "none")
    prompts = [pair.tokenizer.encode(text) for text in TEXTS]
    others = []  # the beginnings of what the target says, and other things
    for prompt in prompts:
        steps = live(pair.target, NoDrafter(), prompt, GREEDY, verify.greedy, 24)
        said = [token for step in steps for token in step.tokens]
        others += [prompt[-4:] + said[:16] + prompt[:3], prompt[-2:] + said[2:6] + said[1:9]]
    path = tmp_path_factory.mktemp("store") / "x.datastore"
    store = Datastore.build(path, others, vocab_size=pair.target.vocab_size)
    return SimpleNamespace(
        target=pair.target, prompts=prompts, others=others, past=past_of(others), store=store
    )


def live(target, source, prompt, sampling, rule, tokens, coins=None):
    return list(decode(
        ModelTarget(target), source, rule, torch.tensor(prompt), sampling=sampling,
        coins=coins or TorchCoins(0), max_new_tokens=tokens,
    ))  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_at_temperature_0_replay_is_the_live_run(name, known, tmp_path):
    """In every text the ids are equal, and so are the nodes and the accepted nodes of every step."""
    make = SOURCES[name]
    made = record_source(
        known.target, make(HIGHEST, known), known.prompts, sampling=GREEDY, rule=verify.greedy,
        max_new_tokens=24, beyond=5,
    )  # fmt: skip
    trace = Trace.load(made.save(tmp_path / "x.npz"))
    texts = [text.tolist() for text in np.split(trace.tokens, trace.offsets[1:-1])]
    seen = set()
    for budget in BUDGETS:
        if name == "suffix automaton" and budget.branching > 1:
            continue
        found = replay_budget(trace, budget)
        steps = [
            live(known.target, make(budget, known), prompt, GREEDY, verify.greedy, 24)
            for prompt in known.prompts
        ]
        for of_text, text in zip(steps, texts, strict=True):
            assert [token for step in of_text for token in step.tokens] == text[:24]
        every = [step for of_text in steps for step in of_text]
        assert found.accepted.tolist() == [step.verdict.accepted for step in every]
        assert found.sizes.tolist() == [step.tree.shape.size for step in every]
        assert found.kept.tolist() == [len(step.tokens) for step in every]
        assert np.diff(found.offsets).tolist() == [len(of_text) for of_text in steps]
        assert found.sure.all()
        seen |= {step.tree.shape for step in every if step.verdict.accepted}
    assert any(shape.depth > 2 for shape in seen)
    assert name not in ("lookup", "documents") or any(not shape.is_chain for shape in seen)


@pytest.mark.parametrize("name", SOURCES)
def test_each_position_is_drafted_once_and_what_is_proposed_is_among_it(name, known, monkeypatch):
    source, asked = SOURCES[name](HIGHEST, known), []
    kind = type(source)
    for text in known.others[:2]:
        for end in range(2, len(text), 3):
            source.prefill(torch.tensor(text[:end]))
            tree, found = source.propose(TorchCoins(0)), proposed(source.drafts())
            assert list(tree.shape.parents) == found.parents
            assert list(tree.token_ids[1:]) == found.tokens
    monkeypatch.setattr(kind, "propose", lambda *a: 1 / 0)
    drafts = kind.drafts
    monkeypatch.setattr(kind, "drafts", lambda self: asked.append(1) or drafts(self))
    made = record_source(
        known.target, source, known.prompts, sampling=GREEDY, rule=verify.greedy, max_new_tokens=8,
        beyond=2,
    )  # fmt: skip
    assert len(asked) == made.text_drafts.positions


def table(vocab, seed):
    """A target whose row depends on the last token alone, so that texts repeat."""
    rows = random_table(vocab, seed)
    return TabularModel(lambda context: rows(context[-1:]), vocab)


@pytest.mark.parametrize("rule", ["naive", "onehot"])
@pytest.mark.parametrize("name", ["lookup", "suffix tree"])
def test_every_budget_has_the_exact_law_of_its_live_run(name, rule, monkeypatch):
    """Enumerate all coins of recording: the replayed first step has the law of the live one."""
    target, prompt, chosen = table(3, 4), (0, 1, 0, 2, 0, 1, 0), verify.RULES[rule]
    budgets = [Budget(3, 2, 1), Budget(4, 2, 2), Budget(3, 1, 2)]
    found, right = defaultdict(float), defaultdict(float)

    def play(coins):
        monkeypatch.setattr(recording, "TorchCoins", lambda seed: coins)
        return record_source(
            target, SOURCES[name](Budget(4, 2, 2), None), [prompt], sampling=Sampling(), rule=chosen,
            max_new_tokens=1, beyond=2,
        )  # fmt: skip

    for weight, trace in outcomes(play):
        assert (
            trace.accepted.max() < 1
        )  # what the target says of each child, and not what the coins did
        for budget in budgets:
            step = replay_budget(trace, budget)
            text = trace.tokens[: step.accepted[0] + 1].tolist()
            found[budget, int(step.sizes[0]), tuple(text)] += weight
    for budget in budgets:

        def first(coins, budget=budget):
            source = SOURCES[name](budget, None)
            return live(target, source, prompt, Sampling(), chosen, 1, coins)[0]

        for weight, step in outcomes(first):
            right[budget, step.tree.shape.size, tuple(step.emitted_ids)] += weight
    assert found == pytest.approx(right, abs=1e-12)
    assert any(len(text) == 3 for _, _, text in found)


@pytest.fixture(scope="module")
def trace(known):
    return record_source(
        known.target, PromptLookup(6, size=12, branching=3), known.prompts, sampling=GREEDY,
        rule=verify.greedy, max_new_tokens=24, beyond=5,
    )  # fmt: skip


def test_rates_are_those_of_what_was_drafted_at_every_position(trace, known):
    """Count by hand how far the text follows the source's tree at each position."""
    trials, hits = np.zeros((6, 3)), np.zeros((6, 3))
    for i, prompt in enumerate(known.prompts):
        begin, end = trace.offsets[i : i + 2]
        text, kept = trace.tokens[begin:end].tolist(), int(trace.text_kept[i])
        for start in range(kept):
            source = PromptLookup(6, size=12, branching=3)
            source.prefill(torch.tensor([*prompt, *text[:start]]))
            tree, node = source.propose(TorchCoins(0)), 0
            for depth in range(min(6, kept - start)):
                children = tree.shape.children[node]
                if not children:
                    break
                right = [tree.token_ids[child] == text[start + depth] for child in children]
                trials[depth, : len(children)] += 1
                hits[depth, : len(children)] += right
                if not any(right):
                    break
                node = children[right.index(True)]
    found = estimate_acceptance(trace, by="depth")
    levels = len(found.trials)
    assert found.trials.tolist() == trials[:levels].tolist()
    assert found.hits.tolist() == hits[:levels].tolist()
    assert not trials[levels:].any()
    pooled = estimate_acceptance(trace)
    assert pooled.trials.tolist() == trials.sum(axis=0).tolist()
    assert hits[:, 0].sum() > 20


def test_what_is_recorded_of_the_children_of_the_root(trace, known):
    at = int(np.flatnonzero(trace.probs[:, 1])[0])  # in the first text
    source = PromptLookup(6, size=12, branching=3)
    source.prefill(torch.tensor([*known.prompts[0], *trace.tokens[:at].tolist()]))
    (draft,) = source.drafts()
    shares = zip(draft.continuations.parents[1:], draft.continuations.counts, strict=True)
    first = [count / draft.seen for parent, count in shares if parent == 0]
    assert trace.probs[at].tolist() == pytest.approx(first + [0.0] * (3 - len(first)))
    taken = trace.ranks < 3
    assert (trace.accepted[taken, trace.ranks[taken]] == 1).all()
    assert trace.accepted.sum() == taken.sum()


def test_given_texts_have_rates_and_no_steps(known):
    given = [text[:20] for text in known.others[:2]]
    followed = record_source(
        known.target, PromptLookup(4), known.prompts, sampling=GREEDY, rule=verify.greedy,
        max_new_tokens=16, beyond=4, follow=given,
    )  # fmt: skip
    assert followed.tokens.tolist() == [token for text in given for token in text]
    assert estimate_acceptance(followed).source == "teacher-forced"
    with pytest.raises(InvalidTrace, match="of given texts"):
        replay_budget(followed, Budget(5, 4, 1))


def test_what_cannot_be_replayed_is_refused(trace, known):
    for budget, said in (
        (Budget(8, 7, 1), "depth = 7, but drafts were recorded up to depth 6"),
        (Budget(13, 6, 3), "size = 13"),
        (Budget(12, 6, 4), "branching = 4"),
    ):
        with pytest.raises(InvalidTrace, match=said):
            replay_budget(trace, budget)
    with pytest.raises(
        InvalidTrace, match=r"brings its own continuations.*--growth '\{kind: budget"
    ):
        replay(trace, TreeShape.chain(2))
    with pytest.raises(InvalidTrace, match="of a draft model"):
        replay_budget(replace(trace, text_drafts=None), Budget(3, 2, 1))
    short = record_source(
        known.target, PromptLookup(6), known.prompts, sampling=GREEDY, rule=verify.greedy,
        max_new_tokens=2, beyond=0,
    )  # fmt: skip
    with pytest.raises(InvalidTrace, match="record more beyond"):
        replay_budget(short, Budget(5, 4, 1))


def test_law_and_rule_that_no_record_serves_are_refused(known):
    with pytest.raises(InvalidTrace, match="cannot be traced"):
        record_source(
            known.target, PromptLookup(2), known.prompts, sampling=GREEDY, rule=verify.lenient,
            max_new_tokens=2,
        )  # fmt: skip
    assert Law.DETERMINISTIC in verify.naive.laws
