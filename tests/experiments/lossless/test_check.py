"""`treespec check-lossless` on the tiny pair: verdicts, what it prints and writes, wrong input."""

import io
import json
import os
from dataclasses import replace

import pytest
import torch
import yaml
from rich.console import Console
from typer.testing import CliRunner

from treespec import Law, Sampling, TorchCoins, TreeShape, decode
from treespec.draft import ModelDrafter, NoDrafter
from treespec.experiments.cli.main import app
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import ConfigError
from treespec.experiments.lossless.check import check_lossless
from treespec.experiments.lossless.check_passes import PassMemory, RememberingModel
from treespec.experiments.lossless.check_text import print_check, verdict
from treespec.experiments.lossless.greedy import split
from treespec.experiments.lossless.law import LawChecker
from treespec.experiments.lossless.samples import KeptSamples, Texts, code_hash
from treespec.experiments.report.equality import near_tie_margin
from treespec.step import Verdict
from treespec.target import ModelTarget
from treespec.testing.planted import planted
from treespec.verify import RULES, naive, rrsw
from treespec.verify.rule import rule

CHAIN = {"kind": "tree", "shape": {"kind": "chain", "depth": 2}}
TREE = {"kind": "tree", "shape": {"kind": "expansion", "branching": [2, 1]}, "rule": "rrsw"}
SMALL = ("--samples", "60", "--tokens", "2", "--prompts", "1")
WARM = [{"temperature": 3.0}]
"""The tiny models are confident; a high temperature flattens their laws."""


@pytest.fixture
def call(settings, tmp_path, monkeypatch):
    """Call `treespec check-lossless` in an empty folder with a small config in `exp.yaml`."""
    monkeypatch.chdir(tmp_path)
    methods = [{"kind": "plain"}, CHAIN, TREE]
    small = settings | {"methods": methods, "samplings": [{"temperature": 0}, *WARM]}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(small))

    def call(*arguments):
        return CliRunner().invoke(app, ["check-lossless", *map(os.fspath, arguments)])

    return call


def config_of(settings, **changes):
    return Config.model_validate(settings | {"methods": [TREE]} | changes)


def refused(result, *parts):
    assert result.exit_code == 2, result.output + result.stderr
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr, result.stderr


def printed(console):
    return " ".join(console.file.getvalue().split())


@pytest.mark.usefixtures("without_shape_checks")
def test_lossless_methods_pass(call, tmp_path):
    result = call("exp.yaml", *SMALL, "--out", "found")
    assert result.exit_code == 0, result.output + result.stderr
    for part in (
        "T=0: texts equal to those of plain greedy decoding",
        "T=3: joint law of 2 tokens, against the exact law of plain decoding",
        "fails is at most 0.001 over all 3 comparisons",
        "No loss was found: 6 comparisons.",
    ):
        assert part in " ".join(result.output.split()), result.output
    assert max(map(len, result.output.splitlines())) <= 120
    data = json.loads((tmp_path / "found" / "check.json").read_text())
    assert data["passed"] is True
    assert {"git_hash", "versions", "hardware", "seed", "config", "false_alarm"} <= set(data)
    assert [row["method"] for row in data["laws"]] == [
        "plain",
        "chain 2",
        "expansion 2x1 (rrsw)",
    ]
    assert all(row["comparison"]["samples"] == 60 for row in data["laws"])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("cut", [False, True])
def test_a_check_that_was_stopped_goes_on(call, tmp_path, monkeypatch, cut):
    warm = ("exp.yaml", "samplings=[{temperature: 3.0}]", "prompts.count=2", *SMALL[:-1], "2")
    assert call(*warm, "--out", "whole").exit_code == 0
    sampled, done = LawChecker._sampled, []

    def stopping(self, method, name, prompt):
        done.append((method.name, prompt))
        if len(done) == 4:
            raise KeyboardInterrupt
        return sampled(self, method, name, prompt)

    monkeypatch.setattr(LawChecker, "_sampled", stopping)
    assert call(*warm, "--out", "parts").exit_code != 0
    kept = tmp_path / "parts" / "samples.jsonl"
    assert len(kept.read_text().splitlines()) == 1 + 3
    refused(call(*warm, "seed=5", "--out", "parts"), "samples.jsonl", "texts of another check")
    if cut:
        kept.write_bytes(kept.read_bytes()[:-5])
    done += [None] * 4
    result = call(*warm, "--out", "parts")
    assert result.exit_code == 0, result.output + result.stderr
    again = [one for one in done if one is not None]
    assert (
        len(again) == len(set(again)) + 1 + cut
    )  # the one that was stopped, and the one cut short
    whole, parts = (
        json.loads((tmp_path / f / "check.json").read_text()) for f in ("whole", "parts")
    )
    for row in (*whole["laws"], *parts["laws"]):
        del row["seconds"]
    assert parts["laws"] == whole["laws"]
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["check.json"]


