"""Graphs of architectures other than the one that `test_compiled_pass` compiles, and of other settings.

They are traced, and run operation by operation (`traced`): that takes seconds where the compiler takes ten
times as long, and the graph, its inputs and the direct call are the same. Those of which machine code could
differ are compiled for real.
"""

import logging
from types import SimpleNamespace

import pytest
from same_passes import compare

from treespec import TreeShape
from treespec.errors import UnsupportedModel
from treespec.models.passes import compiled_attention, compiled_pass
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.passes.direct_call import DirectCall
from treespec.models.transformers_model import TransformersModel

BUSHY = TreeShape.expansion([3, 2, 1])
OUR_ATTENTION = (
    "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt", "olmo2",
    "starcoder2", "cohere", "mixtral", "gpt_oss",
)  # fmt: skip
OUR_MASK = ("stablelm", "falcon", "gptj")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("free", [2**40, 2**10])
def test_weights_are_packed_where_memory_allows(free, draft, load, monkeypatch, caplog):
    monkeypatch.setattr(
        compiled_pass.psutil, "virtual_memory", lambda: SimpleNamespace(available=free)
    )
    asked = []

    def direct(*args, frozen, **options):
        asked.append(frozen)
        return DirectCall(*args, frozen=frozen, **options)

    monkeypatch.setattr(compiled_pass, "DirectCall", direct)
    model = TransformersModel(load("llama"))
    with caplog.at_level(logging.WARNING, "treespec"):
        choose_passes(model, "compiled", draft=draft)
    fits = free > 2**30
    assert asked == [fits]
    assert model.passes.frozen == fits
    if fits:
        assert model.passes.unpacked is None
        assert not caplog.text
    else:
        role = "draft" if draft else "target"
        assert f"the passes of the {role} are compiled for the model's own weights" in caplog.text
        assert "more than 25% of the 0 MiB of free memory" in str(model.passes.unpacked)


@pytest.mark.usefixtures("traced")
def test_skipped_sublayers_in_a_graph(load):
    names = ["attention.0", "mlp.2"]
    model = TransformersModel(load("llama", num_hidden_layers=3))
    right = model.without(names).fresh()
    choose_passes(model.without(names), "compiled", draft=True)
    compare(right, model.without(names).fresh())


@pytest.mark.slow
class TestTraced:
    @pytest.mark.usefixtures("traced")
    @pytest.mark.parametrize("name", OUR_ATTENTION + OUR_MASK)
    def test_every_architecture(self, name, load, prompt, generated, decoded):
        model = TransformersModel(load(name))
        draft = TransformersModel(load(name, draft_of=model.model))
        expected, ordinary = generated(model, 48), model.fresh()
        choose_passes(model, "compiled")
        compare(ordinary, model.fresh())
        compare(ordinary, model.fresh(), prompt=40)  # beyond the windows
        tokens, accepted = decoded(model, draft, BUSHY, 48)
        assert tokens == expected
        assert sum(accepted) > 0

    @pytest.mark.usefixtures("traced")
    @pytest.mark.parametrize("mutant", ["slots", "window"])
    def test_a_wrong_graph_is_refused_at_load(self, mutant, load, monkeypatch):
        if mutant == "slots":
            init = compiled_pass._Rows.__init__
            monkeypatch.setattr(
                compiled_pass._Rows, "__init__",
                lambda self, pair, slots, used: init(self, pair, (slots - 1).clamp_min(0), used),
            )  # fmt: skip
        else:
            bias = compiled_attention.Seen.bias
            monkeypatch.setattr(
                compiled_attention.Seen, "bias", lambda self, window, dtype: bias(self, 2, dtype)
            )
        model = TransformersModel(load("llama"))
        with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
            choose_passes(model, "compiled")
        assert model.passes.kind == "eager"
        choose_passes(model, "auto")
        assert model.passes.kind == "eager"
        assert "logits of a compiled pass differ" in str(model.passes.why)

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "mixtral", "gpt2", "stablelm"])
    def test_compiled_text(self, name, load, generated, decoded):
        """Softcap, windows, sinks, experts, learned positions and our mask, in machine code."""
        model = TransformersModel(load(name))
        draft = TransformersModel(load(name, draft_of=model.model))
        expected = generated(model, 48)
        choose_passes(model, "compiled")
        assert decoded(model, draft, BUSHY, 48)[0] == expected

    @pytest.mark.usefixtures("without_shape_checks")
    def test_a_softmax_of_the_models_own_is_refused_in_machine_code(self, load):
        """A compiled sum holds for up to 4096 slots, or for more; `MaskedAttention` avoids sums."""
        with pytest.raises(UnsupportedModel, match=r"for some sizes only, those with .* <= 4096"):
            choose_passes(TransformersModel(load("falcon")), "compiled")
