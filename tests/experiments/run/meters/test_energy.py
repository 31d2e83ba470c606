import pytest

from treespec.experiments.run.meters.energy import EnergyMeter


class Source:
    """A source of constant power."""

    name = "fake"

    def __init__(self):
        self.watts, self.silent, self.begun = 10.0, False, 0

    def begin(self):
        self.begun += 1

    def end(self, seconds):
        return None if self.silent else self.watts * seconds


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def parts():
    source, clock = Source(), Clock()
    return source, clock, EnergyMeter("cpu", source, clock)


def test_raw_and_above_idle(parts):
    source, clock, meter = parts
    meter.read_idle(2.0, clock.sleep)
    assert meter.idle_w == 10.0
    source.watts = 25.0
    meter.start()
    clock.sleep(4.0)
    assert meter.stop() == {"cpu_energy_j": 100.0, "cpu_energy_net_j": 60.0}
    assert "10 W" in meter.sources["cpu_energy_net_j"]
    assert meter.unavailable == {}


def test_without_an_idle_reading_there_is_no_net_value(parts):
    source, clock, meter = parts
    source.silent = True
    meter.read_idle(2.0, clock.sleep)
    assert meter.idle_w is None
    source.silent = False
    meter.start()
    clock.sleep(1.0)
    assert meter.stop() == {"cpu_energy_j": 10.0}
    assert "idle" in meter.unavailable["cpu_energy_net_j"]


def test_a_reading_that_is_not_to_be_trusted_is_null_in_both(parts):
    source, clock, meter = parts
    meter.read_idle(2.0, clock.sleep)
    source.silent = True
    meter.start()
    clock.sleep(1.0)
    assert meter.stop().get("cpu_energy_j") is None
    assert meter.stop().get("cpu_energy_net_j") is None


def test_less_than_idle_is_not_made_zero(parts):
    source, clock, meter = parts
    meter.read_idle(2.0, clock.sleep)
    source.watts = 9.0
    meter.start()
    clock.sleep(1.0)
    assert meter.stop()["cpu_energy_net_j"] == pytest.approx(-1.0)