def test_texts_of_other_code_are_not_taken(tmp_path):
    about = {"code": code_hash(), "sizes": (1, 2)}
    kept = KeptSamples(tmp_path, about)
    kept.add("T=1", "tree", 0, Texts([[0, 7]], 0.5))
    assert KeptSamples(tmp_path, about).of("T=1", "tree", 0) == ([[0, 7]], 0.5)
    assert KeptSamples(tmp_path, about).of("T=1", "tree", 1) is None
    with pytest.raises(ConfigError, match="or of other code: remove it"):
        KeptSamples(tmp_path, about | {"code": "another"})
    kept.path.write_text("")
    with pytest.raises(ConfigError, match="texts of another check"):
        KeptSamples(tmp_path, about)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_planted_bias_fails(call, monkeypatch):
    monkeypatch.setitem(RULES, "rrsw", planted(rrsw, 0.4))
    arguments = ("exp.yaml", "--samples", "120", "--tokens", "1", "--prompts", "1")
    result = call(*arguments, "samplings=[{temperature: 3.0}]")
    assert result.exit_code == 1, result.output + result.stderr
    flat = " ".join(result.output.split())
    assert "FAILED" in flat
    assert "largest deviation:" in flat
    assert "NOT LOSSLESS: expansion 2x1 (rrsw) at T=3" in flat
    quiet = call(*arguments, "samplings=[{temperature: 3.0}]", f"methods=[{TREE}]", "-q")
    assert quiet.exit_code == 1
    assert quiet.output.count("NOT LOSSLESS") == 1


@pytest.mark.usefixtures("without_shape_checks")
def test_a_lossy_rule_is_called_lossy_and_does_not_fail(settings, loaded_pair, monkeypatch):
    lossy = rule(laws=rrsw.laws, reference="none", lossless=False)(planted(rrsw, 0.4))
    monkeypatch.setitem(RULES, "rrsw", lossy)
    check = check_lossless(
        config_of(settings, samplings=WARM),
        samples=120,
        tokens=1,
        prompts=1,
        load=lambda config: loaded_pair,
    )
    assert not check.failed
    assert not check.laws[0].comparison.passed
    console = Console(width=120, file=io.StringIO())
    print_check(check, console)
    assert "lossy: measurable" in printed(console)
    assert "lossy by design do not count" in verdict(check)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("cut", "warned"),
    [
        ({"top_k": 20}, True),
        ({"top_p": 1.0, "min_p": 0.0}, False),
    ],
)
def test_rounding_at_a_cut_is_warned_of(settings, loaded_pair, cut, warned):
    check = check_lossless(
        config_of(settings, samplings=[{"temperature": 3.0} | cut]),
        samples=60,
        tokens=1,
        prompts=1,
        load=lambda config: loaded_pair,
    )
    console = Console(width=120, file=io.StringIO())
    print_check(check, console)
    assert ("A token within rounding of the cut" in printed(console)) == warned


def test_a_greedy_divergence_is_shown_with_its_margin(settings, loaded_pair, monkeypatch):
    from treespec.experiments.lossless import check as module

    honest = module.decode_ours

    def wrong(pair, method, *arguments, **more):
        first, *rest = honest(pair, method, *arguments, **more)
        if method.kind == "tree":
            verdict = Verdict((0,), (first.text[0] + 1) % 100)
            first = replace(first, verdict=verdict, kept=1)
        yield from (first, *rest)

    monkeypatch.setattr(module, "decode_ours", wrong)
    check = check_lossless(
        config_of(settings, samplings=[{"temperature": 0}]), load=lambda config: loaded_pair
    )
    (row,) = check.greedy
    assert row.failed
    assert len(row.generate) == len(row.plain) == row.compared == 2
    assert all(s.position == 0 and s.top_two > 0 and s.units > 1 for s in row.splits)
    console = Console(width=120, file=io.StringIO())
    print_check(check, console)
    text = printed(console)
    assert "NOT a near-tie" in text
    assert "top-2 margin" in text
    assert "0 of 2 divergences are near-ties" in text


