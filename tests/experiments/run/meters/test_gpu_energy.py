"""NVML, with a stand-in for it."""

import sys

import pytest

from treespec.errors import Unavailable
from treespec.experiments.run.meters import energy
from treespec.experiments.run.meters.energy import Nvml, find_gpu_energy


class NVMLError(Exception):
    pass


class FakeNvml:
    NVMLError = NVMLError

    def __init__(self, counters, refuse=False):
        self.counters, self.refuse = counters, refuse

    def nvmlInit(self):  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid not in self.counters:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if self.refuse:
            raise NVMLError("Not Supported")
        return self.counters[handle]


def test_millijoules_of_all_gpus_add_up():
    nvml = FakeNvml({"GPU-a": 1000, "GPU-b": 5000, "GPU-c": 0})
    source = Nvml(nvml, ["GPU-a", "GPU-b"])
    assert source.name == "NVML, 2 GPUs"
    source.begin()
    nvml.counters |= {"GPU-a": 2500, "GPU-b": 5500, "GPU-c": 9999}
    assert source.end(1.0) == 2.0


@pytest.mark.parametrize("after", [1000, 400])
def test_a_counter_that_stands_still_or_was_set_back_gives_nothing(after):
    nvml = FakeNvml({"GPU-a": 1000, "GPU-b": 1000})
    source = Nvml(nvml, ["GPU-a", "GPU-b"])
    source.begin()
    nvml.counters |= {"GPU-a": after, "GPU-b": 3000}
    assert source.end(0.01) is None


def test_a_gpu_that_does_not_tell():
    with pytest.raises(Unavailable, match="NVML: Not Supported"):
        Nvml(FakeNvml({"GPU-a": 1}, refuse=True), ["GPU-a"])
    with pytest.raises(Unavailable, match="NVML: Not Found"):
        Nvml(FakeNvml({}), ["GPU-a"])


def test_nvml_or_a_reason(monkeypatch):
    monkeypatch.setattr(energy, "_uuid", lambda index: f"GPU-{'abc'[index]}")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({"GPU-a": 1}))
    assert isinstance(find_gpu_energy([0]), Nvml)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unavailable, match="nvidia-ml-py"):
        find_gpu_energy([0])
    with pytest.raises(Unavailable, match="no model is on a CUDA device"):
        find_gpu_energy([])
