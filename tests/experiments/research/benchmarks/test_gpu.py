"""The GPU benchmarks: what a killed run keeps, how failures are handled, and a dry run of the command."""

import json
import os
import subprocess
import sys
from io import StringIO
from itertools import product

import pytest
import torch
from rich.console import Console
from tiny_models import build

from treespec import Law, TokenTree, TorchCoins, TreeShape
from treespec.experiments.measure.roofline import Heads
from treespec.experiments.research.benchmarks.gpu import __main__ as command
from treespec.experiments.research.benchmarks.gpu import a_a as aa
from treespec.experiments.research.benchmarks.gpu import (
    accuracy,
    decode_times,
    gpu_tables,
    kernel_times,
    layer_times,
    peers,
    plan_times,
    real_text,
    step_kernels,
    wide_words,
)
from treespec.experiments.research.benchmarks.gpu.candidates import (
    CANDIDATES,
    Case,
    call_of,
    inputs_of,
)
from treespec.experiments.research.benchmarks.gpu.fast_loop import FastLoop
from treespec.experiments.research.benchmarks.gpu.gpu_session import BrokenDevice, Session, Store
from treespec.experiments.research.benchmarks.results_file import RESULTS

CPU = torch.device("cpu")
LATER = float("inf")
LLAMA = Heads(32, 8, 128)


@pytest.fixture
def session(tmp_path):
    return Session(True, tmp_path, 1.0, Console(file=StringIO(), width=200))


def read(folder, part):
    (path,) = folder.glob(f"gpu_{part}-*.json")
    return json.loads(path.read_text())


# store


def test_a_killed_run_keeps_what_it_has(tmp_path):
    store = Store("gpu_x", tmp_path, {"dry": True})
    store.add("a", {"us": 1})
    store.add("b", {"us": 2})
    assert json.loads(store.path.read_text())["cells"] == {"a": {"us": 1}, "b": {"us": 2}}


def test_a_run_continues_where_the_last_one_ended(session, monkeypatch):
    """Cells of the same code and settings are kept, but for those that failed."""
    cells = iter([{"ms": 1}, {"error": "out of memory"}, {"ms": 3}])
    todo = [aa.Case(1), aa.Case(2), aa.Case(3)]
    store = session.store("x", cells=3)
    for case in session.each("x", todo, LATER, store):
        store.add(case.key, next(cells))
    again = session.store("x", cells=3)
    assert [case.run for case in session.each("x", todo, LATER, again)] == [2]
    assert not session.store("x", cells=4).cells
    monkeypatch.setattr(again, "_head", again._head | {"source_hash": "other"})
    again.add("run 1", {"ms": 1})
    assert not session.store("x", cells=3).cells


# parts


@pytest.mark.parametrize("size", decode_times.LLAMA)
def test_the_embedded_target_is_enlarged_to_every_shape(size):
    from importlib.resources import files

    from transformers import AutoConfig

    from treespec.models.variants.enlarged_shape import parameter_count, shape_to

    config = AutoConfig.from_pretrained(str(files("treespec").joinpath("embedded/target")))
    billions = parameter_count(config, shape_to(config, decode_times.LLAMA[size])) / 1e9
    assert 0.85 * float(size[:-1]) < billions < 1.05 * float(size[:-1])


@pytest.mark.parametrize("name", ["sdpa", "two_pass", "flash"])
def test_candidates_see_what_they_claim(name):
    case = Case(Heads(4, 2, 16), 5, 11)
    (own,) = inputs_of(case, 1, CPU, torch.float32)
    q, keys, values = (x.double() for x in own)
    keys, values = (x[:, :, :16].repeat_interleave(2, dim=1) for x in (keys, values))
    scores = q @ keys.mT / 4
    if name != "flash":
        scores[..., 11:].masked_fill_(~_below(5, 3), -torch.inf)
    expected = scores.softmax(-1) @ values
    torch.testing.assert_close(call_of(name, case)(own).double(), expected, atol=1e-5, rtol=1e-5)


def test_plans_that_are_compared(monkeypatch):
    monkeypatch.setattr(plan_times, "device_properties", lambda device: (132, 9))
    short = plan_times.plans_of(Case(LLAMA, 16, 1 << 10), CPU)
    assert [*short] == [plan_times.PLANNED, plan_times.TWO_LAUNCHES]
    assert [plan.in_place for plan in short.values()] == [True, False]
    long = plan_times.plans_of(Case(LLAMA, 256, 128 << 10), CPU)
    assert [*long] == [plan_times.TWO_LAUNCHES, "128x128x8x2", "128x128x8x3", "128x32x4x3"]
    assert {plan.tile.block_m for plan in long.values()} == {128}