def test_split_measures_the_targets_own_decision(loaded_pair):
    prompt = ("p", (5, 6, 7))
    with loaded_pair.target.as_transformers() as model, torch.inference_mode():
        logits = model(torch.tensor([prompt[1]])).logits[0, -1].double()
    (best, second), (first, other) = (x.tolist() for x in logits.topk(2))
    assert split(loaded_pair, Sampling(0.0), prompt, (first, 3), (first, 3)) is None
    found = split(loaded_pair, Sampling(0.0), prompt, (other, 1), (first, 2))
    assert found is not None
    assert (found.position, found.token, found.reference_token) == (0, other, first)
    assert found.margin == pytest.approx(best - second, abs=1e-5)
    assert found.top_two == pytest.approx(best - second, abs=1e-5)
    assert found.near_tie == (found.margin <= near_tie_margin("float32"))
    shorter = split(loaded_pair, Sampling(0.0), prompt, (first,), (first, 2))
    assert shorter is not None
    assert (shorter.position, shorter.margin, shorter.near_tie) == (1, None, False)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("temperature", [3.0, 1.0])
def test_remembered_passes_change_no_token(loaded_pair, temperature):
    """Drafters whose trees repeat, drafters whose trees differ, and a memory that forgets at once."""
    sampling, prompts = Sampling(temperature), ([5, 6, 7, 8], [9])
    for law, verifier in ((Law.WITHOUT_REPLACEMENT, rrsw), (Law.DETERMINISTIC, naive)):
        texts = []
        for budget in (None, 1 << 28, 1):
            models = loaded_pair.target, loaded_pair.draft
            if budget is not None:
                models = [RememberingModel(m, PassMemory(budget)) for m in models]
            target = ModelTarget(models[0])
            drafter = ModelDrafter(models[1], TreeShape.expansion([2, 2]), law, sampling)
            coins, found = TorchCoins(0), []
            for i in range(12):
                for drafting, rule_of in ((drafter, verifier), (NoDrafter(), naive)):
                    steps = decode(
                        target, drafting, rule_of, torch.tensor(prompts[i % 2]), sampling=sampling,
                        coins=coins, max_new_tokens=5,
                    )  # fmt: skip
                    found.append([token for step in steps for token in step.tokens])
            texts.append(found)
            if budget == 1 << 28:
                memory = models[0].memory
                assert 0 < memory.recalled < memory.asked
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["methods=[{kind: plain}]"], ["no method of kind 'tree'", "kinds here: plain"]),
        (["--samples", "3"], ["4 samples", "take at least"]),
        (["--samples", "0"], ["--samples = 0: must be at least 1"]),
        (["--tokens", "0"], ["--tokens = 0: must be at least 1"]),
        (["--prompts", "0"], ["--prompts = 0: must be at least 1"]),
        (["--false-alarm", "0"], ["--false-alarm = 0: must be between 0 and 1"]),
        (["--false-alarm", "1.5"], ["--false-alarm = 1.5: must be between 0 and 1"]),
        (["--tokens", "200"], ["200 new tokens"]),
        (["sampling=1"], ["unknown key", "samplings"]),
        (["methods[2].rule=rrws"], ["methods[2].rule: unknown 'rrws'"]),
        (["models.target=/nowhere/model"], ["/nowhere/model"]),
        (["prompts.count=99"], ["prompts.count = 99"]),
    ],
)
def test_wrong_input(call, arguments, parts):
    refused(call("exp.yaml", "samplings=[{temperature: 3.0}]", *arguments), *parts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("biased", [False, True])
def test_ten_thousand_samples_of_the_embedded_pair(biased, monkeypatch):
    """A bias of total variation 0.05 at the first root fails; without it the check passes."""
    from treespec.experiments.config.file import load_config
    from treespec.experiments.run.models import load_models
    from treespec.experiments.run.prompts import encode, read_prompts

    tree = "{kind: tree, shape: {kind: expansion, branching: [3]}, rule: rrsw}"
    config = load_config(
        "check_lossless", ["samplings=[{temperature: 1}]", f"methods=[{tree}]", "prompts.count=1"]
    )
    pair = load_models(config.models)
    if biased:
        ids = encode(read_prompts(config.prompts)[:1], config.prompts, pair.tokenizer)[0].ids
        monkeypatch.setitem(RULES, "rrsw", planted(rrsw, 0.05, root=ids[-1]))
    check = check_lossless(
        config,
        samples=10_000,
        tokens=1 if biased else 2,
        prompts=1,
        false_alarm=1e-3,
        load=lambda models: pair,
    )
    assert bool(check.failed) == biased
    assert check.laws[0].comparison.samples == 10_000


def test_the_shipped_config_covers_every_law():
    from treespec.experiments.config.build import build
    from treespec.experiments.config.file import load_config

    experiment = build(load_config("check_lossless"))
    choices = [m.choices["T=1"] for m in experiment.methods if m.kind == "tree"]
    assert {choice.law for choice in choices} == set(Law)
