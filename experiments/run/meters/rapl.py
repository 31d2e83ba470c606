"""Energy of CPU packages and memory by RAPL, as Linux shows it in /sys/class/powercap."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from treespec.experiments.run.meters.meter import Unavailable

__all__ = ["MOST_WATTS", "Domain", "Rapl"]

ROOT = Path("/sys/class/powercap")

MOST_WATTS = 1000.0
"""More than one domain takes. A counter that could have run full twice at this power tells nothing."""


@dataclass(frozen=True)
class Domain:
    """A counter.

    Args:
        path: its folder.
        name: such as `package-0` or `dram`.
        range_uj: microjoules after which it begins at 0 again.
    """

    path: Path
    name: str
    range_uj: int

    def read(self) -> int:
        """Microjoules."""
        return int((self.path / "energy_uj").read_text())


class Rapl:
    """The sum of all packages, and of their memory where that is counted apart.

    `core` and `uncore` are parts of a package and `psys` holds packages, so these are left out, as are the
    same counters by another way (`intel-rapl-mmio`).

    Args:
        domains: to add up.
    """

    def __init__(self, domains: Sequence[Domain]) -> None:
        self._domains = tuple(domains)
        self.name = f"RAPL: {', '.join(domain.name for domain in domains)}"
        self._before: list[int] = []

    @classmethod
    def find(cls, root: Path = ROOT) -> Self:
        """The counters of this machine.

        Raises:
            Unavailable: if there are none, or they cannot be read.
        """
        domains = []
        for path in sorted(root.glob("intel-rapl:*")):
            try:
                name = (path / "name").read_text().strip()
                if not name.startswith("package") and name != "dram":
                    continue
                domain = Domain(path, name, int((path / "max_energy_range_uj").read_text()))
                domain.read()
            except PermissionError:
                raise Unavailable(
                    f"{path}/energy_uj can be read by root only: sudo chmod a+r {root}/*/energy_uj"
                ) from None
            except (OSError, ValueError) as error:
                raise Unavailable(f"{path}: {error}") from None
            domains.append(domain)
        if not any(domain.name.startswith("package") for domain in domains):
            raise Unavailable(f"no RAPL counter of a CPU package in {root}")
        return cls(domains)

    def begin(self) -> None:
        """Remember where the counters stand."""
        self._before = [domain.read() for domain in self._domains]

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`, a counter that ran full once counted right; None after too long a time."""
        total = 0
        for domain, before in zip(self._domains, self._before, strict=True):
            if seconds * MOST_WATTS * 1e6 >= domain.range_uj:
                return None
            change = domain.read() - before
            total += change if change >= 0 else change + domain.range_uj
        return total / 1e6
