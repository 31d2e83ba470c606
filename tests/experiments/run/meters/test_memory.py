import sys
from pathlib import Path

import numpy as np
import pytest

from treespec.experiments.run.meters.memory import PROCESS, CudaMemory, ResidentMemory

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is Linux's")
def test_the_peak_is_that_of_the_prompt_not_of_the_process():
    meter = ResidentMemory()
    if "peak_rss_bytes" in meter.unavailable:
        pytest.skip(meter.unavailable["peak_rss_bytes"])
    meter.start()
    before = meter.stop()["peak_rss_bytes"]
    meter.start()
    large = np.ones(64 * MIB, dtype=np.uint8)
    del large
    grown = meter.stop()
    assert grown["peak_rss_bytes"] > before + 48 * MIB
    assert grown["rss_bytes"] < grown["peak_rss_bytes"] - 32 * MIB
    meter.start()
    assert meter.stop()["peak_rss_bytes"] < grown["peak_rss_bytes"] - 32 * MIB


def test_a_kernel_that_keeps_its_peak_gives_none(tmp_path):
    meter = ResidentMemory(tmp_path / "nowhere")
    assert "does not let a process reset its peak" in meter.unavailable["peak_rss_bytes"]
    meter.start()
    values = meter.stop()
    assert set(values) == {"rss_bytes"}
    assert values["rss_bytes"] > 10 * MIB


def test_the_peak_is_read_in_kilobytes(tmp_path):
    (tmp_path / "status").write_text("VmPeak:\t 99 kB\nVmHWM:\t  900000000 kB\nVmRSS:\t 1 kB\n")
    meter = ResidentMemory(tmp_path)
    meter.start()
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert meter.stop()["peak_rss_bytes"] == 900_000_000 * 1024
    (tmp_path / "status").write_text("VmHWM:\t  8 kB\n")  # lags behind the resident memory
    values = meter.stop()
    assert values["peak_rss_bytes"] == values["rss_bytes"]


def test_where_the_process_stands():
    assert Path("/proc/self") == PROCESS


class Cuda:
    def __init__(self):
        self.reset, self.peaks = [], {"cuda:0": 5, "cuda:1": 7}

    def reset_peak_memory_stats(self, device):
        self.reset.append(device)

    def max_memory_allocated(self, device):
        return self.peaks[device]


def test_cuda_peaks_add_up_over_devices():
    cuda = Cuda()
    meter = CudaMemory(["cuda:0", "cuda:1"], cuda)
    meter.start()
    assert cuda.reset == ["cuda:0", "cuda:1"]
    assert meter.stop() == {"peak_cuda_bytes": 12}
    none = CudaMemory([], cuda)
    none.start()
    assert none.stop() == {}
    assert none.unavailable == {"peak_cuda_bytes": "no model is on a CUDA device"}
