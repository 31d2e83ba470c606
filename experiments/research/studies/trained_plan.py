"""What the study of trained drafts runs: chosen shapes, their methods, and runs that fit the time.

Above temperature 0 the drafts of heads and draft models are run twice: with chosen children on the shapes
chosen for them, and drawn (`chain` and `rrsw`) on those chosen at temperature 0, where acceptance is nearer
to that of drawn children and replay is exact. Which form stands for a head in comparisons is fixed before
anything runs: at temperature 0 the one predicted to be faster, above it the same form, drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from treespec.experiments.config.schema import Config, PlainMethod, TreeMethod
from treespec.experiments.research.studies.draft_sizes import sizes_of
from treespec.experiments.research.studies.trained_choice import (
    Recordings,
    can_be_recorded,
    chain_and_tree,
    of_size,
    runs_a_model,
    sources_of,
)

EQUAL = 8
"""Nodes of the trees by which sources are compared at equal nodes."""
DRAWN_RUN = "drawn"
"""The run that compares drawn with chosen children."""
DRAWN_SIZES = (8, 16, 64)
DRAWN = {
    "onehot": "deterministic",
    "rrsw": "without_replacement",
    "traversal": "without_replacement",
    "greedy_multidraft": "top_then_sample",
}
"""Rules on one head, with the law by which its children are chosen or drawn."""
DRAWN_SHARE = 0.2
"""Share of the hours that drawn and chosen children are compared in."""
SLOWER = 1.3
"""What prefills, warm-up and methods that decode alone add to the predicted time of a run."""
EIGHTS = 8
"""Chat prompts come in turns of eight categories: as many of each are measured."""
FEWEST = 24


@dataclass(frozen=True)
class Planned:
    """A method of the study.

    Args:
        source: the name of its source.
        form: chain, tree or equal: the shape of 8 nodes.
        drawn: whether a head's or draft model's children are drawn by a rule for drawn ones.
        method: what is run; one method may stand for two forms.
    """

    source: str
    form: str
    drawn: bool
    method: TreeMethod

    @property
    def name(self) -> str:
        """Its name in the run."""
        return str(self.method.name)


def chosen_by_replay(recordings: Recordings) -> dict[str, Any]:
    """By sampling setting and source: the best chain, the best tree, and the best shape of 8 nodes.

    With `sizes`, by source, and the trees for comparing drawn with chosen children (`drawn`).
    """
    config, sources = recordings.config, sources_of(recordings.config)
    found: dict[str, Any] = {"shapes": {}, "plain": {}, "drawn": {}}
    for setting in config.samplings:
        shapes = found["shapes"][setting.name] = {}
        for source, method in sources.items():
            if not can_be_recorded(method):
                continue
            best = chain_and_tree(recordings, source, setting.name)
            equal = of_size(recordings, source, setting.name, EQUAL)
            best |= {} if equal is None else {"equal": equal}
            shapes[source] = {form: asdict(shape) for form, shape in best.items()}
            times = recordings.times(source)
            found["plain"].setdefault(setting.name, 1 / times.plain_s(law="deterministic"))
    cold = [setting.name for setting in config.samplings if not setting.temperature]
    heads = [source for source, method in sources.items() if runs_a_model(method)]
    warm = [setting.name for setting in config.samplings if setting.temperature]
    if heads and warm:
        best_head = max(heads, key=lambda head: _speed(found["shapes"][warm[0]][head]))
        by = (cold or warm)[0]  # trees chosen for chosen children would favour these
        trees = {size: of_size(recordings, best_head, by, size) for size in DRAWN_SIZES}
        shapes = {size: asdict(tree) for size, tree in trees.items() if tree is not None}
        found["drawn"] = {"head": best_head, "sampling": warm[0], "shapes": shapes}
    sizes = sizes_of({s: m for s, m in sources.items() if runs_a_model(m)}, recordings.pair)
    return found | {"sizes": {source: asdict(size) for source, size in sizes.items()}}


def _speed(shapes: Mapping[str, Any]) -> float:
    return max(shape["tokens_per_second"] or 0.0 for shape in shapes.values())


def planned(config: Config, chosen: Mapping[str, Any], sampling: str) -> list[Planned]:
    """The methods of a setting: each source's chosen shapes, or the config's if none can be chosen."""
    cold = [setting.name for setting in config.samplings if not setting.temperature]
    made: list[Planned] = []
    for source, method in sources_of(config).items():
        shapes = chosen["shapes"][sampling].get(source)
        if shapes is None:
            made += [
                Planned(source, form, False, m)
                for m in config.methods
                if isinstance(m, TreeMethod) and _of(m) == source
                for form in (
                    str(m.name).partition(", ")[2],
                    *(["equal"] if getattr(m.shape, "size", None) == EQUAL else []),
                )
            ]
            continue
        made += _forms(source, method, shapes, law="deterministic")
        if runs_a_model(method) and sampling not in cold:
            of_drawn = chosen["shapes"][cold[0]][source] if cold else shapes
            made += _forms(source, method, of_drawn)
    return made


def _forms(source: str, method: TreeMethod, shapes: Any, law: str | None = None) -> list[Planned]:
    """The chain, the tree and the shape of 8 nodes of a source; equal ones are one method."""
    drawn, by_shape, made = law is None and runs_a_model(method), {}, []
    for form, shape in shapes.items():
        label = f"{EQUAL} nodes" if form == "equal" else form
        name = f"{source}, {label}{', drawn' if drawn else ''}"
        key = str(shape["shape"])
        if key not in by_shape:
            by_shape[key] = _with(method, name, shape["shape"], law=law)
        made.append(Planned(source, form, drawn, by_shape[key]))
    return made


def methods_of(plans: Sequence[Planned]) -> list[TreeMethod]:
    """The methods, each once."""
    return list({plan.name: plan.method for plan in plans}.values())


def _of(method: TreeMethod) -> str:
    return str(method.name).partition(",")[0]


def _with(method: TreeMethod, name: str, shape: Any, **more: Any) -> TreeMethod:
    data = method.model_dump(mode="json") | {"name": name, "shape": shape, "law": None}
    return TreeMethod.model_validate(data | {"rule": None} | more)


def runs_of(
    config: Config, chosen: Mapping[str, Any], hours: float
) -> Iterator[tuple[str, Config]]:
    """The runs by name: one for each sampling setting, and one that compares drawn with chosen children."""
    drawn, settings = chosen["drawn"], config.samplings
    share = hours * (1 - (DRAWN_SHARE if drawn else 0)) / len(settings)
    for setting in settings:
        methods = methods_of(planned(config, chosen, setting.name))
        yield setting.name, _run(config, chosen, setting.name, methods, share)
    if drawn:
        head = sources_of(config)[drawn["head"]]
        methods = [
            _with(head, f"{rule}, {size} nodes", shape["shape"], law=law, rule=rule)
            for size, shape in drawn["shapes"].items()
            for rule, law in DRAWN.items()
        ]
        yield DRAWN_RUN, _run(config, chosen, drawn["sampling"], methods, hours * DRAWN_SHARE)


def _run(
    config: Config,
    chosen: Mapping[str, Any],
    sampling: str,
    methods: list[TreeMethod],
    hours: float,
) -> Config:
    """A run with as many prompts as fit into the hours, of each category as many."""
    seconds = sum(seconds_each(config, chosen, sampling, methods))
    count = int(hours * 3600 / seconds) // EIGHTS * EIGHTS
    most = config.prompts.count
    prompts = config.prompts.model_copy(
        update={"count": max(FEWEST, count if most is None else min(count, most))}
    )
    return config.model_copy(
        update={
            "name": f"trained_drafts-{sampling.replace('=', '')}",
            "samplings": tuple(s for s in config.samplings if s.name == sampling),
            "methods": (PlainMethod(kind="plain"), *methods),
            "prompts": prompts,
            "compare": (),
        }
    )


def seconds_each(
    config: Config, chosen: Mapping[str, Any], sampling: str, methods: Sequence[TreeMethod]
) -> Iterator[float]:
    """Seconds that a prompt takes under plain decoding and under each method, as predicted.

    Methods of a source count as its slowest shape, those without a prediction as plain decoding.
    """
    plain, sources = chosen["plain"][sampling], sources_of(config)
    yield SLOWER * config.max_new_tokens / plain
    for method in methods:
        source = _of(method) if _of(method) in sources else chosen["drawn"]["head"]
        shapes = chosen["shapes"][sampling].get(source, {})
        rates = [shape["tokens_per_second"] for shape in shapes.values()]
        yield SLOWER * config.max_new_tokens / min(filter(None, rates), default=plain)
