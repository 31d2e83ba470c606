"""Measurements of the same pair of models, and of the same kind of passes."""

from types import SimpleNamespace

import pytest

from treespec.search.choice.pairs import (
    different_pairs,
    other_passes,
    passes_of,
)

ASKED = {"target": "big", "draft": "small", "device": "cpu"}


def of(models, **more):
    return SimpleNamespace(about={"models": models, **more})


def config(passes=None, draft_passes=None, **more):
    """A trace, with the models' config."""
    return of({**ASKED, "passes": passes, "draft_passes": draft_passes, **more})


def times(target, draft="eager", **asked):
    """A profile, with the config and the kinds of passes that were found."""
    about = config(**asked).about
    return of(about["models"], target={"passes": target}, draft={"passes": draft})


def run(target, draft="eager"):
    """An estimate, with the models of its run."""
    kinds = zip(ASKED, (target, draft), strict=False)
    return of({role: {"name": ASKED[role], "passes": {"kind": kind}} for role, kind in kinds})


@pytest.mark.parametrize(
    ("measured", "kinds"),
    [
        (config(), {"target": "eager", "draft": "eager"}),
        (config("compiled", "auto"), {"target": "compiled"}),
        (config("eager", "captured"), {"target": "eager", "draft": "captured"}),
        (config(device="cuda"), {"draft": "eager"}),  # captured, where it can be
        (times("compiled", passes="auto"), {"target": "compiled", "draft": "eager"}),
        (run("compiled", "captured"), {"target": "compiled", "draft": "captured"}),
        (of({"target": "big"}), {}),
        (
            of({"draft": None, "passes": "compiled", "draft_passes": "compiled"}),
            {"draft": "compiled"},
        ),
        (of("nothing"), {}),
        ([0.6, 0.2], {}),
    ],
)
def test_kinds_of_passes(measured, kinds):
    assert passes_of(measured) == kinds


def test_other_passes_are_named_with_the_way_out():
    eager, compiled = passes_of(run("eager")), passes_of(times("compiled", "compiled"))
    said = other_passes("the run", eager, "the times of t.json", compiled)
    assert said == (
        "the run has eager passes of the target and eager passes of the draft, but the times of t.json are "
        "of compiled ones, whose speed is predicted: run with models.passes=compiled "
        "models.draft_passes=compiled, or profile with models.passes=eager models.draft_passes=eager"
    )
    assert other_passes("the run", compiled, "the times", compiled) is None
    assert other_passes("the run", {}, "the times", compiled) is None
    of_draft = other_passes("the run", {"target": "eager", "draft": "compiled"}, "they", eager)
    assert "compiled passes of the draft, but they are of eager ones" in str(of_draft)
    assert "target" not in str(of_draft)


def test_a_run_and_times_of_its_pair_are_of_one_pair():
    """A run describes its models by mappings; a draft that comes with the target has the target's name."""
    assert different_pairs(run("eager"), times("eager")) is None
    brings = {"target": {"name": "embedded"}, "draft": {"name": "embedded"}}
    assert different_pairs(of(brings), of({"target": "embedded", "draft": None})) is None
    other = of({**ASKED, "draft": "another"})
    assert different_pairs(run("eager"), other) == ("draft small", "draft another")
