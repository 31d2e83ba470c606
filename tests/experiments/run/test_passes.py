"""How a run's passes are chosen, recorded and reported: `models.passes` and `models.draft_passes`."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from treespec.errors import Unavailable, UnsupportedModel
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.errors import RunFolderError
from treespec.experiments.report import details, results
from treespec.experiments.report.details import facts
from treespec.experiments.run import compiled_speed, passes
from treespec.experiments.run.fastest_settings import Choice
from treespec.experiments.run.models import (
    as_eager,
    load_models,
    model_data,
    parts_of,
    passes_data,
)
from treespec.experiments.run.passes import load_with_passes, require_same_passes
from treespec.experiments.run.preparation import load_inputs
from treespec.experiments.run.progress import Reporter
from treespec.models import (
    load,  # noqa: F401  (it imports `choose_passes`, which tests replace: first, or for good)
)
from treespec.models.pass_kinds import EAGER, Passes
from treespec.models.passes import choosing_passes as library


@pytest.fixture(autouse=True)
def _chooses(monkeypatch):
    """Here `auto` and `fastest` are what they are for users."""
    monkeypatch.delenv("TREESPEC_EAGER")


def eager_model():
    return SimpleNamespace(passes=EAGER, device=torch.device("cpu"))


@pytest.fixture
def pair():
    return SimpleNamespace(target=eager_model(), draft=eager_model(), others={}, models=[])


@pytest.fixture
def folder(tmp_path):
    """Where compiled passes are noted as faster or slower than eager ones."""
    return tmp_path / "notes"


@pytest.fixture
def chosen(monkeypatch, folder):
    """The calls of `choose_passes`."""
    calls = []

    def choose(model, asked, *, draft=False):
        calls.append((model, asked, draft))
        model.passes = Passes("compiled", asked, None, 12.0, 2**20, True, from_disk=True)
        if asked == "eager":
            model.passes = Passes("eager", asked)

    monkeypatch.setattr(library, "choose_passes", choose)
    monkeypatch.setattr(compiled_speed, "slowdown", lambda model: 0.5)
    monkeypatch.setattr(compiled_speed, "note_of", lambda model: folder / str(id(model)))
    return calls


def models(**more):
    return ModelsConfig(dtype="float32", **more)


def test_where_nothing_is_to_be_chosen_nothing_is(monkeypatch, pair, chosen):
    """Tests, notebooks and `treespec generate` decode eagerly, unless passes are named."""
    config = ModelsConfig(draft_passes="compiled", enlarge="1M")
    eager = config.model_copy(update={"passes": None, "dtype": "bfloat16"})
    assert as_eager(config) == eager
    monkeypatch.setenv("TREESPEC_EAGER", "1")
    loaded = load_with_passes(ModelsConfig(), [], lambda config: pair, Reporter(None))
    assert loaded.models == as_eager(ModelsConfig())
    assert (loaded.pair, loaded.choice, chosen) == (pair, None, [])


@pytest.mark.parametrize("asked", ["auto", "compiled"])
def test_what_is_compiled_is_said(asked, pair, chosen):
    """`auto` compiles both models, however short a run is."""
    given, console = [], Console(record=True, width=300)

    def loading(config):
        given.append(config)
        return pair

    config = models(passes=asked, draft_passes=asked)
    for _ in range(2):  # a pair that already is as asked is not changed
        loaded = load_with_passes(config, [], loading, Reporter(console))
        assert loaded.pair is pair
        assert loaded.models == models(passes="compiled", draft_passes="compiled")
    assert given == [models(passes=None, draft_passes=None)] * 2
    assert chosen == [(pair.target, asked, False), (pair.draft, asked, True)]
    why = ", since a compiled pass over 4 nodes takes 0.50 of the time of an eager one" * (
        asked == "auto"
    )
    assert console.export_text().splitlines() == [
        "loading the models ...",
        "compiling passes of the target ...",
        f"passes of the target: compiled (12 s, machine code from disk){why}",
        "compiling passes of the draft ...",
        f"passes of the draft: compiled (12 s, machine code from disk){why}",
        "loading the models ...",
    ]


def test_compiled_passes_that_are_slower_are_not_used(pair, chosen, monkeypatch):
    """Only the choice of `auto` is changed: who asks for compiled passes gets them."""
    monkeypatch.setattr(compiled_speed, "slowdown", lambda model: 3.52)
    config = models(passes="auto", draft_passes="compiled")
    loaded = load_with_passes(config, [], lambda config: pair, Reporter(None))
    assert loaded.models == models(passes="eager", draft_passes="compiled")
    why = "a compiled pass over 4 nodes takes 3.52 of the time of an eager one"
    assert pair.target.passes == Passes("eager", "auto", why)
    assert pair.draft.passes.kind == "compiled"


@pytest.mark.parametrize(("kept", "kind"), [(0.25, "compiled"), (1.5, "eager")])
def test_passes_are_chosen_once(kept, kind, pair, chosen, folder):
    """What an earlier process measured decides; code that turned out slower is not made again."""
    folder.mkdir()
    for model in (pair.target, pair.draft):
        (folder / str(id(model))).write_text(str(kept))
    load_with_passes(models(), [], lambda config: pair, Reporter(None))
    assert {model.passes.kind for model in (pair.target, pair.draft)} == {kind}
    assert {asked for _, asked, _ in chosen} == {"auto" if kind == "compiled" else "eager"}
    assert pair.target.passes.asked == "auto"
    assert f"takes {kept:.2f} of the time" in pair.target.passes.why
    for model in (pair.target, pair.draft):
        model.passes = EAGER
    load_with_passes(models(), [], lambda config: pair, Reporter(None), fresh=True)
    assert "takes 0.50 of the time" in pair.target.passes.why


@pytest.mark.parametrize(("busy", "noted"), [(2.0, True), (60.0, False), (None, True)])
def test_what_a_busy_machine_measured_is_not_kept(busy, noted, pair, chosen, folder, monkeypatch):
    monkeypatch.setattr(
        compiled_speed, "LoadWatch", lambda: SimpleNamespace(busy_percent=lambda: busy)
    )
    load_with_passes(models(), [], lambda config: pair, Reporter(None))
    assert folder.exists() == noted


def test_a_sweep_chooses_before_its_workers_start(settings, pair, chosen, folder, monkeypatch):
    monkeypatch.setattr(
        compiled_speed, "LoadWatch", lambda: SimpleNamespace(busy_percent=lambda: 0.0)
    )
    experiment = build(Config(**settings | {"models": models()}))
    passes.choose_ahead(experiment, lambda config: pair, Reporter(None))
    kept = {file.name: file.read_text() for file in folder.iterdir()}
    assert kept == {str(id(model)): "0.5" for model in (pair.target, pair.draft)}
    on_cuda = build(Config(**settings | {"models": models(device="cuda")}))
    passes.choose_ahead(on_cuda, None, Reporter(None))  # workers need the memory of the device
    named = ModelsConfig(dtype="float32", passes="eager", draft_passes="eager")
    passes.choose_ahead(build(Config(**settings | {"models": named})), None, Reporter(None))


def test_the_dtype_is_chosen_first(pair, chosen, monkeypatch):
    """Methods decide the dtype, also of those that load none of their drafts; a resumed run keeps it."""
    choice, asked_for = Choice("float32", "it is faster", "bfloat16", 1.25), []

    def choose(config, methods, loading, models_of, reporter):
        asked_for.append(methods)
        assert models_of(pair) == {"target": pair.target, "draft": pair.draft}
        return choice, loading(config)

    monkeypatch.setattr(passes, "choose", choose)
    config = ModelsConfig(passes=None, draft_passes=None)
    loaded = load_with_passes(config, [], lambda config: pair, Reporter(None), chosen_for=[])
    assert (loaded.models.dtype, loaded.choice, asked_for) == ("float32", choice, [[]])
    manifest = {"models": {"target": {"dtype": "float32"}, "draft": {}}, "settings": loaded.data}
    given = []
    again = load_with_passes(
        config, [], lambda config: given.append(config) or pair, Reporter(None), manifest
    )
    assert (again.choice, len(asked_for), given[0].dtype) == (choice, 1, "float32")
    del manifest["settings"]
    assert (
        load_with_passes(config, [], lambda config: pair, Reporter(None), manifest).models.dtype
        == "float32"
    )


def test_a_resumed_run_keeps_the_passes_of_every_model(with_parts, pair, chosen):
    eager, compiled = ({"passes": {"kind": kind, "why": "so"}} for kind in ("eager", "compiled"))
    pair.others["other"] = eager_model()
    manifest = {
        "models": {
            "target": eager,
            "draft": compiled,
            "others": {"other": eager},
            "parts": {NAMES[0]: compiled},  # an earlier version did not know the other
        }
    }
    load_with_passes(models(), with_parts.methods, lambda config: pair, Reporter(None), manifest)
    parts = parts_of(with_parts.methods, pair.target)
    every = [pair.target, pair.draft, pair.others["other"], *parts.values()]
    kinds = [model.passes.kind for model in every]
    assert kinds == ["eager", "compiled", "eager", "compiled", "eager"]
    assert pair.target.passes.why == "so"
    require_same_passes(Path("runs/x"), pair, manifest, {NAMES[0]: parts[NAMES[0]]})
    parts[NAMES[0]].passes = EAGER
    with pytest.raises(RunFolderError, match=rf"{NAMES[0]} \(as a draft\), which are eager now"):
        require_same_passes(Path("runs/x"), pair, manifest, parts)


PARTS = (
    {"source": "early_exit", "layers": 2},
    {"source": "layer_skip", "skip": ["mlp.1", "attention.0"]},
)
NAMES = ("the first 2 of 3 layers", "the target without attention.0, mlp.1")


@pytest.fixture
def with_parts(settings, pair):
    """Both kinds of parts, one of them also within a merge."""
    parts = {}

    def without(skip):
        return parts.setdefault(
            frozenset(map(str, skip)),
            eager_model(),
        )

    pair.target.layer_count, pair.target.without = 3, without
    shape = {"kind": "chain", "depth": 3}
    methods = [{"kind": "plain"}]
    methods += [
        {"kind": "tree", "name": f"part {i}", "shape": shape, "draft": draft}
        for i, draft in enumerate(PARTS)
    ]
    merge = {
        "source": "merge",
        "sources": [PARTS[0], {"source": "lookup"}],
        "rates": [[[0.5]], [[0.5]]],
    }
    budget = {"kind": "budget", "depth": 4, "size": 8, "branching": 2}
    methods.append({"kind": "tree", "name": "merge", "shape": budget, "draft": merge})
    return build(Config(**settings | {"max_new_tokens": 100, "methods": methods}))


def model_data_of(pair, parts):
    for model in (pair.target, pair.draft):
        model.max_length, model.model = 8, torch.nn.Linear(2, 2)
        model.attention, model.gguf = "sdpa", None
    return model_data(ModelsConfig(), pair, parts)


def test_parts_are_told_in_the_report(with_parts, pair):
    parts = parts_of(with_parts.methods, pair.target)
    parts[NAMES[0]].passes = Passes("compiled", "compiled", None, 12.0, 0, frozen=True)
    drafting = details._drafting(model_data_of(pair, parts))
    assert drafting == {
        "part of the target 1": f"{NAMES[0]}, compiled passes (compiled in 12 s, not measured; no "
        "additional copies of weights)",
        "part of the target 2": f"{NAMES[1]}, eager passes",
    }


def test_passes_that_are_named_are_had_by_parts_or_refused(with_parts, pair, chosen, monkeypatch):
    parts = parts_of(with_parts.methods, pair.target)
    for asked, kinds in ((None, ["eager"] * 2), ("compiled", ["compiled"] * 2)):
        load_with_passes(
            models(passes=None, draft_passes=asked),
            with_parts.methods,
            lambda _: pair,
            Reporter(None),
        )
        assert [part.passes.kind for part in parts.values()] == kinds
    assert all(draft for _, _, draft in chosen)

    def refuse(model, asked, *, draft=False):
        raise UnsupportedModel(f"draft_passes={asked!r} cannot be had: it cannot")

    monkeypatch.setattr(library, "choose_passes", refuse)
    for part in parts.values():  # passes that are already as asked are not chosen again
        part.passes = EAGER
    with pytest.raises(
        UnsupportedModel,
        match=rf"^models\.draft_passes='compiled' cannot be had: it cannot \(of {NAMES[0]}, which",
    ):
        load_with_passes(
            models(passes=None, draft_passes="compiled"),
            with_parts.methods,
            lambda _: pair,
            Reporter(None),
        )


def test_what_cannot_be_had_names_its_key():
    with pytest.raises(
        Unavailable, match=r"^models\.passes='captured' cannot be had: it needs a CUDA"
    ):
        load_models(models(passes="captured"))
    with pytest.raises(
        Unavailable, match=r"^models\.draft_passes='captured' cannot be had: it needs a CUDA"
    ):
        load_models(models(passes=None, draft_passes="captured"))


def test_a_draft_that_there_is_not_has_no_passes():
    def model(passes):
        model = torch.nn.Linear(2, 2)
        return SimpleNamespace(
            passes=passes, max_length=8, model=model, attention="sdpa", gguf=None
        )

    pair = SimpleNamespace(target=model(Passes("compiled", "auto", "long")), others={})
    data = model_data(ModelsConfig(draft="none"), pair)
    assert data["target"]["passes"]["kind"] == "compiled"
    assert data["draft"]["passes"] is None


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ({"kind": "eager"}, r"eager passes of the target, which are compiled \(with packed weights\) now"),
        (
            {"kind": "compiled", "frozen": False},
            r"compiled \(without packed weights\) passes of the target, which are compiled \(with packed",
        ),
        ({"kind": "compiled", "frozen": True}, None),
        ({"kind": "compiled"}, None),
        (None, None),
    ],
)  # fmt: skip
def test_a_run_does_not_go_on_with_other_passes(then, said, pair):
    pair.target.passes = Passes("compiled", "auto", "long", frozen=True)
    manifest = {"models": {"target": {"passes": then}, "draft": {}}}
    if said is None:
        require_same_passes(Path("runs/x"), pair, manifest)
        return
    with pytest.raises(RunFolderError, match=said) as refused:
        require_same_passes(Path("runs/x"), pair, manifest)
    assert "runs/x" in str(refused.value)
    assert "--fresh" in str(refused.value)


def test_passes_are_compared_when_a_run_goes_on(settings, tmp_path, monkeypatch):
    """A compiled run is not resumed with eager passes if the compiler is gone."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = Config(**settings | {"models": models(passes="auto")})
    session = SimpleNamespace(
        config=config,
        fresh=False,
        reporter=Reporter(None),
        ready=SimpleNamespace(measured=[], spare=[]),
        records=SimpleNamespace(path=tmp_path),
        manifest={"models": {"target": {"passes": {"kind": "compiled"}}, "draft": {}}},
    )
    with pytest.raises(
        RunFolderError, match=r"compiled .* are eager now .*'no-such-compiler' is not"
    ):
        load_inputs(session, build(config), load_models)


