"""What drafters read of the target, and that they get it, token by token."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import Cascade, EarlyExit, Merge, ModelDrafter, NoDrafter, PromptLookup
from treespec.errors import InvalidArgument, UnsupportedModel
from treespec.experiments.lossless.check_passes import RememberingModel
from treespec.features import Features, lend, reads_of
from treespec.models.tabular import LAYERS, TabularModel, random_table
from treespec.protocols import ReadsTarget
from treespec.sampling.processing.processed_model import ProcessedModel
from treespec.sampling.processors import Processors
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.testing import assert_lossless
from treespec.tree import TokenTree

PROMPT = (0, 1, 2, 0, 1)
READS = Features((3, 0), "post")
IID, SURE = Law.IID, Law.DETERMINISTIC
COLD, WARM = Sampling(temperature=0.0), Sampling()


class TestFeatures:
    @pytest.mark.usefixtures("without_shape_checks")
    def test_the_final_state_is_the_last_feature(self):
        assert READS.states == (3, 0, "post")
        assert Features().states == ()
        assert Features(cache=2).states == ()
        assert Features([1, 2]).boundaries == (1, 2)  # pyrefly: ignore[bad-argument-type]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"boundaries": (1, -1)},
                r"boundaries\[1\] = -1, but must be an integer of at least 0",
            ),
            ({"boundaries": (1, True)}, r"boundaries\[1\] = True is not an integer"),
            ({"boundaries": (1.0,)}, r"boundaries\[0\] = 1\.0 is not an integer"),
            ({"boundaries": (2, 5, 2)}, "has 2 twice"),
            ({"boundaries": 3}, "boundaries = 3, but must be a sequence"),
            ({"final": "pre"}, "final = 'pre', but must be 'post'"),
            ({"cache": -1}, "cache = -1"),
        ],
    )
    @pytest.mark.usefixtures("without_shape_checks")
    def test_what_cannot_be_read_is_refused(self, arguments, message):
        with pytest.raises(InvalidArgument, match=message):
            Features(**arguments)

    def test_the_union_keeps_the_order_of_the_first(self):
        both = READS | Features((1, 3, 2), None, cache=4)
        assert both == Features((3, 0, 1, 2), "post", cache=4)
        assert Features() | READS == READS == READS | Features()

    def test_a_part_gets_its_own_features_in_its_own_order(self):
        both = READS | Features((1, 3))
        features = torch.arange(4.0)[None, :, None].expand(2, 4, 5)
        own = both.part(features, Features((1, 3)))
        assert own is not None
        assert own[0, :, 0].tolist() == [2, 0]
        assert both.part(features, Features(cache=1)) is None
        assert both.part(features, both) is features
        with pytest.raises(InvalidArgument, match=r"reads features \(1, 3\).*was given none"):
            both.part(None, Features((1, 3)))

    @pytest.mark.usefixtures("without_shape_checks")
    def test_reads_is_features_or_absent(self):
        assert reads_of(NoDrafter()) == Features()
        drafter = NoDrafter()
        drafter.reads = (1, 2)
        with pytest.raises(InvalidArgument, match=r"`reads` of NoDrafter = .* must be a Features"):
            reads_of(drafter)


def table(seed):
    return TabularModel(random_table(3, seed), 3)


class Reader(ModelDrafter):
    """Drafts with a model, and remembers the features of the text that it was given."""

    reads = READS

    def prefill(self, tokens, features):
        super().prefill(tokens)
        self.text, self.seen = tokens.tolist(), [features.clone()]
        assert len(features) == len(tokens) - 1

    def commit(self, step):
        super().commit(step)
        assert len(step.features) == len(step.emitted_ids)
        self.text += step.emitted_ids
        self.seen.append(step.features)


class Boundaries(Reader):
    """Reads others, of which it shares one."""

    reads = Features((1, 3))


class ByItself(Boundaries):
    """A merge takes its tree as it was proposed."""

    draws_where_told = False


def played(drafter, rule, sampling, target=None, prompt=PROMPT, seed=0):
    target = target or ModelTarget(table(3))
    return list(decode(
        target, drafter, rule, torch.tensor(prompt), sampling=sampling, coins=TorchCoins(seed),
        max_new_tokens=40,
    ))  # fmt: skip


def require_seen(reader, model=None):
    """The reader has seen what the model computes when it is run on the text alone."""
    model = (model or table(3)).fresh()
    model.lend(reader.reads)
    expected = model.prefill(torch.tensor(reader.text[:-1]))
    assert len(reader.text) > len(PROMPT)
    torch.testing.assert_close(torch.cat(reader.seen), expected, rtol=0, atol=0)


class TestATable:
    def test_the_final_state_is_the_row_and_every_boundary_differs(self):
        model = table(3)
        lend(model, Features(tuple(range(LAYERS + 1)), "post"))
        prompt = model.prefill(torch.tensor(PROMPT))
        scores = model.run(torch.tensor([2, 1, 0]), (-1, 0, 0))
        assert prompt.shape == (5, LAYERS + 2, 3)
        assert torch.equal(scores.features[:, -1], scores.logits)
        assert torch.equal(scores.features[:, LAYERS], scores.logits / 2)
        assert torch.equal(scores.features[:, 0], scores.logits / 2 ** (LAYERS + 1))
        model.keep([0, 2])
        after = model.run(torch.tensor([1]), (-1,))
        assert torch.equal(after.logits[0], model.row((*PROMPT, 2, 0, 1)))
        assert model.fresh().run(torch.tensor([1]), (-1,)).features is None

    def test_an_empty_prompt_has_no_features_but_their_shape(self):
        model = table(3)
        assert model.prefill(torch.tensor([], dtype=torch.long)) is None
        model.lend(READS)
        assert model.prefill(torch.tensor([], dtype=torch.long)).shape == (0, 3, 3)


@pytest.mark.parametrize("shape", [TreeShape.expansion([2, 2, 1]), TreeShape.chain(3)])
@pytest.mark.parametrize(
    ("law", "rule", "sampling"), [(IID, verify.rrs, WARM), (SURE, verify.greedy, COLD)]
)
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]])
def test_a_drafter_sees_the_features_of_every_token_of_the_text(shape, law, rule, sampling, prompt):
    reader = Reader(table(4), shape, law, sampling)
    steps = played(reader, rule, sampling, prompt=prompt)
    require_seen(reader)
    assert reader.text == [*prompt, *(token for step in steps for token in step.emitted_ids)]
    assert any(
        step.verdict.path not in ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)) for step in steps
    ) or (shape.is_chain or law is SURE)
    for step in steps:
        assert step.scores.features.shape == (step.tree.shape.size, 3, 3)


def test_a_drafter_that_reads_nothing_is_called_as_ever():
    target = ModelTarget(table(3))
    played(Reader(table(4), TreeShape.chain(2), IID, WARM), verify.rrs, WARM, target)
    steps = played(ModelDrafter(table(4), TreeShape.chain(2), IID, WARM), verify.rrs, WARM, target)
    assert all(step.scores.features is None and step.features is None for step in steps)


@pytest.mark.parametrize("second", [Boundaries, ByItself])
@pytest.mark.parametrize("law", [IID, SURE])
@pytest.mark.parametrize("shared", [True, False])
def test_the_sources_of_a_merge_get_their_own_features(second, law, shared):
    sampling, rule = (WARM, verify.rrs) if law is IID else (COLD, verify.greedy)
    shape = TreeShape.expansion([2, 1])
    sources = {
        "one": Reader(table(4), shape, law, sampling),
        "two": second(table(5), shape, law, sampling),
        "lookup": PromptLookup(2),
    }
    how = (
        {"size": 6, "rates": dict.fromkeys(sources, ((0.6, 0.3), (0.5, 0.2)))}
        if shared
        else {"budgets": {"one": 4, "two": 3, "lookup": 2}}
    )
    merged = Merge(sources, **how)
    assert merged.reads == Features((3, 0, 1), "post")
    steps = played(merged, rule, sampling)
    assert any(step.verdict.accepted for step in steps)
    for name in ("one", "two"):
        require_seen(sources[name])
    assert sources["one"].text == sources["two"].text


def test_a_source_that_left_the_path_gets_the_features_of_the_further_tokens():
    """The second source never drafts what is accepted: its steps are all further tokens."""
    sources = {
        "right": Reader(table(3), TreeShape.chain(3), SURE, COLD),
        "wrong": Boundaries(table(5), TreeShape.chain(3), SURE, COLD),
    }
    further = []
    commit = sources["wrong"].commit
    sources["wrong"].commit = lambda step: further.append(step.further) or commit(step)
    played(Merge(sources, budgets={"right": 3, "wrong": 3}), verify.greedy, COLD)
    assert any(map(len, further))
    require_seen(sources["wrong"])


def test_the_source_of_a_cascade_gets_the_features():
    reader = Reader(table(5), TreeShape.chain(2), IID, WARM)
    cascade = Cascade(table(4), reader, verify.rrs, 3, WARM)
    assert cascade.reads == READS
    played(cascade, verify.rrs, WARM)
    require_seen(reader)


def test_remembered_passes_have_features():
    model = RememberingModel(table(3))
    for _ in range(3):
        reader = Reader(table(4), TreeShape.expansion([2, 1]), IID, WARM)
        played(reader, verify.rrs, WARM, ModelTarget(model))
        require_seen(reader)
        other = Boundaries(table(4), TreeShape.chain(2), IID, WARM)
        played(other, verify.rrs, WARM, ModelTarget(model))
        require_seen(other)
    assert model.memory.recalled > 0


def test_a_processed_model_passes_features_on():
    model = ProcessedModel(table(3), Processors(repetition_penalty=1.5), "target")
    lend(model, READS)
    plain = table(3)
    lend(plain, READS)
    prompt = torch.tensor(PROMPT)
    assert torch.equal(model.prefill(prompt), plain.prefill(prompt))
    nodes = torch.tensor([2, 1, 0]), (-1, 0, 0)
    found, expected = model.run(*nodes), plain.run(*nodes)
    assert torch.equal(found.features, expected.features)
    assert not torch.equal(found.logits, expected.logits)


def test_early_exit_states_the_rows_that_it_reads(without_shape_checks):
    class Layered(TabularModel):
        layer_count = 4

        def without(self, skip):
            return TabularModel(self.row, self.vocab_size)

    drafter = EarlyExit(Layered(random_table(3, 3), 3), 2, TreeShape.chain(2), IID, WARM)
    assert drafter.reads == Features(cache=2)
    assert isinstance(drafter, ReadsTarget)
    steps = played(drafter, verify.rrs, WARM)
    assert steps[0].features is None


class TestErrors:
    @pytest.fixture
    def ran(self, monkeypatch):
        """The passes of tables."""
        ran = []
        for name in ("prefill", "run"):
            plain = getattr(TabularModel, name)
            monkeypatch.setattr(
                TabularModel, name, lambda *given, plain=plain: ran.append(given) or plain(*given)
            )
        return ran

    def test_a_layer_that_does_not_exist(self, ran):
        class Beyond(Reader):
            reads = Features((LAYERS + 1,))

        with pytest.raises(InvalidArgument, match=r"boundary 5, but a table has 4 layers"):
            played(Beyond(table(4), TreeShape.chain(2), IID, WARM), verify.rrs, WARM)
        assert not ran

    @pytest.mark.usefixtures("without_shape_checks")
    def test_a_target_that_cannot_lend(self, ran):
        class Mute:
            """A target of someone else's."""

            def __init__(self):
                self.inner = ModelTarget(table(3))
                self.vocab_size, self.max_length = 3, 100
                self.score, self.commit = self.inner.score, self.inner.commit
                self.prefill = self.inner.prefill

        reader = Reader(table(4), TreeShape.chain(2), IID, WARM)
        with pytest.raises(
            UnsupportedModel, match=r"reads features \(3, 0, 'post'\).*Mute cannot lend"
        ):
            played(reader, verify.rrs, WARM, Mute())
        assert not ran
        assert played(
            ModelDrafter(table(4), TreeShape.chain(2), IID, WARM), verify.rrs, WARM, Mute()
        )

    @pytest.mark.usefixtures("without_shape_checks")
    def test_a_model_that_cannot_lend(self, ran):
        class Mute:
            """A model of someone else's."""

            def __init__(self):
                self.vocab_size, self.max_length, self.length = 3, 100, 0

            def fresh(self):
                return self

        reader = Reader(table(4), TreeShape.chain(2), IID, WARM)
        with pytest.raises(UnsupportedModel, match="Mute cannot lend any"):
            played(reader, verify.rrs, WARM, ModelTarget(Mute()))
        assert not ran

    @pytest.mark.usefixtures("without_shape_checks")
    def test_reads_of_another_type_are_refused_by_the_call(self):
        reader = Reader(table(4), TreeShape.chain(2), IID, WARM)
        reader.reads = (2, 3)
        with pytest.raises(InvalidArgument, match="must be a Features"):
            decode(
                ModelTarget(table(3)), reader, verify.rrs, torch.tensor(PROMPT), sampling=WARM,
                coins=TorchCoins(0), max_new_tokens=4,
            )  # fmt: skip


def test_the_features_of_a_step_are_a_copy_of_those_of_its_path():
    features = torch.randn(3, 2, 4)
    tree = TokenTree.of(TreeShape((-1, 0, 0)), [0, 1, 2], None, SURE, torch.device("cpu"))
    step = Step(tree, Verdict((0, 2), 1), Scores(torch.zeros(3, 3), features), (2, 1))
    expected = features[[0, 2]].clone()
    features.zero_()
    assert torch.equal(step.features, expected)


def test_a_proof_gives_a_drafter_the_features_of_its_prompt(without_shape_checks):
    lengths = set()

    class Checked(Reader):
        def prefill(self, tokens, features):
            super().prefill(tokens, features)
            lengths.add((len(tokens) - 1, len(features)))

    assert_lossless(
        verify.rrs, laws={IID}, shapes=[TreeShape.chain(1)], vocab=3, tables=1, draft_with=Checked
    )
    assert lengths
    assert all(tokens == features for tokens, features in lengths)
