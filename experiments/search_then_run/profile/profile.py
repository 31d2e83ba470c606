"""Measure what the parts of a step cost on a pair: whole steps of `treespec.decode`, taken apart.

Every sample comes out of a real step of the real loop: drafter, target, rule and commit as in a run, on a
text of the config's prompts. So caches, pending tokens and the order of passes are those of a run. Shapes
take turns in rounds, because machines drift; the first round warms up.

One family of trees gives all tables (`bundle`): their sizes are those asked for, their second level expands
W nodes to one child each, the third W nodes to two, so that the difference is what drawing costs. What it
costs for more nodes than the largest bundle has on a level is the difference of two trees of one round.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treespec.experiments.config.schema import Config
from treespec.experiments.records.manifest import environment, now
from treespec.experiments.run.models import weights_data
from treespec.experiments.search_then_run.profile.loop import Loop
from treespec.experiments.search_then_run.profile.plan import Setting
from treespec.search.latency.file import VERSION
from treespec.target import make_target
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Samples", "about_times", "json_of_samples", "profile_pair"]

PLAIN_STEPS = 4
"""Steps of plain decoding in a round; each is one sample."""


@dataclass
class Samples:
    """Seconds of everything that was measured, by table and place in it.

    Args:
        shared: `[name][prefix][size]`; the prefix is None where it does not matter.
        of_law: the same by law.
    """

    shared: dict[str, dict[int | None, dict[int | None, list[float]]]] = field(
        default_factory=lambda: defaultdict(_by_prefix)
    )
    of_law: dict[str, dict[str, dict[int | None, dict[int | None, list[float]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_by_prefix))
    )
    rounds: int = 0
    interrupted: bool = False


def _by_prefix() -> Any:
    return defaultdict(lambda: defaultdict(list))


def profile_pair(
    pair: "Pair",
    settings: Sequence[Setting],
    prefixes: Sequence[int],
    text: Callable[[int, int], Sequence[int]],
    *,
    repeats: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> Samples:
    """Measure all settings behind all prefixes, round after round.

    Args:
        pair: the models.
        settings: laws, rules and trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a real text; a number chooses which.
        repeats: rounds that count; one more warms up.
        seed: of coins and of the order.
        progress: told what is measured next, once for each setting and prefix of a round.

    Returns:
        The samples; of whole rounds so far and a part of one, if the user interrupted.
    """
    samples, order = Samples(), random.Random(seed)
    places = [(setting, prefix) for setting in settings for prefix in prefixes]
    try:
        for number in range(repeats + 1):
            name = "warming up" if not number else f"round {number} of {repeats}"
            into, target = samples if number else Samples(), make_target(pair.target)
            for setting, prefix in order.sample(places, len(places)):
                progress(f"{name}: {setting.law}, prefix {prefix}")
                loop = Loop(pair, target, setting, prefix, text, order.randrange(1 << 30))
                _measure_trees(loop, order.sample(setting.shapes, len(setting.shapes)), into)
                _measure_plain(loop, into)
            samples.rounds = number
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


def _measure_trees(loop: Loop, shapes: Sequence[TreeShape], into: Samples) -> None:
    """One step of each shape."""
    of_law, prefix = into.of_law[str(loop.setting.law)], loop.prefix
    second: dict[tuple[int, int], float] = {}
    for shape in shapes:
        loop.growth.grow(shape)
        seconds = loop.step()
        if seconds is None:
            continue
        for name in ("verify", "commit", "rest"):
            at = prefix if name == "verify" else None
            size = None if name == "rest" else shape.size
            into.shared[name][at][size].append(max(0.0, seconds[name]))
        of_law["accept"][None][shape.size].append(seconds["accept"])
        levels = seconds["levels"]
        rest = max(0.0, seconds["draft"] - sum(levels))
        of_law["assemble"][None][shape.size].append(rest)
        if len(shape.children[0]) == 1:
            of_law["first"][prefix][None].append(levels[0])
        for level, expanded in enumerate(_expanded(shape)):
            width, most = len(expanded), max(expanded)
            if level and most == 1:
                of_law["level"][prefix][width].append(levels[level])
            elif level == 2:  # the same nodes' parents had one child each
                of_law["draw"][None][width].append(max(0.0, levels[2] - levels[1]))
            if level == 1:
                second[width, most] = levels[1]
    for (width, most), taken in second.items():
        if most == 2 and (width, 1) in second:  # as many nodes had one child each in another step
            of_law["draw"][None][width].append(max(0.0, taken - second[width, 1]))


def _measure_plain(loop: Loop, into: Samples) -> None:
    """Some steps of plain decoding."""
    loop.start(plain=True)
    for i in range(PLAIN_STEPS + 1):
        seconds = loop.step(plain=True)
        if seconds is not None and i:
            of_law = into.of_law[str(loop.setting.law)]
            of_law["plain"][loop.prefix][None].append(seconds["whole"])
            of_law["assemble"][None][1].append(seconds["draft"])
            of_law["accept"][None][1].append(seconds["accept"])
            into.shared["verify"][loop.prefix][1].append(seconds["verify"])
            into.shared["commit"][None][1].append(seconds["commit"])


def _expanded(shape: TreeShape) -> list[list[int]]:
    """The numbers of children, by level, of the nodes that have some."""
    levels: list[list[int]] = [[] for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]].append(len(shape.children[node]))
    return levels


def about_times(config: Config, pair: "Pair", samples: Samples, repeats: int) -> dict[str, Any]:
    """What was measured, on what, and how often."""
    return {
        "measured": now(),
        "pair": pair.name,
        "models": config.models.model_dump(mode="json"),
        "target": weights_data(pair.target) | {"attention": pair.target.attention},
        "draft": weights_data(pair.draft) | {"attention": pair.draft.attention},
        "rounds": samples.rounds,
        "rounds_wanted": repeats,
        **environment(),
    }


def json_of_samples(samples: Samples, settings: Sequence[Setting], about: Mapping[str, Any]) -> str:
    """The samples as the JSON of a latency model, in milliseconds."""
    laws = {}
    for setting in settings:
        tables = _tables(samples.of_law.get(str(setting.law), {}))
        if "level_ms" in tables:
            laws[str(setting.law)] = {"sampling": setting.name, "rule": str(setting.rule)} | tables
    batches = {"1": {**_tables(samples.shared), "laws": laws}}
    return json.dumps({"version": VERSION, "about": about, "batches": batches})


def _tables(samples: Mapping[str, Mapping[int | None, Any]]) -> dict[str, Any]:
    return {f"{name}_ms": _milliseconds(by_prefix) for name, by_prefix in samples.items()}


def _milliseconds(samples: Any) -> Any:
    """Seconds by prefix, by size, or as a list; where the key None stands, its value alone."""
    if isinstance(samples, list):
        return [round(1e3 * seconds, 4) for seconds in samples]
    if None in samples:
        return _milliseconds(samples[None])
    return {str(key): _milliseconds(samples[key]) for key in sorted(samples)}
