"""How the dtype is chosen: `models.dtype: fastest`."""

import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from treespec.errors import LoadError
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.errors import ConfigError
from treespec.experiments.run import fastest_settings
from treespec.experiments.run.fastest_settings import Choice, Step, choose, decide, forget, step_of
from treespec.experiments.run.progress import Reporter

CHAIN = Step("chain", 5, (("draft", 1),) * 4, 2.5)
TREE = Step("tree", 17, (("draft", 1), ("draft", 4)), 3.0)


def times(one, sixteen, draft=0.1):
    return {"target": {1: one, 17: sixteen}, "draft": {1: draft, 4: draft}}


def test_the_dtype_of_the_fastest_method_is_chosen():
    """Plain decoding is faster in bfloat16, but trees and chains are faster in float32."""
    choice = decide([CHAIN, TREE], {"float32": times(6, 8), "bfloat16": times(5, 25)})
    assert (choice.dtype, choice.plain_dtype) == ("float32", "bfloat16")
    assert choice.plain_ratio == pytest.approx(6 / 5)
    # a tree in float32: 8.2 / 3 a token; a chain of 5 nodes in bfloat16: (10 + 0.4) / 2.5
    assert "0.66 of the time that it takes in bfloat16" in choice.why
    assert "(tree; chain)" in choice.why


def test_the_best_methods_of_two_dtypes_may_differ():
    choice = decide([TREE], {"float32": times(6, 24), "bfloat16": times(5, 30)})
    assert choice.dtype == "bfloat16"
    assert choice.plain_dtype is None
    assert "(plain decoding)" in choice.why


def test_a_draft_that_is_slow_counts():
    slow = times(5, 6, draft=20)
    assert decide([CHAIN], {"float32": times(6, 7), "bfloat16": slow}).dtype == "float32"


@pytest.mark.parametrize(("factor", "dtype"), [(0.99, "float32"), (0.97, "bfloat16")])
def test_float32_is_taken_unless_the_other_is_clearly_faster(factor, dtype):
    given = {"bfloat16": times(6 * factor, 8 * factor, 0.1 * factor), "float32": times(6, 8)}
    choice = decide([CHAIN], given)
    assert (choice.dtype, choice.plain_dtype) == (dtype, None)


def test_more_nodes_than_were_timed_take_time_in_proportion():
    large = Step("large", 34, (), 3.0)
    assert fastest_settings._seconds_per_token(large, times(6, 9)) == pytest.approx(6.0)


def test_steps_of_methods(settings):
    shapes = [{"kind": "chain", "depth": 2}, {"kind": "expansion", "branching": [2, 1]}]
    trees = [{"kind": "tree", "shape": shape} for shape in shapes]
    part = {"source": "early_exit", "layers": 2}
    budget = {"kind": "budget", "depth": 4, "size": 9, "branching": 2}
    more = [
        {"kind": "tree", "shape": shapes[0], "draft": part, "name": "part"},
        {"kind": "tree", "shape": budget, "draft": {"source": "lookup"}, "name": "lookup"},
    ]
    methods = build(Config(**settings | {"methods": [{"kind": "plain"}, *trees, *more]})).methods
    plain, *steps = [step_of(method, 3) for method in methods]
    assert plain is None
    assert [step.verified for step in steps] == [3, 5, 3, 9]
    assert steps[0].drafted == (("draft", 1),) * 2
    assert steps[1].drafted == (("draft", 1), ("draft", 2))
    assert {name for name, _ in steps[2].drafted} == {"the first 2 of 3 layers"}
    assert steps[3].drafted == ()
    assert steps[0].tokens == pytest.approx(1 + 0.63 + 0.63**2)
    assert steps[1].tokens == pytest.approx(1 + 0.73 + 0.73 * 0.63)
    assert steps[3].tokens < steps[0].tokens


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder in which choices are kept."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path / "treespec"


@pytest.fixture
def timed(monkeypatch):
    """Choices are made from times of pairs, which are a dtype each; the number of measurements."""
    measured = []

    def quiet_times(models, config):
        measured.append(list(models))
        return {"float32": times(6, 8), "bfloat16": times(5, 25)}

    monkeypatch.setattr(fastest_settings, "_quiet_times", quiet_times)
    return measured


def pair_of(config):
    model = SimpleNamespace(dtype=getattr(torch, config.dtype))
    target = SimpleNamespace(layer_count=2, model=model)
    return SimpleNamespace(dtype=config.dtype, target=target, models=[])


def chosen(load=pair_of, config=None, reporter=None):
    return choose(config or ModelsConfig(), [], load, lambda pair: {}, reporter or Reporter(None))


def test_a_choice_is_made_once_and_kept(kept, timed):
    choice, pair = chosen()
    assert (choice.dtype, pair.dtype) == ("bfloat16", "bfloat16")  # there are no methods
    assert timed == [["float32", "bfloat16"]]
    (note,) = kept.iterdir()
    note.write_text(json.dumps({"dtype": "float32", "why": "kept"}))
    assert chosen() == (Choice("float32", "kept"), None)
    assert chosen(config=ModelsConfig(enlarge="50M"))[0].dtype == "bfloat16"  # another target
    note.write_text("{")
    assert chosen()[0].dtype == "bfloat16"
    forget(ModelsConfig(), [])
    assert not note.exists()