def _below(count, branching):
    """Whether row i attends to node j."""
    seen = torch.eye(count, dtype=torch.bool)
    for i in range(1, count):
        seen[i] |= seen[(i - 1) // branching]
    return seen


def wrong_sum(real, **given):
    return real(**given, impl="reference") * 1.1


def wrong_window(real, **given):
    return real(**given | {"window": 4}, impl="reference")


def wrong_pages(real, **given):
    given["block_table"] = given["block_table"].flip(1)
    return real(**given, impl="reference")


def right(real, **given):
    return real(**given, impl="reference")


@pytest.mark.parametrize(
    ("kernel", "passes"),
    [(right, True), (wrong_sum, False), (wrong_window, False), (wrong_pages, False)],
)
def test_accuracy_notices_what_is_wrong(monkeypatch, kernel, passes):
    """Replace the kernel by the reference, and by the reference with a fault."""
    real = accuracy.attend

    def attend(q, *args, impl, **given):
        return (
            kernel(real, q=q, **given) if impl == "triton" else real(q, *args, impl=impl, **given)
        )

    monkeypatch.setattr(accuracy, "attend", attend)
    options = (("window", 5), ("page", 16))
    case = accuracy.Case("bf16", Heads(4, 2, 16), 9, 40, "both", options)
    assert accuracy.check(case, CPU)["passed"] is passes


def test_acceptance_of_a_real_text_is_replayed():
    """A text's steps keep what the recorded ones kept, in the recorded order."""
    rule = real_text.ReplayedAcceptance([[], [1, 0], [0]])
    tree = TokenTree(TreeShape.expansion([2, 1]), torch.arange(5), None, Law.DETERMINISTIC)
    rows = torch.eye(8)[torch.arange(5) + 2]
    verdicts = [rule(tree, rows, TorchCoins(0)) for _ in range(4)]
    assert [verdict.path for verdict in verdicts] == [(0,), (0, 2, 4), (0, 1), (0,)]
    assert [verdict.bonus for verdict in verdicts] == [2, 6, 3, 2]


@pytest.mark.parametrize("method", ["chain 4", "tree 3x2x1x1"])
def test_the_trace_fits_the_trees_that_replay_it(method):
    shape = decode_times.SHAPES[method]
    tree = TokenTree(shape, torch.arange(shape.size), None, Law.DETERMINISTIC)
    rule, rows = real_text.replayed(method, 1), torch.eye(shape.size)
    emitted = [rule(tree, rows, TorchCoins(0)).emitted for _ in range(400)]
    assert len(set(emitted)) == 5
    assert 1.5 < sum(emitted) / 400 < 2.5
    assert "smollm2-eagle3" in real_text.origin()


def test_the_fast_loop_decodes_as_generate_does():
    model = build("llama").eval()
    prompt = torch.tensor([5, 3, 8, 1, 9])
    right = model.generate(prompt[None], max_new_tokens=12, do_sample=False, eos_token_id=None)
    found = FastLoop(model, 5 + 12, compiled=False)(prompt, 12)
    assert found == right[0, 5:].tolist()
    assert len(set(found)) > 2


def test_peers_decode_the_same_text(session):
    peers.run(session, LATER)
    (cell,) = read(session.folder, "peers")["cells"].values()
    assert cell.get("unavailable") == {}, cell
    assert cell["fast_loop_attention"] in ("math", "flash_attention")
    assert cell["same_ids"] == dict.fromkeys((peers.OURS, *peers.PEERS), peers.DRY_NEW)
    assert {*cell["ours_over"]} == {*peers.PEERS}


def test_a_baseline_that_fails_is_written_down(session, monkeypatch):
    def measured(session, case, name, sets):
        if name == "flex":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nand more")
        return {"with_launch": {"median_us": 5.0}, "device": {"median_us": 2.0}}

    monkeypatch.setattr(kernel_times, "_times", measured)
    kernel_times.run(session, LATER)
    cells = read(session.folder, "kernels")["cells"]
    count = len(kernel_times.cases(True))
    assert len(cells) == len(CANDIDATES) * count
    errors = [cell["error"] for cell in cells.values() if "error" in cell]
    assert errors == ["CUDA out of memory. Tried 2 GiB"] * count
    assert not session.failures


def test_parts_are_in_the_order_of_their_value():
    ends = [*command.ENDS_AT_SHARE.values()]
    assert [*command.ENDS_AT_SHARE] == [*command.PARTS] == [*gpu_tables.FINDINGS]
    assert ends == sorted(ends)
    first = (layer_times, step_kernels, decode_times)
    assert all(part.cases(False)[0].size == "8B" for part in first)
    assert [case.compiled for case in layer_times.cases(False)] == [True] * 4 + [False] * 4
    every = decode_times.cases(False)
    fastest = [case for case in every if case.is_fastest]
    assert fastest == every[: len(fastest)]
    assert len({(case.size, case.words) for case in fastest}) == 2 * len(decode_times.LLAMA)


@pytest.mark.parametrize("part", [layer_times, step_kernels, decode_times])
def test_cells_with_as_many_words_as_llama(part):
    """And a part that goes on takes no cell for another, whose key its key begins."""
    wide = {case for case in part.cases(False) if case.words == wide_words.LLAMA_WORDS}
    assert {case.size for case in wide} >= {"8B", "1B"}
    if part is step_kernels:
        assert {case.size for case in wide if case.real_text} == {"8B", "1B"}
    if part is decode_times:
        ways = {(case.method, case.target) for case in wide if case.real_text}
        assert ways == {*product(("chain 4", "tree 3x2x1x1"), ("graphs", "graph"))}
    keys = [case.key for case in part.cases(False)]
    assert len(set(keys)) == len(keys)
    assert not [(a, b) for a in keys for b in keys if b.startswith(f"{a} ")]


def test_nothing_is_begun_when_the_time_is_over(session, monkeypatch):
    for part, name in ((kernel_times, "_measure"), (accuracy, "check"), (decode_times, "_cell")):
        monkeypatch.setattr(part, name, lambda *args: pytest.fail("begun"))
        part.run(session, 0.0)


def test_a_failing_kernel_is_a_failure_and_is_written_down(session, monkeypatch):
    def broken(session, case, name, sets):
        raise ArithmeticError(f"{name} is off")

    monkeypatch.setattr(kernel_times, "_times", broken)
    kernel_times.run(session, LATER)
    assert len(session.failures) == len(kernel_times.cases(True))  # baselines may fail
    monkeypatch.setattr(accuracy, "check", lambda case, device: {"passed": False, "of_bound": 3.0})
    session.failures.clear()
    accuracy.run(session, LATER)
    assert len(session.failures) == len(accuracy.cases(True))


def test_a_device_that_is_gone_ends_the_run(session, monkeypatch):
    def gone(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    session.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    with pytest.raises(BrokenDevice, match="illegal memory access"):
        session.recover("flex")


# the command


def run(*arguments):
    line = [sys.executable, "-m", "treespec.experiments.research.benchmarks.gpu", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_the_dry_run_goes_to_its_end(tmp_path):
    before = sorted((path.name, path.stat().st_mtime) for path in RESULTS.iterdir())
    done = run("all", "--dry", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "figures mean nothing" in done.stdout
    checked = read(tmp_path, "accuracy")
    assert len(checked["cells"]) == len(accuracy.cases(True)) == checked["settings"]["cells"]
    assert all(own["passed"] for own in checked["cells"].values())
    kernels = read(tmp_path, "kernels")
    assert len(kernels["cells"]) == len(kernel_times.cases(True)) * len(CANDIDATES)
    for own in kernels["cells"].values():
        assert ("error" in own) == (own["candidate"] == "cudnn")  # not on CPUs, and written down
        if own["candidate"] == "kernel":
            assert own["disagreement"] < kernel_times.LARGEST_DEVIATION
    decoding = read(tmp_path, "decode")
    for own in decoding["cells"].values():
        assert ("unavailable" in own) == (own["target"] != "eager")
    eager = [own for own in decoding["cells"].values() if own["target"] == "eager"]
    again = [own for own in eager if own["real_text"]]
    eager = [own for own in eager if not own["real_text"]]
    assert [own["nodes"] for own in again] == [5, 22]
    assert not any("text" in own for own in again), "a replayed text is meaningless"
    assert [own["nodes"] for own in eager] == [1, 5, 22] * 2
    assert [own["draft_passes_per_step"] > 0 for own in eager] == [False, True, True] * 2
    assert len({own["text"] for own in eager}) == 1, "with more words the texts stay"
    assert all(0 < own.get("mass_of_further_words", 1e-6) < 1e-3 for own in eager)
    for data in (checked, kernels, decoding):
        assert data["dry"] is True
        assert data["hardware"]["cpu"]
        assert data["versions"]["torch"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}
    assert before == sorted((path.name, path.stat().st_mtime) for path in RESULTS.iterdir())


def test_a_dry_run_leaves_no_figures_among_the_measured(tmp_path):
    assert command.folder_of(RESULTS, dry=False) == RESULTS
    assert command.folder_of(None, dry=False) == RESULTS
    assert command.folder_of(tmp_path, dry=True) == tmp_path
    elsewhere = command.folder_of(None, dry=True)
    assert RESULTS not in (elsewhere, *elsewhere.parents)
    elsewhere.rmdir()
