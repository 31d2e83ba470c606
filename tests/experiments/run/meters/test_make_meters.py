import torch

from treespec.errors import Unavailable
from treespec.experiments.run.meters import meter
from treespec.experiments.run.meters.meter import COLUMNS, cuda_devices, make_meters


class Source:
    name = "fake"

    def begin(self):
        pass

    def end(self, seconds):
        return 12.0 * seconds


def missing(*arguments):
    raise Unavailable("no counter here")


def broken(*arguments):
    raise OSError("Input/output error")


def test_every_column_has_a_source_or_a_reason(monkeypatch):
    monkeypatch.setattr(meter.Rapl, "find", missing)
    for kinds in ((), ("memory",), ("energy",), ("memory", "energy")):
        about = make_meters(kinds, []).about()
        assert set(about["sources"]) | set(about["unavailable"]) == set(COLUMNS)
        assert not set(about["sources"]) & set(about["unavailable"])
        asked = "rss_bytes" in about["sources"]
        assert asked == ("memory" in kinds)
        reason = about["unavailable"]["cpu_energy_j"]
        assert reason == ("no counter here" if "energy" in kinds else meter.NOT_ASKED)


def test_the_idle_machine_is_read_where_there_is_a_counter(monkeypatch):
    monkeypatch.setattr(meter.Rapl, "find", Source)
    monkeypatch.setattr(meter.EnergyMeter.read_idle, "__defaults__", (0.01, lambda seconds: None))
    meters = make_meters(["energy"], [])
    assert meters.about()["idle_w"]["cpu"] > 0
    meters.start()
    values = meters.stop()
    assert values["cpu_energy_j"] > 0
    assert abs(values["cpu_energy_net_j"]) < 1e-6
    assert values["gpu_energy_j"] is None


def test_a_broken_counter_does_not_stop_a_run(monkeypatch):
    monkeypatch.setattr(meter.Rapl, "find", broken)
    about = make_meters(["energy"], []).about()
    assert about["unavailable"]["cpu_energy_j"] == "Input/output error"


def test_models_on_the_cpu_have_no_cuda_device():
    assert cuda_devices([torch.nn.Linear(2, 2)]) == []
