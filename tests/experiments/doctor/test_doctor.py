"""`treespec doctor`: its findings, its tests, and that its tests can fail."""

import json
import os
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from treespec.experiments.cli.main import app
from treespec.experiments.doctor import checkup, facts, print_checkup, self_test
from treespec.experiments.doctor.checkup import Checkup
from treespec.experiments.doctor.facts import Fact, Status
from treespec.experiments.doctor.self_test import Trial, attempt
from treespec.experiments.doctor.speed import TOO_BUSY, Speed, meaning, measure_speed
from treespec.experiments.records import manifest
from treespec.experiments.run import passes
from treespec.models.passes import choosing_passes

FACT = Fact("disk", Status.PROBLEM, "0.1 GiB free", "make room")
GOOD, BAD = Trial("a", True, "fine", 0.1), Trial("b", False, "not so", 0.2)
SPEED = Speed("cpu", "float32", {1: 10.0, 16: 11.0}, 25.0)


def text(found, width=110):
    out = StringIO()
    print_checkup(found, Console(file=out, width=width))
    return out.getvalue()


def test_quick_look_as_json(monkeypatch):
    loads = Trial("the embedded pair loads", True, "as another test sees", 0.1)
    monkeypatch.setattr(self_test, "pair_test", lambda: (loads, None))
    done = CliRunner().invoke(app, ["doctor", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert list(data) == ["version", "ok", "facts", "tests", "speeds", "said", "seconds"]
    assert data["seconds"] > 0
    found = {fact["name"]: fact for fact in data["facts"]}
    assert {
        "Python", "treespec", "torch", "vectors", "threads", "transformers", "triton",
        "tree attention, cpu", "memory", "disk", "other processes", "SLURM", "compiled passes",
    } <= set(found)  # fmt: skip
    assert {"GPU", "GPU 0"} & set(found)
    assert found["torch"]["value"].startswith(torch.__version__)
    assert found["treespec"]["status"] == "ok"
    assert found["vectors"]["value"] == torch.backends.cpu.get_cpu_capability()
    assert "sdpa" in found["tree attention, cpu"]["value"]
    assert {fact["status"] for fact in data["facts"]} <= {"ok", "missing", "problem"}
    assert [test["name"] for test in data["tests"]] == ["the embedded pair loads"]
    assert data["ok"] is True
    assert "unexpected" not in done.stdout


def test_rules_that_a_gpu_leaves_to_the_host(monkeypatch):
    assert facts.acceptance() == [] or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (fact,) = facts.acceptance()
    assert "rrsw" in fact.value
    assert "kseq" not in fact.value
    assert "kseq" in fact.advice


def test_all_questions_are_asked_even_if_one_fails(monkeypatch):
    def broken():
        raise OSError("no such device\nand more")

    monkeypatch.setitem(facts.QUESTIONS, "disk", broken)
    monkeypatch.setattr(self_test, "pair_test", lambda: (GOOD, None))
    found = checkup.examine(quick=True)
    (disk,) = [fact for fact in found.facts if fact.name == "disk"]
    assert disk.status is Status.PROBLEM
    assert disk.value == "no such device"
    assert found.facts[-1].name != "disk"
    assert found.ok


def test_a_failed_test_is_told_and_ends_with_exit_code_1(monkeypatch):
    monkeypatch.setattr(checkup, "QUESTIONS", {})
    monkeypatch.setattr(self_test, "pair_test", lambda: (BAD, None))
    done = CliRunner().invoke(app, ["doctor", "--quick"])
    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "failed (b)" in done.stdout
    assert "Traceback" not in done.output


def test_a_test_that_raises_has_failed():
    def broken():
        raise AssertionError("ids differ\nmore")

    trial = attempt("ids", broken)
    assert (trial.passed, trial.value) == (False, "ids differ")
    stopped = "an error inside the test 'division': division by zero"
    assert attempt("division", lambda: str(1 / 0)).value == stopped
    assert attempt("fine", lambda: "so").passed


def test_what_is_printed_says_what_to_do():
    shown = text(Checkup((FACT,), (GOOD, BAD), (SPEED,), ("Trees are free.",)))
    assert "-> make room" in shown
    assert "Trees are free." in shown
    assert "FAILED" in shown
    well = text(Checkup((FACT,), (GOOD,), (), ()))
    assert "Problems to look at: disk." in well
    assert all(len(line) <= 60 for line in text(Checkup((FACT,), (GOOD,), (), ()), 60).splitlines())


# -- tests of the tests -------------------------------------------------------------------------


@pytest.mark.usefixtures("without_shape_checks")
def test_the_generated_ids_are_compared(monkeypatch):
    import treespec

    monkeypatch.setattr(self_test, "NEW_TOKENS", 12)
    trial, pair = self_test.pair_test()
    assert trial.passed
    assert "M parameters" in trial.value
    assert "12 greedy tokens equal" in self_test.generation_agrees(pair)
    real = treespec.generate

    def wrong(*arguments, **more):
        found = real(*arguments, **more)
        return replace(found, tokens=(*found.tokens[:7], found.tokens[7] + 1, *found.tokens[8:]))

    monkeypatch.setattr(treespec, "generate", wrong)
    with pytest.raises(AssertionError, match="at new token 7"):
        self_test.generation_agrees(pair)


def test_implementations_of_attention_are_compared(monkeypatch):
    from attention_masks.tree_attention import IMPLEMENTATIONS, api

    said = self_test.attention_agrees("cpu")
    assert "sdpa" in said
    assert "agree with the reference" in said

    def wrong(q, k, v, tree_pass, options):
        return api.reference(q, k, v, tree_pass, options) + 1e-3

    monkeypatch.setitem(IMPLEMENTATIONS, "sdpa", wrong)
    with pytest.raises(AssertionError, match="sdpa differs"):
        self_test.attention_agrees("cpu")


def test_nothing_is_compiled_for_a_gpu_before_attention_is_compared():
    """It may take longer than all other tests together, which have a minute on a GPU."""
    assert self_test.compared_on("cuda") == ["sdpa", "two_pass", "triton"]
    assert self_test.compared_on("cpu") == ["sdpa", "two_pass", "flex", "triton"]


@pytest.mark.parametrize(("last_start", "begun"), [(1e9, 8), (0.0, 0)])
def test_a_slow_machine_with_a_gpu_leaves_tests_out(monkeypatch, last_start, begun):
    gpu = {"GPU": lambda: Fact("GPU 0", Status.OK, "pretended")}
    monkeypatch.setattr(facts, "QUESTIONS", gpu)
    monkeypatch.setattr(checkup, "QUESTIONS", gpu)
    monkeypatch.setattr(self_test, "pair_test", lambda: (GOOD, object()))
    monkeypatch.setattr(checkup, "LAST_START_S", last_start)
    tried = []
    monkeypatch.setattr(checkup, "attempt", lambda name, test: tried.append(name) or GOOD)
    found = checkup.examine()
    assert len(tried) == begun
    assert ("Left out" in " ".join(found.said)) == (begun == 0)
    assert found.ok
    assert "This took 0 s." in text(found)


# -- times --------------------------------------------------------------------------------------


def test_speed_is_of_what_was_timed(monkeypatch):
    from treespec.experiments.doctor import speed

    monkeypatch.setattr(speed, "WIDTH", 256)
    monkeypatch.setattr(speed, "REPEATS", 1)
    found = measure_speed("cpu", "float32")
    assert list(found.pass_ms) == [1, 16]
    assert min(found.pass_ms.values()) > 0


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (11.0, "nearly free to verify"),
        (20.0, "more than 2.0 tokens per step"),
        (80.0, "Chains and small"),
    ],
)
def test_what_times_mean(ms, words):
    said, _ = meaning([replace(SPEED, pass_ms={1: 10.0, 16: ms})], busy=False)
    assert f"costs {ms / 10:.2f} times one" in said
    assert words in said


