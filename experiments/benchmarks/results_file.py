"""Where benchmarks put their figures."""

import json
from pathlib import Path
from typing import Any

from experiments.manifest import environment, now

__all__ = ["save"]

RESULTS = Path(__file__).parent / "results"


def save(benchmark: str, figures: dict[str, Any]) -> Path:
    """Write figures as `<benchmark>-<cpu or gpu>.json`, with what they were measured on.

    Args:
        benchmark: name of the benchmark.
        figures: plain data.
    """
    where = environment()
    machine = (
        where["hardware"]["gpu"] or f"{where['hardware']['cpu']} {where['hardware']['cores']} cores"
    )
    slug = "-".join("".join(c if c.isalnum() else " " for c in machine).lower().split())
    path = RESULTS / f"{benchmark}-{slug}.json"
    data = {"benchmark": benchmark, "measured": now(), **where, "figures": figures}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path