def test_the_report_tells(monkeypatch):
    model = SimpleNamespace(passes=Passes("compiled", "auto", "it is long", 31.6, 5 * 2**20))
    named = {"name": "x", "parameters": 10, "architecture": "Llama", "dtype": "float32"}
    models = {"target": named | {"passes": passes_data(model)}, "draft": named}
    run = SimpleNamespace(
        manifest={
            "hardware": {
                "machine": "m", "cpu": "c", "cores": 2, "threads": 2, "memory_gib": 1.0, "gpu": None,
            },
            "models": models, "versions": {}, "treespec_version": "0", "git_hash": None, "seed": 0,
            "created": "then", "finished": None, "config_hash": "0" * 20,
        }
    )  # fmt: skip
    told = facts(run)
    assert told["target model"].endswith(
        ", compiled passes (compiled in 32 s, not measured; copies of weights: 5 MiB for all methods) "
        "(it is long)"
    )
    assert told["draft model"].endswith("float32")
    models["target"]["passes"] |= {"unpacked": "it is large"}
    assert "5 MiB for all methods; it is large) (it is long)" in facts(run)["target model"]
    models["target"]["passes"] = passes_data(SimpleNamespace(passes=EAGER))
    assert "passes" not in facts(run)["target model"]


def test_what_was_chosen_stands_above_the_table_and_beside_speed_ups():
    compiled = {"kind": "compiled", "asked": "auto", "why": "so", "seconds": 31.6}
    manifest = {
        "models": {"target": {"passes": compiled}, "draft": {"passes": None}},
        "settings": {
            "dtype": "float32",
            "why": "x",
            "plain_dtype": "bfloat16",
            "plain_ratio": 1.25,
        },
    }
    run = SimpleNamespace(manifest=manifest)
    chosen, target = results.settings_lines(run)
    assert chosen == "Chosen: float32, since x."
    assert target == "Passes of the target: compiled (32 s), since so."
    said = results.plain_elsewhere(run)
    assert "1.25 times as fast in bfloat16" in said
    assert "0.80 of those shown" in said
    manifest["settings"] = None
    assert results.plain_elsewhere(run) is None
    assert len(results.settings_lines(run)) == 1
