"""How a run's passes are chosen, recorded and reported: `models.passes` and `models.draft_passes`."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from treespec.errors import Unavailable, UnsupportedModel
from treespec.experiments import benchmarks
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config, ModelsConfig
from treespec.experiments.errors import RunFolderError
from treespec.experiments.report import details
from treespec.experiments.report.details import facts
from treespec.experiments.run import passes
from treespec.experiments.run.models import (
    load_models,
    model_data,
    parts_of,
    passes_data,
)
from treespec.experiments.run.passes import (
    ahead,
    choose_by_length,
    load_with_passes,
    require_same_passes,
    without_auto,
)
from treespec.experiments.run.preparation import load_inputs
from treespec.experiments.run.progress import Reporter
from treespec.models import (
    code_on_disk,
    load,  # noqa: F401  (it imports `choose_passes`, which tests replace: first, or for good)
)
from treespec.models import passes as library
from treespec.models.pass_kinds import EAGER, Passes

RESULTS = Path(benchmarks.__file__).parent / "results"


@pytest.fixture
def experiment(settings):
    return build(Config(**settings | {"max_new_tokens": 100, "repeats": 2}))


@pytest.fixture
def pair(monkeypatch):
    """A pair whose eager passes take 10 and 2 ms; each model says whether its machine code is on disk."""
    monkeypatch.setattr(passes, "_pass_seconds", lambda model: model.seconds)
    monkeypatch.setattr(code_on_disk, "is_on_disk", lambda model: getattr(model, "on_disk", False))
    models = [
        SimpleNamespace(passes=EAGER, device=torch.device("cpu"), seconds=s) for s in (0.01, 0.002)
    ]
    return SimpleNamespace(target=models[0], draft=models[1], others={})


@pytest.fixture
def chosen(monkeypatch):
    """The calls of `choose_passes`."""
    calls = []

    def choose(model, asked, *, draft=False):
        calls.append((model, asked, draft))
        model.passes = Passes("compiled", asked, None, 12.0, 2**20, frozen=True)
        if asked == "eager":
            model.passes = Passes("eager", asked)

    monkeypatch.setattr(library, "choose_passes", choose)
    monkeypatch.setattr(passes, "_slowdown", lambda model: 0.5)
    return calls


def test_passes_that_are_ahead(experiment, pair):
    # Two settings; plain: 100 tokens per text; two trees: 40 steps each, of 3 and of 2 levels.
    target, draft = ("target", None), ("draft", None)
    counts = {target: 2 * (100 + 40 + 40), draft: 2 * 40 * (3 + 2)}
    assert ahead(experiment, 1, pair.target) == counts
    assert ahead(experiment, 10, pair.target) == {target: 3600, draft: 4000}


def test_passes_of_each_draft_are_its_own(settings, pair, chosen):
    """Compiling pays off for one of two drafts, although it would for both if their passes were pooled."""
    draft = {"source": "model", "model": "other"}
    methods = [*settings["methods"], settings["methods"][-1] | {"name": "own", "draft": draft}]
    changed = {"max_new_tokens": 100, "methods": methods}
    experiment = build(Config(**settings | changed))
    count = ahead(experiment, 1, pair.target)
    own, other = count["draft", None], count["draft", "other"]
    assert set(count) == {("target", None), ("draft", None), ("draft", "other")}
    assert own > other > 0
    pair.others["other"] = SimpleNamespace(
        passes=EAGER, device=torch.device("cpu"), seconds=pair.draft.seconds
    )
    texts = round(25 / (0.6 * pair.draft.seconds * (own + other) / 2))
    choose_by_length(
        pair, ModelsConfig(draft_passes="auto"), experiment, texts, Reporter(None), None
    )
    assert pair.draft.passes.kind == "compiled"
    assert pair.others["other"].passes.kind == "eager"
    assert len(chosen) == 1


def test_auto_is_decided_when_the_models_are_there():
    config = ModelsConfig(passes="auto", draft_passes="eager", enlarge="1M")
    assert without_auto(config) == ModelsConfig(passes=None, draft_passes="eager", enlarge="1M")


@pytest.mark.parametrize(("texts", "kinds"), [(1, ("eager", "eager")), (40, ("compiled", "eager"))])
def test_only_what_pays_is_compiled(texts, kinds, pair, experiment, chosen):
    config = ModelsConfig(passes="auto", draft_passes="auto")
    console = Console(record=True, width=300)
    choose_by_length(pair, config, experiment, texts, Reporter(console), None)
    assert (pair.target.passes.kind, pair.draft.passes.kind) == kinds
    assert [draft for _, _, draft in chosen] == [False] * kinds.count("compiled")
    for model in (pair.target, pair.draft):
        assert model.passes.asked == "auto"
        assert "passes of" in model.passes.why
    output = console.export_text()
    assert "passes of the draft stay eager: about" in output
    assert ("passes of the target are compiled (12 s)" in output) == (texts == 40)


@pytest.mark.parametrize("asked", ["auto", "compiled"])
def test_what_is_compiled_at_load_is_said(asked, pair, chosen, monkeypatch):
    """Trace, profile and the check of a pair load as their config asks; `auto` compiles at once."""
    pair.draft.on_disk = True
    loaded, console = [], Console(record=True, width=300)

    def loading(config):
        loaded.append(config)
        return pair

    config = ModelsConfig(passes=asked, draft_passes=asked)
    for _ in range(2):  # a pair that already is as asked is not changed
        assert load_with_passes(config, [], loading, Reporter(console)) is pair
    assert loaded == [ModelsConfig()] * 2
    assert chosen == [(pair.target, asked, False), (pair.draft, asked, True)]
    lines = console.export_text().splitlines()
    assert lines == [
        "loading the models ...",
        f"compiling passes of the target (about {passes.COMPILING_S['target']:.0f} s) ...",
        f"compiling passes of the draft (about {passes.LOADING_S['draft']:.0f} s) ...",
        "loading the models ...",
    ]

    def refuse(model, asked, *, draft=False):
        raise Unavailable(f"passes={asked!r} cannot be had: no compiler")

    monkeypatch.setattr(library, "choose_passes", refuse)
    with pytest.raises(
        Unavailable, match=r"^models\.passes='captured' cannot be had: no compiler$"
    ):
        load_with_passes(ModelsConfig(passes="captured"), [], loading, Reporter(None))


def test_compiled_passes_that_are_slower_are_not_used(pair, experiment, chosen, monkeypatch):
    """Only the choice of `auto` is changed: who asks for compiled passes gets them."""
    monkeypatch.setattr(passes, "_slowdown", lambda model: 3.52)
    console = Console(record=True, width=300)
    config = ModelsConfig(passes="auto")
    choose_by_length(pair, config, experiment, 40, Reporter(console), None)
    why = "a compiled pass over 4 nodes takes 3.5 times as long as an eager one on this machine"
    assert pair.target.passes == Passes("eager", "auto", why)
    assert [asked for _, asked, _ in chosen] == ["auto", "eager"]
    assert f"passes of the target are eager: {why}" in console.export_text()
    passes._choose("target", None, pair.target, "compiled", Reporter(None))
    assert pair.target.passes.kind == "compiled"


def test_slowdown_is_the_median_of_rounds_in_turns(monkeypatch):
    seconds = iter([3.0, 1.0, 90.0, 1.0, 4.0, 2.0])
    monkeypatch.setattr(passes, "_pass_seconds", lambda model: next(seconds))
    assert passes._slowdown(SimpleNamespace(fresh=lambda runner: None)) == 3.0


@pytest.mark.parametrize("on_disk", [False, True])
def test_code_that_is_on_disk_is_worth_less_of_a_run(on_disk, pair, experiment, chosen):
    """A run that gains more than loading takes, but less than compiling takes."""
    pair.target.on_disk = on_disk
    count = ahead(experiment, 1, pair.target)["target", None]
    loading, compiling = passes.LOADING_S["target"], passes.COMPILING_S["target"]
    between = (loading + compiling) / 2
    texts = round(between / (passes.SAVED_SHARE["target"] * pair.target.seconds * count))
    console = Console(record=True, width=300)
    choose_by_length(pair, ModelsConfig(passes="auto"), experiment, texts, Reporter(console), None)
    output = console.export_text()
    assert pair.target.passes.kind == ("compiled" if on_disk else "eager")
    assert (f"take about {loading:.0f} s, since its machine code is on disk" in output) == on_disk
    assert (f"take about {compiling:.0f} s" in output) != on_disk


def test_what_compiling_saves_is_what_was_measured():
    """By the committed results of `experiments.benchmarks.passes`, for 1 to 32 nodes, on every machine."""
    for role, name in (("target", "50M"), ("draft", "draft")):
        saved = [
            1 - row["compiled_ms"] / row["eager_ms"]
            for file in RESULTS.glob("passes-*.json")
            for row in json.loads(file.read_text())["figures"][name]["rows"]
            if row["nodes"] <= 32
        ]
        assert min(saved) - 0.1 < passes.SAVED_SHARE[role] <= min(saved), (role, saved)


PARTS = (
    {"source": "early_exit", "layers": 2},
    {"source": "layer_skip", "skip": ["mlp.1", "attention.0"]},
)
NAMES = ("the first 2 of 3 layers", "the target without attention.0, mlp.1")


@pytest.fixture
def with_parts(settings, pair):
    """Both kinds of parts, one of them also within a merge. Their passes take 8 ms."""
    parts = {}

    def without(skip):
        return parts.setdefault(
            frozenset(map(str, skip)),
            SimpleNamespace(passes=EAGER, device=torch.device("cpu"), seconds=0.008),
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


def test_parts_of_the_target_are_chosen_like_drafts(with_parts, pair, chosen):
    parts = parts_of(with_parts.methods, pair.target)
    assert tuple(parts) == NAMES
    settings = len(with_parts.samplings)
    # Chains of three levels and a merge of four: 40 steps per text.
    counts = [40 * settings * (3 + 4), 40 * settings * 3]
    few = passes.COMPILING_S["target"] / (passes.SAVED_SHARE["target"] * 0.008)
    texts = round(few / ((counts[0] + counts[1]) / 2))
    config, console = ModelsConfig(draft_passes="auto"), Console(record=True, width=300)
    choose_by_length(pair, config, with_parts, texts, Reporter(console), None)
    assert [part.passes.kind for part in parts.values()] == ["compiled", "eager"]
    assert (parts[NAMES[0]], "auto", True) in chosen
    output = console.export_text()
    assert f"passes of {NAMES[0]} (as a draft) are compiled (12 s): about" in output
    assert f"passes of {NAMES[1]} (as a draft) stay eager: about" in output
    data = model_data_of(pair, parts)
    assert [data["parts"][name]["passes"]["kind"] for name in NAMES] == ["compiled", "eager"]


def model_data_of(pair, parts):
    for model in (pair.target, pair.draft):
        model.max_length, model.model = 8, torch.nn.Linear(2, 2)
    return model_data(ModelsConfig(), pair, parts)


def test_parts_keep_the_passes_that_a_run_began_with(with_parts, pair, chosen):
    parts = parts_of(with_parts.methods, pair.target)
    for part in parts.values():
        part.passes = Passes("compiled", "auto", "long", frozen=True)
    manifest = {"models": model_data_of(pair, parts)}
    require_same_passes(Path("runs/x"), pair, manifest, parts)
    parts[NAMES[1]].passes = EAGER
    with pytest.raises(RunFolderError, match=rf"{NAMES[1]} \(as a draft\), which are eager now"):
        require_same_passes(Path("runs/x"), pair, manifest, parts)
    choose_by_length(
        pair, ModelsConfig(draft_passes="auto"), with_parts, 1, Reporter(None), manifest
    )
    assert [model for model, *_ in chosen] == [*parts.values()]


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
            ModelsConfig(draft_passes=asked), with_parts.methods, lambda _: pair, Reporter(None)
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
            ModelsConfig(draft_passes="compiled"),
            with_parts.methods,
            lambda _: pair,
            Reporter(None),
        )


def test_what_was_not_asked_for_is_left_alone(pair, experiment, chosen):
    for config in (ModelsConfig(), ModelsConfig(passes="eager", draft_passes="compiled")):
        choose_by_length(pair, config, experiment, 10**6, Reporter(None), None)
    assert pair.target.passes is pair.draft.passes is EAGER
    assert not chosen


def test_a_run_that_goes_on_keeps_its_choice(pair, experiment, chosen):
    config = ModelsConfig(passes="auto", draft_passes="auto")
    models = {
        "target": {"passes": {"kind": "compiled", "why": "long"}},
        "draft": {"passes": {"kind": "eager", "why": "short"}},
    }
    choose_by_length(pair, config, experiment, 1, Reporter(None), {"models": models})
    assert (pair.target.passes.kind, pair.target.passes.why) == ("compiled", "long")
    assert (pair.draft.passes.kind, pair.draft.passes.why) == ("eager", "short")
    choose_by_length(
        pair, config, experiment, 10**6, Reporter(None), {"models": {"target": {}, "draft": {}}}
    )
    assert pair.target.passes.kind == "eager"  # a run of an earlier version


def test_what_cannot_be_had_names_its_key():
    with pytest.raises(
        Unavailable, match=r"^models\.passes='captured' cannot be had: it needs a CUDA"
    ):
        load_models(ModelsConfig(passes="captured"))
    with pytest.raises(
        Unavailable, match=r"^models\.draft_passes='captured' cannot be had: it needs a CUDA"
    ):
        load_models(ModelsConfig(draft_passes="captured"))


def test_a_draft_of_a_method_keeps_its_own_choice(pair, experiment, chosen):
    compiled = {"passes": {"kind": "compiled", "why": "long"}}
    eager = {"passes": {"kind": "eager", "why": "short"}}
    pair.others["other"] = SimpleNamespace(passes=EAGER, device=torch.device("cpu"))
    manifest = {"models": {"target": eager, "draft": compiled, "others": {"other": eager}}}
    config = ModelsConfig(draft_passes="auto")
    choose_by_length(pair, config, experiment, 1, Reporter(None), manifest)
    assert (pair.draft.passes.kind, pair.draft.passes.why) == ("compiled", "long")
    assert pair.others["other"].passes == Passes("eager", "auto", "short")


def test_a_draft_that_there_is_not_has_no_passes():
    def model(passes):
        return SimpleNamespace(passes=passes, max_length=8, model=torch.nn.Linear(2, 2))

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
    config = Config(**settings | {"models": ModelsConfig(passes="auto")})
    session = SimpleNamespace(
        config=config,
        reporter=Reporter(None),
        ready=SimpleNamespace(measured=[], spare=[]),
        records=SimpleNamespace(path=tmp_path),
        manifest={"models": {"target": {"passes": {"kind": "compiled"}}, "draft": {}}},
    )
    with pytest.raises(
        RunFolderError, match=r"compiled .* are eager now .*'no-such-compiler' is not"
    ):
        load_inputs(session, build(config), load_models)


def test_passes_are_timed_behind_a_prompt():
    class Model:
        vocab_size, max_length = 50, 1000
        rows, runs = 0, 0

        def fresh(self):
            return self

        def prefill(self, tokens):
            assert int(tokens.max()) < self.vocab_size
            self.rows = len(tokens)

        def run(self, tokens, parents):
            assert len(tokens) == len(parents)
            self.runs += 1

        def keep(self, nodes):
            assert not nodes

    model = Model()
    assert passes._pass_seconds(model) >= 0
    assert (model.rows, model.runs) == (256, 6)
    model.max_length = 100
    passes._pass_seconds(model)
    assert model.rows == 96


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
