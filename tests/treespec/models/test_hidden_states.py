"""Features of tree nodes are the hidden states of transformers on the node's own path."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import Merge, ModelDrafter
from treespec.errors import InvalidArgument, UnsupportedModel
from treespec.features import Features
from treespec.models.decoder_layers import list_of_layers
from treespec.models.passes import compiled_pass, compiled_runner
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.sublayers import layers_from
from treespec.target import ModelTarget

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
NAMES = ("llama", "qwen3", "gpt_neox", "gemma2", "opt")
MORE = ("gpt2", "falcon", "gptj", "stablelm", "phi", "cohere", "mixtral", "gpt_oss")
SHAPE = TreeShape.expansion([3, 2])
LEVELS = ((0, 1), (1, 4), (4, 10))


def layers_of(name):
    """Enough layers for a boundary that is neither the first nor the last."""
    return {"n_layer": 3} if name in ("gpt2", "gptj") else {"num_hidden_layers": 3}


def states_of(model, texts, reads):
    """The features of the last token of each text, by a plain pass of transformers over this text."""
    rows = []
    with model.as_transformers() as plain, torch.inference_mode():
        _, layers = list_of_layers(plain)
        for text in texts:
            last = []
            # The last of transformers' hidden states is after the final norm: the state before it comes
            # from the last layer itself.
            hook = layers[-1].register_forward_hook(lambda m, i, out, last=last: last.append(out))
            states = plain(text[None], output_hidden_states=True, use_cache=False).hidden_states
            hook.remove()
            (before,) = last
            before = before if isinstance(before, torch.Tensor) else before[0]
            assert len(states) == len(layers) + 1
            found = [before if i == len(layers) else states[i] for i in reads.boundaries]
            found += [states[-1]] if reads.final else []
            rows.append(torch.stack([state[0, -1] for state in found]))
    return torch.stack(rows)


def require_features(model, plain, reads, prefix):
    """Features of a prompt, a tree (whole, and level by level), and a tree behind kept nodes."""
    generator = torch.Generator().manual_seed(prefix)
    text, tokens = (torch.randint(96, (n,), generator=generator) for n in (prefix, SHAPE.size))
    model.lend(reads)
    paths = [torch.cat([text, tokens[list(SHAPE.path(node))]]) for node in range(SHAPE.size)]
    expected = states_of(plain, paths, reads)
    prompt = model.prefill(text)
    torch.testing.assert_close(
        prompt, states_of(plain, [text[: i + 1] for i in range(prefix)], reads), **CLOSE
    )
    whole = model.run(tokens, SHAPE.parents)
    torch.testing.assert_close(whole.features, expected, **CLOSE)
    model.prefill(text)
    parts = [model.run(tokens[a:b], SHAPE.parents[:b], a) for a, b in LEVELS]
    torch.testing.assert_close(torch.cat([part.features for part in parts]), expected, **CLOSE)
    torch.testing.assert_close(torch.cat([part.logits for part in parts]), whole.logits, **CLOSE)
    model.keep([0, 2, 7])
    text = torch.cat([text, tokens[[0, 2, 7]]])
    after = model.run(tokens[:3], (-1, 0, 0))
    paths = [torch.cat([text, tokens[path]]) for path in ([0], [0, 1], [0, 2])]
    torch.testing.assert_close(after.features, states_of(plain, paths, reads), **CLOSE)
    return whole


@pytest.mark.parametrize("name", NAMES)
def test_features_of_ordinary_passes(name, load):
    model = TransformersModel(load(name, **layers_of(name)))
    whole = require_features(model.fresh(), model, Features((2, 0, 3), "post"), prefix=17)
    head = model.model.get_output_embeddings()
    with torch.inference_mode():
        logits = head(whole.features[:, -1])
    if name == "gemma2":
        logits = 30.0 * torch.tanh(logits / 30.0)
    torch.testing.assert_close(logits, whole.logits, **CLOSE)
    require_features(model.fresh(), model, Features((1,)), prefix=1)
    require_features(model.fresh(), model, Features(final="post"), prefix=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_features_of_other_architectures(name, load):
    model = TransformersModel(load(name, **layers_of(name)))
    require_features(model.fresh(), model, Features((2, 0, 3), "post"), prefix=17)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", NAMES)
def test_features_of_compiled_passes(name, load, monkeypatch):
    model = TransformersModel(load(name, **layers_of(name)))
    plain = model.fresh()
    choose_passes(model, "compiled")
    compiled = []
    graph = compiled_pass.CompiledPass._graph

    def counted(*given, **how):
        compiled.append(1)
        return graph(*given, **how)

    monkeypatch.setattr(compiled_pass.CompiledPass, "_graph", counted)
    for reads in (Features((2, 0, 3), "post"), Features((3,))):
        require_features(model.fresh(), plain, reads, prefix=17)
    assert len(compiled) in (2, 4)
    made = len(compiled)
    model.fresh().lend(Features((2, 0, 3), "post", cache=1))  # the graph is known
    assert len(compiled) == made
    model.prefill(torch.arange(5))
    assert model.run(torch.arange(3), (-1, 0, 0)).features is None


@pytest.mark.slow
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_features_in_machine_code(name, load):
    model = TransformersModel(load(name, **layers_of(name)))
    plain = model.fresh()
    choose_passes(model, "compiled")
    require_features(model.fresh(), plain, Features((2, 0, 3), "post"), prefix=17)


@pytest.mark.usefixtures("traced")
def test_wrong_features_of_a_compiled_pass_are_refused(load, monkeypatch):
    model = TransformersModel(load("llama"))
    choose_passes(model, "compiled")
    scores = compiled_runner.Scores
    monkeypatch.setattr(
        compiled_runner, "Scores", lambda logits, features=None: scores(logits, features.flip(1))
    )
    for _ in range(2):  # a graph that failed the test is not taken as known
        with pytest.raises(UnsupportedModel, match="a compiled pass with features differs"):
            model.lend(Features((0, 1)))


@pytest.mark.usefixtures("traced")
def test_compiling_that_fails_is_told_before_the_first_pass(load, monkeypatch):
    model = TransformersModel(load("llama"))
    choose_passes(model, "compiled")

    def broken(*args, **kwargs):
        raise ValueError("no such sizes")

    monkeypatch.setattr(compiled_pass, "DirectCall", broken)
    with pytest.raises(
        UnsupportedModel, match="cannot return hidden states, choose passes='eager'"
    ):
        model.lend(Features((1,)))


def test_features_of_a_shortened_model(load):
    model = TransformersModel(load("llama", num_hidden_layers=4))
    short = model.without(layers_from(2, 4)).fresh()
    text, tokens = torch.arange(9) * 5 % 96, torch.tensor([7, 8, 9])
    short.lend(Features((0, 1, 2)))
    prompt = short.prefill(text)
    scores = short.run(tokens, (-1, 0, 0))
    model.lend(Features((0, 1, 2)))
    torch.testing.assert_close(prompt, model.prefill(text), **CLOSE)
    torch.testing.assert_close(scores.features, model.run(tokens, (-1, 0, 0)).features, **CLOSE)
    with pytest.raises(InvalidArgument, match="boundary 3, but the target has 2 layers"):
        short.lend(Features((3,)))
    whole = model.fresh()
    whole.prefill(text)
    assert whole.run(tokens, (-1, 0, 0)).features is None
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.model.modules()
    )


def test_layers_that_do_not_exist(load):
    model = TransformersModel(load("llama"))
    with pytest.raises(InvalidArgument, match=r"boundary 3, but the target has 2 layers.*0\.\.2"):
        model.lend(Features((0, 3)))
    model.lend(Features((0, 2)))
    assert model.prefill(torch.tensor([], dtype=torch.long)).shape == (0, 2, 32)


def test_a_model_whose_layers_cannot_be_found(load, monkeypatch):
    model = TransformersModel(load("llama"))
    monkeypatch.setattr("treespec.models.decoder_layers.ATTENTION", ("another",))
    with pytest.raises(
        UnsupportedModel, match="hidden states of llama models cannot be read: their 2"
    ):
        model.lend(Features((1,)))


def test_wider_and_narrower_vocabularies_keep_the_features(load):
    model = TransformersModel(load("llama"))
    found = []
    for width in (90, 96, 97):
        twin = model.fresh(vocab_size=width)
        twin.lend(Features((1,), "post"))
        twin.prefill(torch.arange(5))
        scores = twin.run(torch.arange(3), (-1, 0, 0))
        assert scores.logits.shape == (3, width)
        found.append(scores.features)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


class Reader(ModelDrafter):
    """Remembers the features of the text that it was given."""

    reads = Features((2, 0), "post")

    def prefill(self, tokens, features):
        super().prefill(tokens)
        self.text, self.seen = tokens.tolist(), [features]

    def commit(self, step):
        super().commit(step)
        self.text += step.emitted_ids
        self.seen.append(step.features)


class Other(Reader):
    reads = Features((1, 2))


def require_seen(reader, plain, prompt):
    text = torch.tensor(reader.text)
    texts = [text[: i + 1] for i in range(len(text) - 1)]
    assert len(text) > len(prompt) + 20
    torch.testing.assert_close(
        torch.cat(reader.seen), states_of(plain, texts, reader.reads), **CLOSE
    )


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("passes", ["eager", "compiled"])
@pytest.mark.parametrize("merged", [False, True])
def test_a_drafter_sees_the_states_of_the_text(passes, merged, load, prompt):
    model = TransformersModel(load("llama", num_hidden_layers=3))
    plain = model.fresh()
    draft = TransformersModel(load("llama", draft_of=model.model))
    choose_passes(model, passes)
    sampling = Sampling(temperature=0.0)
    readers = [
        kind(draft, TreeShape.expansion([2, 1]), Law.DETERMINISTIC, sampling)
        for kind in (Reader, Other)
    ]
    drafter = readers[0]
    if merged:
        drafter = Merge(dict(zip("ab", readers, strict=True)), budgets={"a": 4, "b": 2})
    steps = list(decode(
        ModelTarget(model), drafter, verify.greedy, prompt, sampling=sampling, coins=TorchCoins(0),
        max_new_tokens=24,
    ))  # fmt: skip
    assert any(step.verdict.accepted for step in steps)
    for reader in readers if merged else readers[:1]:
        require_seen(reader, plain, prompt)
