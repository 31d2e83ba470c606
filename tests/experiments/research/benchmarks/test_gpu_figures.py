"""Evaluation of the GPU figures: rooflines, medians, goals and the table."""

from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from treespec.experiments.measure import roofline
from treespec.experiments.measure.roofline import Heads, Peak, attention_floor, peak_of
from treespec.experiments.research.benchmarks.gpu import decode_times, timer
from treespec.experiments.research.benchmarks.gpu.candidates import CANDIDATES
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.gpu_tables import kernel_rows, render

CPU = torch.device("cpu")
LLAMA = Heads(32, 8, 128)


@pytest.fixture
def session(tmp_path):
    return Session(True, tmp_path, 1.0, Console(file=StringIO(), width=200))


# roofline


@pytest.mark.parametrize(
    ("name", "terabytes", "teraflops"),
    [
        ("NVIDIA H200", 4.8, 989),
        ("NVIDIA H100 80GB HBM3", 3.35, 989),
        ("NVIDIA H100 NVL", 3.9, 835),
        ("NVIDIA A100-SXM4-80GB", 2.039, 312),
        ("NVIDIA L4", 0.3, 121),
    ],
)
def test_peaks_of_data_sheets(name, terabytes, teraflops):
    assert peak_of(name) == Peak(terabytes * 1e12, teraflops * 1e12, "NVIDIA data sheet")


