"""What happens if passes of the requested kind are not possible."""

import logging
from types import SimpleNamespace

import pytest
import torch

from treespec import load_pair
from treespec.errors import InvalidArgument, Unavailable, UnsupportedModel
from treespec.models.passes import compiled_pass
from treespec.models.passes.choosing_passes import _require_same, choose_passes
from treespec.models.probe import TOLERANCE
from treespec.models.transformers_model import TransformersModel
from treespec.models.variants.sublayers import layers_from
from treespec.step import Scores


class TestWhatCannotBeHad:
    def test_unknown(self):
        with pytest.raises(
            InvalidArgument, match="passes='fast' is not known: choose one of 'eager'"
        ):
            load_pair("embedded", passes="fast")
        with pytest.raises(InvalidArgument, match="passes='fast'"):
            load_pair("embedded", draft_passes="fast")

    def test_captured_on_a_cpu(self):
        with pytest.raises(
            Unavailable, match="passes='captured' cannot be had: it needs a CUDA device"
        ):
            load_pair("embedded", passes="captured")

    def test_no_compiler(self, load, monkeypatch, caplog):
        monkeypatch.setenv("CXX", "no-such-compiler")
        model = TransformersModel(load("llama"))
        with pytest.raises(Unavailable, match="'no-such-compiler' is not found: install one"):
            choose_passes(model, "compiled")
        with caplog.at_level(logging.WARNING, "treespec"):
            choose_passes(model, "auto", draft=True)
        assert (
            "the passes of the draft stay eager: compiled passes need a C++ compiler" in caplog.text
        )
        assert model.passes.kind == "eager"
        assert model.passes.asked == "auto"
        model.fresh().run(torch.arange(2), (-1, 0))

    def test_a_compiler_with_arguments(self, monkeypatch):
        monkeypatch.setenv("CXX", "g++ -march=native")
        monkeypatch.setattr(
            compiled_pass.shutil, "which", lambda name: name if name == "g++" else None
        )
        assert compiled_pass.missing_for_compiling() is None

    def test_nowhere_to_write(self, load, monkeypatch, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "below"))
        model = TransformersModel(load("llama"))
        with pytest.raises(Unavailable, match=r"is not writable: .*TORCHINDUCTOR_CACHE_DIR"):
            choose_passes(model, "compiled")
        with caplog.at_level(logging.WARNING, "treespec"):
            choose_passes(model, "auto")
        assert "the passes of the target stay eager: compiled passes are written to" in caplog.text
        assert (model.passes.kind, model.passes.asked) == ("eager", "auto")
        assert str(tmp_path / "file" / "below") in str(model.passes.why)
        model.fresh().run(torch.arange(2), (-1, 0))

    @pytest.mark.usefixtures("traced")
    def test_a_folder_that_cannot_be_written_any_more(self, load, monkeypatch):
        """The check before compiling is no guarantee: the disk may be full later."""

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device", "/tmp/code")

        monkeypatch.setattr(compiled_pass, "DirectCall", full)
        model = TransformersModel(load("llama"))
        with pytest.raises(UnsupportedModel, match="No space left on device"):
            choose_passes(model, "compiled")
        choose_passes(model, "auto")
        assert model.passes.kind == "eager"
        assert "No space left on device" in str(model.passes.why)

    @pytest.mark.usefixtures("traced")
    def test_a_model_that_breaks_the_graph(self, load):
        made = load("llama")
        forward = made.model.forward

        def reading(*args, **kwargs):
            output = forward(*args, **kwargs)
            return output if float(output[0].sum()) != 0.5 else None

        made.model.forward = reading
        model = TransformersModel(made)
        with pytest.raises(
            UnsupportedModel, match="llama models cannot be compiled here: "
        ) as refused:
            choose_passes(model, "compiled")
        assert "Traceback" not in str(refused.value)
        choose_passes(model, "auto")
        assert model.passes.kind == "eager"
        assert "cannot be compiled here" in str(model.passes.why)

    @pytest.mark.usefixtures("traced")
    def test_a_part_that_breaks_the_graph(self, load, monkeypatch):
        """The part is refused as a draft, or stays eager with the reason; the full model is unchanged."""
        model = TransformersModel(load("llama"))
        part = model.without(layers_from(1, 2))

        def broken(*args, **kwargs):
            raise ValueError("no such sizes")

        monkeypatch.setattr(compiled_pass, "DirectCall", broken)
        with pytest.raises(
            UnsupportedModel, match="draft_passes='compiled' cannot be had: llama models cannot be"
        ):
            choose_passes(part, "compiled", draft=True)
        choose_passes(part, "auto", draft=True)
        assert (part.passes.kind, part.passes.asked) == ("eager", "auto")
        assert "cannot be compiled here" in str(part.passes.why)
        assert model.passes.asked is None

    def test_another_implementation(self, load):
        model = TransformersModel(load("llama"), attention="reference")
        with pytest.raises(UnsupportedModel, match="loaded with attention='reference'"):
            choose_passes(model, "compiled")


class Rows:
    """Rows in place of a model's logits: how far they change if the tree is ignored, and by an error."""

    device, vocab_size, max_length = torch.device("cpu"), 50, 0
    finding = SimpleNamespace(tolerance=TOLERANCE[torch.float32])
    model = SimpleNamespace(
        dtype=torch.float32,
        config=SimpleNamespace(
            model_type="fake", get_text_config=lambda decoder: SimpleNamespace()
        ),
    )

    def __init__(self, effect=0.0, error=0.0):
        self.effect, self.error = effect, error

    def fresh(self):
        return self

    def prefill(self, tokens):
        """Nothing: rows do not depend on the text."""

    def run(self, nodes, parents, first=0):
        rows = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
        ignored = len(parents) > 2 and parents == tuple(range(-1, len(parents) - 1))
        rows[:, 0] += self.error + self.effect * ignored
        return Scores(rows[first : first + len(nodes)])


def test_an_error_must_be_small_beside_what_ignoring_the_tree_would_change(without_shape_checks):
    _require_same(Rows(effect=1.0), Rows(error=5e-5))
    with pytest.raises(UnsupportedModel, match="ignoring the tree changes them by"):
        _require_same(Rows(effect=1e-4), Rows(error=5e-5))