def test_where_choices_cannot_be_kept_they_are_made_again(kept, timed):
    kept.write_text("a file")
    assert chosen()[0] == chosen()[0]
    assert len(timed) == 2


def test_a_dtype_that_cannot_be_run_is_left_out(kept, timed):
    def load(config):
        if config.dtype == "bfloat16":
            raise LoadError("no such numbers here")
        return pair_of(config)

    choice, pair = chosen(load)
    assert choice == Choice("float32", "bfloat16 cannot be used: no such numbers here")
    assert pair.dtype == "float32"
    assert not timed

    def refuse(config):
        raise LoadError("no model")

    with pytest.raises(LoadError, match="no model"):
        chosen(refuse)


def test_what_does_not_fit_in_float32_is_not_loaded_in_it(kept, timed):
    def load(config):
        assert config.dtype == "bfloat16"
        huge = SimpleNamespace(parameters=lambda: [torch.empty(2**50, device="meta")])
        pair = pair_of(config)
        pair.models.append(SimpleNamespace(model=huge))
        return pair

    choice, pair = chosen(load)
    assert (choice.dtype, pair.dtype) == ("bfloat16", "bfloat16")
    assert "float32 cannot be used: the models would take more than half" in choice.why


def test_models_that_are_given_keep_their_dtype(kept, timed, loaded_pair):
    choice, pair = chosen(lambda config: loaded_pair)
    assert (choice.dtype, pair) == ("float32", loaded_pair)
    assert not timed


def test_on_other_devices_nothing_is_measured(kept, timed):
    choice, pair = chosen(config=ModelsConfig(device="cuda"))
    assert (choice.dtype, pair) == ("bfloat16", None)
    assert not timed


def test_a_busy_machine_is_measured_again_or_refused(kept, loaded_pair, monkeypatch):
    loads = iter([50.0, 3.0, 40.0, 30.0, 20.0])
    monkeypatch.setattr(fastest_settings, "LEAST_S", 0.0)
    watch = SimpleNamespace(busy_percent=lambda: next(loads))
    monkeypatch.setattr(fastest_settings, "LoadWatch", lambda: watch)
    models = {"float32": {"target": loaded_pair.target, "draft": loaded_pair.draft}}
    config = ModelsConfig(passes="eager", draft_passes="eager")
    (of_dtype,) = fastest_settings._quiet_times(models, config).values()
    assert set(of_dtype) == {"target", "draft"}
    assert set(of_dtype["target"]) == set(fastest_settings.NODES)
    assert all(seconds > 0 for seconds in of_dtype["draft"].values())
    with pytest.raises(
        ConfigError, match=r"^models\.dtype = fastest: .* 20 % .*models\.dtype=float32"
    ):
        fastest_settings._quiet_times(models, config)


def test_products_of_a_compiled_pass_are_timed_without_compiling(loaded_pair):
    """The same matrices as in a pass, in the dtype of the model."""
    assert fastest_settings._will_be_compiled(loaded_pair.target, "compiled")
    runs = dict(fastest_settings._products(loaded_pair.target))
    assert list(runs) == list(fastest_settings.NODES)
    for run in runs.values():
        run()


def test_dtypes_of_a_model_are_timed_alike(loaded_pair, monkeypatch):
    """In bfloat16 packed copies fit, in float32 they do not: then products would be set against passes."""
    watch = SimpleNamespace(busy_percent=lambda: 0.0)
    monkeypatch.setattr(fastest_settings, "LoadWatch", lambda: watch)
    monkeypatch.setattr(fastest_settings, "LEAST_S", 0.0)
    answers, timed = iter([True, False, True, True]), []
    monkeypatch.setattr(fastest_settings, "_will_be_compiled", lambda *_: next(answers))
    for kind in ("_products", "_passes"):
        monkeypatch.setattr(
            fastest_settings, kind, lambda _, kind=kind: timed.append(kind) or [(1, lambda: None)]
        )
    models = {
        dtype: {"target": loaded_pair.target, "draft": loaded_pair.draft}
        for dtype in ("float32", "bfloat16")
    }
    fastest_settings._quiet_times(models, ModelsConfig())
    assert timed == ["_passes", "_passes", "_products", "_products"]


def test_the_choice_is_told(kept, timed):
    console = Console(record=True, width=200)
    chosen(reporter=Reporter(console))
    output = console.export_text()
    assert "loading the models in float32" in output
    assert "timing passes in float32 and bfloat16" in output


def test_torch_threads_are_part_of_what_a_choice_depends_on(kept, timed):
    chosen()
    torch.set_num_threads(torch.get_num_threads() + 1)  # the fixture of all tests sets it back
    chosen()
    assert len(timed) == 2