@pytest.mark.parametrize(
    "name", ["", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GH200 480GB", "NVIDIA L40"]
)
def test_other_devices_are_measured(name):
    assert peak_of(name) is None
    assert "measured" in roofline.measured_peak(CPU, tiny=True).source


def test_attention_floor_by_hand():
    peak = Peak(1e12, 100e12, "")
    floor = attention_floor(LLAMA, rows=8, keys=1000, itemsize=2, peak=peak)
    assert floor.bytes_us == pytest.approx((2 * 1000 * 8 * 128 * 2 + 2 * 8 * 32 * 128 * 2) / 1e6)
    assert floor.flops_us == pytest.approx(4 * 8 * 32 * 1000 * 128 / 100e6)
    assert (floor.us, floor.bound) == (floor.bytes_us, "memory")
    assert attention_floor(LLAMA, 64, 1000, 2, peak).bound == "compute"


@pytest.mark.parametrize("tied", [False, True])
def test_bytes_of_a_pass(tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, intermediate_size=32,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    layer = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32 + 2 * 16
    weights = 3 * layer + 16 + 50 * 16  # the head alone, tied or not
    cache = 7 * 3 * 2 * 2 * 4
    assert roofline.pass_bytes(model, 7) == 2 * (weights + cache)


# timer


def test_calls_take_turns_and_the_median_is_theirs():
    seen = []
    timing = timer.time_each([lambda i=i: seen.append(i) for i in range(3)], CPU, seconds=0.0)
    assert timing.samples == timer.FEWEST_SAMPLES
    assert set(seen) == {0, 1, 2}
    assert timing.low_us <= timing.median_us <= timing.high_us
    assert timer.time_captured([lambda: None], CPU, 0.0) is None
    assert timer.Timing.of([3e-6, 1e-6, 100e-6]).median_us == 3.0


def test_inputs_exceed_the_cache(monkeypatch):
    found = SimpleNamespace(L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    cuda = torch.device("cuda")
    assert timer.sets_needed(4 << 20, cuda) == 25
    assert timer.sets_needed(1 << 31, cuda) == 2
    assert timer.sets_needed(1, cuda) == timer.MOST_SETS


# table


def cell(candidate, us, *, rows=16, prefix=16384, heads=LLAMA, bytes_us=8.0, flops_us=4.0):
    figures = {"with_launch": {"median_us": 99.0}, "device": {"median_us": us}}
    if us is None:
        figures = {"error": "out of memory: too large"}
    return {
        "candidate": candidate, "heads": list(heads), "rows": rows, "prefix": prefix,
        "bytes_us": bytes_us, "flops_us": flops_us, **figures,
    }  # fmt: skip


def cells(**times):
    own = {name: times.pop(name) for name in list(times) if name in CANDIDATES}
    return {name: cell(name, us, **times) for name, us in own.items()}


def test_ratios_of_a_row():
    times = {"kernel": 10.0, "sdpa": 30.0, "flex": 12.5, "two_pass": 20.0, "flash": 9.0}
    (row,) = kernel_rows(cells(**times, cudnn=8.0))
    assert (row.fraction, row.floor.bound, row.launch_us) == (0.8, "memory", 99.0)
    assert (row.over(("flash", "cudnn")), row.over(("sdpa", "flex"))) == (1.25, 0.8)
    (row,) = kernel_rows(cells(kernel=10.0, flex=None))
    assert row.over(("flex",)) is None
    assert set(row.errors) == {"flex"}


def test_rows_without_a_kernel_have_no_ratios():
    (row,) = kernel_rows(cells(kernel=None, sdpa=4.0, flash=2.0))
    assert (row.fraction, row.over(("sdpa",))) == (None, None)
    without = cell("kernel", 1.0) | {"device": None}  # no graph: the time with its launch
    (row,) = kernel_rows({"kernel": without})
    assert row.us == {"kernel": 99.0}


def decode_cell(target, over):
    figures = {
        "tokens_per_step": 2.5, "tokens_per_second": 100.0, "ms_per_step": 4.0, "text": "1 2 3",
        "stage_ms": dict.fromkeys(decode_times.STAGES, 1.0), "verify_floor_ms": 3.0,
        "draft_floor_ms": 0.1, "verify_over_floor": 1.1, "step_over_floor": over,
    }  # fmt: skip
    case = decode_times.Case("1B", 0.0, "plain", target)
    return case._asdict() | (figures if over else {"unavailable": "no graphs"})


LIMITS = {"clocks.max.sm": "1980 MHz", "clocks.max.mem": "2619 MHz", "power.limit": "700.00 W"}


def clocks_of(sm, drawn):
    return LIMITS | {"clocks.sm": f"{sm} MHz", "clocks.mem": "2619 MHz", "power.draw": f"{drawn} W"}


def test_clocks_and_power_limits_stand_below_the_table(session, tmp_path, monkeypatch):
    """Of the device, and of each run where they were asked for; nothing where nobody said."""
    good = {"ratio": 1.0, "half_width": 0.01, "contains_1": True, "joules_per_token": 0.5}
    session.store("aa", cells=2).add("run 1", {"run": 1, **good, "clocks": {}})
    render(tmp_path, session.console)
    assert "Clocks" not in session.console.file.getvalue()
    monkeypatch.setattr(Session, "_device_facts", lambda session: clocks_of(345, "79.10"))
    store = session.store("aa", cells=3)
    for run, (sm, drawn) in enumerate(((1980, "402.00"), (975, "398.50"), (1755, "97.00"))):
        store.add(f"run {run}", {"run": run, **good, "clocks": clocks_of(sm, drawn)})
    render(tmp_path, session.console)
    words = " ".join(session.console.file.getvalue().split())
    assert "Clocks when the part began: SM 345 MHz of at most 1980 MHz, memory 2619 MHz of" in words
    assert "power limit 700.00 W, of which 79.10 W were drawn." in words
    assert (
        "SM 975 MHz to 1980 MHz, memory 2619 MHz; power limit 700.00 W, drawn 97.00 W to 402.00 W."
        in (words)
    )


def test_the_table_of_all_parts(session, tmp_path):
    kernels = session.store("kernels", cells=6)
    for name, own in cells(kernel=10.0, sdpa=30.0, flex=None, flash=7.0).items():
        kernels.add(name, own)
    decoding = session.store("decode", cells=2)
    decoding.add("a", decode_cell("eager", 1.1))
    decoding.add("b", decode_cell("graph", None))
    checked = session.store("accuracy", cells=1)
    good = {"error_max": 0.01, "of_bound": 0.5, "passed": True}
    checked.add("a", {"dtype": "bf16", "name": "plain", **good})
    checked.add("b", {"dtype": "bf16", "name": "window"} | good | {"passed": False})
    render(tmp_path, session.console)
    words = " ".join(session.console.file.getvalue().split())
    assert "32/8/128 16k 16 10.0 99.0 8.0 memory 0.80 1.43 0.33" in words
    assert "flex: out of memory: too large" in words
    assert "no graphs" in words
    assert "bf16 window 1 1.00e-02 0.50 FAILED" in words
    assert "DRY RUN" in words