def test_the_only_advice_on_the_dtype_is_to_measure_it_with_the_models():
    slow = replace(SPEED, dtype="bfloat16", pass_ms={1: 5.0, 16: 50.0})
    said = meaning([SPEED, slow], busy=False)
    assert len(said) == 3
    assert "models.dtype=fastest" in said[-1]
    assert "models.dtype" not in " ".join(said[:-1])


def test_a_busy_machine_gets_no_advice():
    assert meaning([SPEED], busy=True) == (TOO_BUSY,)
    assert meaning([], busy=True) == ()


# -- the machine --------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a shell script first on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def make(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_slurm_needs_sbatch_and_submitit(program, monkeypatch):
    program("sbatch", "true")
    monkeypatch.setattr(facts.util, "find_spec", lambda name: None)
    assert "pip install submitit" in facts.slurm().advice
    monkeypatch.setattr(facts.util, "find_spec", lambda name: name)
    assert facts.slurm().status is Status.OK
    monkeypatch.setenv("PATH", "")
    assert facts.slurm().status is Status.MISSING


def test_a_gpu_that_torch_does_not_see(program, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    program("nvidia-smi", "true")
    monkeypatch.setattr(torch.version, "cuda", None)
    (fact,) = facts.gpus()
    assert fact.status is Status.PROBLEM
    assert "CUDA build" in fact.advice
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    assert "CUDA_VISIBLE_DEVICES" in facts.gpus()[0].advice
    monkeypatch.setenv("PATH", "")
    assert facts.gpus()[0].status is Status.MISSING


def test_threads_and_vectors(monkeypatch):
    monkeypatch.setattr(manifest, "environment", lambda: {"hardware": {"cores": 4}})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = {fact.name: fact for fact in facts.processor()}
    assert found["threads"].status is Status.PROBLEM
    assert "OMP_NUM_THREADS=4" in found["threads"].advice
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert {fact.name: fact for fact in facts.processor()}["vectors"].status is Status.PROBLEM


def test_whether_passes_can_be_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "sh")  # a program that is there
    assert facts.compiler().status is Status.OK
    monkeypatch.setenv("CXX", "no-such-compiler")
    fact = facts.compiler()
    assert fact.status is Status.MISSING
    assert "'no-such-compiler' is not found" in fact.value
    assert "eager" in fact.advice


def test_a_folder_without_room_or_leave_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "LEAST_DISK_GIB", 1e9)
    assert facts.disk().status is Status.PROBLEM
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in facts.disk().value


@pytest.mark.slow
def test_the_whole_self_test(monkeypatch):
    monkeypatch.setattr(facts, "busy_percent", lambda: 0.0)  # tests run beside each other
    monkeypatch.setattr(checkup.LoadWatch, "busy_percent", lambda watch: 0.0)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    for words in (
        "Everything is fine",
        "agree with the reference",
        "times one",
    ):
        assert words in " ".join(done.stdout.split())


def test_the_twin_says_what_can_be_told_apart(loaded_pair, monkeypatch):
    """Without choosing a dtype or passes, which would measure and compile for minutes."""
    monkeypatch.delenv("TREESPEC_EAGER")
    for module, name in ((passes, "choose"), (choosing_passes, "_compile")):
        monkeypatch.setattr(module, name, None)
    said = self_test.tell_apart(loaded_pair)
    assert said.startswith("a run of 6 prompts could tell apart ")
    assert "two identical copies of plain" in said
