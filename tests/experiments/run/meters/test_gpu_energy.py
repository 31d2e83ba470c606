"""NVML and zeus, with stand-ins for both."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from treespec.errors import Unavailable
from treespec.experiments.run.meters import energy
from treespec.experiments.run.meters.energy import Nvml, Zeus, find_gpu_energy


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


class FakeMonitor:
    def __init__(self, gpu_indices, cpu_indices):
        if 9 in gpu_indices:
            raise RuntimeError("no such GPU")
        assert cpu_indices == []
        self.gpus, self.open, self.joules = gpu_indices, False, 3.0

    def begin_window(self, key, sync_execution):
        assert not self.open
        self.open = True

    def end_window(self, key, sync_execution, cancel=False):
        assert self.open
        self.open = False
        return SimpleNamespace(gpu_energy=dict.fromkeys(self.gpus, self.joules))


def test_zeus_adds_its_gpus_up_and_survives_a_failed_prompt():
    source = Zeus(SimpleNamespace(ZeusMonitor=FakeMonitor), [0, 1])
    source.begin()
    source.begin()  # the previous prompt failed
    assert source.end(1.0) == 6.0
    source._monitor.joules = 0.0  # the window was shorter than the counter's step
    source.begin()
    assert source.end(0.01) is None
    with pytest.raises(Unavailable, match="zeus: no such GPU"):
        Zeus(SimpleNamespace(ZeusMonitor=FakeMonitor), [9])


def module(name, **members):
    made = ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
    return made


@pytest.fixture
def installed(monkeypatch):
    """Set which of the two packages are installed."""

    def installed(zeus=None, pynvml=None):
        package = None if zeus is None else module("zeus", monitor=zeus)
        for name, own in (("zeus", package), ("zeus.monitor", zeus), ("pynvml", pynvml)):
            monkeypatch.setitem(sys.modules, name, own)

    monkeypatch.setattr(energy, "_uuid", lambda index: f"GPU-{'abc'[index]}")
    return installed


def test_zeus_comes_first_then_nvml_then_a_reason(installed):
    nvml = FakeNvml({"GPU-a": 1})
    zeus = module("zeus.monitor", ZeusMonitor=FakeMonitor)
    installed(zeus, nvml)
    assert isinstance(find_gpu_energy([0]), Zeus)
    installed(None, nvml)
    assert isinstance(find_gpu_energy([0]), Nvml)
    installed(module("zeus.monitor", ZeusMonitor=lambda **more: 1 / 0), nvml)
    assert isinstance(find_gpu_energy([0]), Nvml)
    installed()
    with pytest.raises(Unavailable, match="neither zeus nor nvidia-ml-py is installed"):
        find_gpu_energy([0])
    installed(None, FakeNvml({"GPU-a": 1}, refuse=True))
    with pytest.raises(Unavailable, match="Not Supported"):
        find_gpu_energy([0])
    with pytest.raises(Unavailable, match="no model is on a CUDA device"):
        find_gpu_energy([])
