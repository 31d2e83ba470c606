import os

import pytest

from treespec.errors import Unavailable
from treespec.experiments.run.meters.energy import Rapl

RANGE = 262_143_328_850


def domain(root, folder, name, energy, most=RANGE):
    path = root / folder
    path.mkdir(exist_ok=True)
    for file, value in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", most)):
        (path / file).write_text(f"{value}\n")
    return path


def test_packages_and_memory_add_up_and_their_parts_do_not(tmp_path):
    first = domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = domain(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    memory = domain(tmp_path, "intel-rapl:0:1", "dram", 0)
    core = domain(tmp_path, "intel-rapl:0:0", "core", 0)
    whole = domain(tmp_path, "intel-rapl:2", "psys", 0)
    twin = domain(tmp_path, "intel-rapl-mmio:0", "package-0", 0)
    rapl = Rapl.find(tmp_path)
    assert rapl.name == "RAPL: package-0, dram, package-1"
    rapl.begin()
    for path, change in ((first, 3), (second, 5), (memory, 7), (core, 11), (whole, 13), (twin, 17)):
        before = int((path / "energy_uj").read_text())
        (path / "energy_uj").write_text(str(before + change * 1_000_000))
    assert rapl.end(1.0) == 3 + 5 + 7


def test_a_counter_that_ran_full_is_counted_right(tmp_path):
    path = domain(tmp_path, "intel-rapl:0", "package-0", RANGE - 2_000_000)
    rapl = Rapl.find(tmp_path)
    rapl.begin()
    (path / "energy_uj").write_text("1500000")
    assert rapl.end(2.0) == pytest.approx(3.5)


def test_too_long_a_time_gives_nothing(tmp_path):
    """In 263 seconds at 1,000 W the counter could have run through its whole range."""
    path = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    rapl = Rapl.find(tmp_path)
    rapl.begin()
    (path / "energy_uj").write_text("5000000")
    assert rapl.end(262.0) == 5.0
    assert rapl.end(263.0) is None


def test_a_machine_without_counters(tmp_path):
    with pytest.raises(Unavailable, match="no RAPL counter of a CPU package"):
        Rapl.find(tmp_path / "nowhere")
    domain(tmp_path, "intel-rapl:0:1", "dram", 0)
    with pytest.raises(Unavailable, match="no RAPL counter of a CPU package"):
        Rapl.find(tmp_path)


def test_what_cannot_be_read_says_why(tmp_path, monkeypatch):
    path = domain(tmp_path, "intel-rapl:0", "package-0", "no number")
    with pytest.raises(Unavailable, match="invalid literal"):
        Rapl.find(tmp_path)
    domain(tmp_path, "intel-rapl:0", "package-0", 5)
    (path / "energy_uj").chmod(0)
    if os.geteuid() == 0:  # root reads everything
        real = type(path).read_text

        def read(self, *arguments, **more):
            if self.name == "energy_uj":
                raise PermissionError(13, "Permission denied")
            return real(self, *arguments, **more)

        monkeypatch.setattr(type(path), "read_text", read)
    with pytest.raises(Unavailable, match=r"only root can read .*: sudo chmod a\+r"):
        Rapl.find(tmp_path)
