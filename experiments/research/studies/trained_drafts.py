"""Compare trained heads with each other and with sources that are not trained, on one model and one clock.

    python -m treespec.experiments.research.studies.trained_drafts [CONFIG] [KEY=VALUE ...]
        [--trained FOLDER ...] [--out runs/trained_drafts] [--hours 2]

CONFIG (`trained_drafts`) names model, prompts and sources; with `--trained`, its heads are replaced by
those of finished trainings, of any target. First every source's best chain and best tree are chosen by
replay on the prompts for tuning, under each sampling setting (`trained_choice`); on the real model that
takes some ten minutes for each source. Then they run live, one run for each setting, and the best head
also with drawn and with chosen children on the same trees of 8, 16 and 64 nodes (`drawn`). The number
of prompts follows from the predicted speeds and `--hours`. A stopped study goes on where it was;
`--choose-only` runs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.config.build import build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config, PlainMethod, TreeMethod
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.explanation import explained
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import SamplingSummary, speed_ratio, summarise
from treespec.experiments.report.table import NONE, Cell, Column, Table, interval, keyed
from treespec.experiments.report.terminal import say
from treespec.experiments.research.benchmarks.results_file import (
    of_manifest,
    print_parts,
    write,
)
from treespec.experiments.research.studies.draft_sizes import DraftSize, sizes_of
from treespec.experiments.research.studies.trained_choice import (
    Recordings,
    can_be_recorded,
    chain_and_tree,
    kept,
    of_size,
    runs_a_model,
    sources_of,
    with_trained,
)
from treespec.search.intervals import Interval

NAME = "trained_drafts"
EQUAL = 8
"""Nodes of the trees by which sources are compared at equal nodes."""
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
    heads = [source for source, method in sources.items() if runs_a_model(method)]
    warm = [setting.name for setting in config.samplings if setting.temperature]
    if heads and warm:
        best_head = max(heads, key=lambda head: _speed(found["shapes"][warm[0]][head]))
        trees = {size: of_size(recordings, best_head, warm[0], size) for size in DRAWN_SIZES}
        shapes = {size: asdict(tree) for size, tree in trees.items() if tree is not None}
        found["drawn"] = {"head": best_head, "sampling": warm[0], "shapes": shapes}
    sizes = sizes_of({s: m for s, m in sources.items() if runs_a_model(m)}, recordings.pair)
    return found | {"sizes": {source: asdict(size) for source, size in sizes.items()}}


def _speed(shapes: Mapping[str, Any]) -> float:
    return max(shape["tokens_per_second"] or 0.0 for shape in shapes.values())


def methods_under(config: Config, chosen: Mapping[str, Any], sampling: str) -> list[TreeMethod]:
    """The methods of a setting: each source's chosen shapes, or those of the config if none can be chosen.

    Above temperature 0 those of trained heads and draft models also draw their children.
    """
    greedy = not next(s for s in config.samplings if s.name == sampling).temperature
    made: list[TreeMethod] = []
    for source, method in sources_of(config).items():
        shapes = chosen["shapes"][sampling].get(source)
        if shapes is None:
            made += [m for m in config.methods if isinstance(m, TreeMethod) and _of(m) == source]
            continue
        for form, shape in shapes.items():
            same = form == "equal" and any(
                shape["shape"] == shapes[other]["shape"] for other in shapes if other != form
            )
            if not same:
                name = f"{source}, {EQUAL} nodes" if form == "equal" else f"{source}, {form}"
                made.append(_with(method, name, shape["shape"], law="deterministic"))
            if runs_a_model(method) and not greedy and form != "equal":
                made.append(_with(method, f"{source}, {form}, drawn", shape["shape"]))
    return made


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
        methods = methods_under(config, chosen, setting.name)
        yield setting.name, _run(config, chosen, setting.name, methods, share)
    if drawn:
        head = sources_of(config)[drawn["head"]]
        methods = [
            _with(head, f"{rule}, {size} nodes", shape["shape"], law=law, rule=rule)
            for size, shape in drawn["shapes"].items()
            for rule, law in DRAWN.items()
        ]
        yield "drawn", _run(config, chosen, drawn["sampling"], methods, hours * DRAWN_SHARE)


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
            "name": f"{NAME}-{sampling.replace('=', '')}",
            "samplings": tuple(s for s in config.samplings if s.name == sampling),
            "methods": (PlainMethod(kind="plain"), *methods),
            "prompts": prompts,
            "compare": (),
        }
    )


def seconds_each(
    config: Config, chosen: Mapping[str, Any], sampling: str, methods: Sequence[TreeMethod]
) -> Iterator[float]:
    """Seconds that a prompt takes under plain decoding and under each method, as predicted."""
    plain = chosen["plain"][sampling]
    yield SLOWER * config.max_new_tokens / plain
    for method in methods:
        shapes = chosen["shapes"][sampling].get(_of(method), {})
        rates = [shape["tokens_per_second"] for shape in shapes.values()]
        rate = max([plain, *(rate for rate in rates if rate)]) if rates else plain
        yield SLOWER * config.max_new_tokens / rate


def rows_of(loaded: Run, sampling: str, sizes: Mapping[str, DraftSize]) -> list[dict[str, Any]]:
    """A row for each method: its size, its speed, and its ratios over plain decoding."""
    summary: SamplingSummary = summarise(loaded, loaded.measurements[sampling])
    texts = _texts(loaded)
    best = loaded.measurements[sampling].fastest([t for t in texts if t in _named(summary)])
    totals = loaded.measurements[sampling].totals
    rows = []
    for row in summary.rows:
        size = sizes.get(row.method.name.partition(",")[0])
        over = None if best is None else speed_ratio(totals, row.method.name, best)
        rows.append(
            {
                "sampling": sampling,
                "method": row.method.name,
                "group": row.method.group,
                "shape": _shape(loaded, row.method.name),
                "trained": None if size is None else size.trained,
                "megabytes": None if size is None else size.level_bytes / 1e6,
                "once": size is not None and size.once,
                "tokens_per_step": row.tokens_per_step,
                "tokens_per_second": row.tokens_per_second,
                "over_plain": row.speedup,
                "over_best_text": over,
                "best_text": best,
            }
        )
    return rows


def _named(summary: SamplingSummary) -> set[str]:
    return {row.method.name for row in summary.rows}


def _texts(loaded: Run) -> list[str]:
    """The methods whose source runs no model."""
    config = Config.model_validate(loaded.manifest["config"])
    return [
        str(m.name) for m in config.methods if isinstance(m, TreeMethod) and not runs_a_model(m)
    ]


def _shape(loaded: Run, name: str) -> str:
    built = {m.name: m for m in build(Config.model_validate(loaded.manifest["config"])).methods}
    shape = built[name].shape
    if shape is None:
        return str(getattr(getattr(built[name].config, "shape", None), "label", NONE))
    return f"chain {shape.depth}" if shape.is_chain else "+".join(map(str, shape.level_sizes[1:]))


def checks(loaded: Run, sampling: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The best head against every other source: at equal nodes in tokens per step, and in speed.

    The best head and its shape are those of the replay, chosen on other prompts; of the other sources every
    method is compared.
    """
    data = loaded.measurements[sampling]
    names = [m.name for m in data.methods]
    heads = [head for head in chosen["sizes"] if any(n.startswith(f"{head},") for n in names)]
    shapes = chosen["shapes"][sampling]
    if not heads:
        return {}
    head = max(heads, key=lambda name: _speed(shapes[name]))
    form = max(("chain", "tree"), key=lambda f: shapes[head].get(f, {}).get("tokens_per_second", 0))
    mine, others = f"{head}, {form}", [n for n in names if not n.startswith(f"{head},")]
    texts = [name for name in _texts(loaded) if name in names]
    equal = _equal(head, names, shapes)
    return {
        "head": mine,
        "faster": {other: speed_ratio(data.totals, mine, other) for other in others},
        "equal": equal,
        "keeps": {
            text: speed_ratio(data.totals, equal, text, "steps")
            for text in texts
            if text in {_equal(t.partition(",")[0], names, shapes) for t in texts}
        },
        "explained": [explained(data, mine, other) for other in ("plain", *texts)],
    }


def _equal(source: str, names: Sequence[str], shapes: Mapping[str, Any]) -> str:
    """The method of a source whose trees have 8 nodes: of its own, or one that was chosen anyway."""
    if (own := f"{source}, {EQUAL} nodes") in names:
        return own
    same = shapes.get(source, {})
    found = [
        f for f in ("tree", "chain") if f in same and same[f]["shape"] == same["equal"]["shape"]
    ]
    return f"{source}, {found[0] if found else 'tree'}"


def drawn_rows(loaded: Run, sampling: str) -> list[dict[str, Any]]:
    """Each rule on each tree, with its ratios over children that are chosen, on the same tree."""
    data = loaded.measurements[sampling]
    rows = []
    for row in summarise(loaded, data).rows:
        rule, _, size = row.method.name.partition(", ")
        if not size:
            continue
        against = f"onehot, {size}"
        rows.append(
            {
                "nodes": size.removesuffix(" nodes"),
                "rule": rule,
                "tokens_per_step": row.tokens_per_step,
                "tokens_per_second": row.tokens_per_second,
                "keeps": speed_ratio(data.totals, row.method.name, against, "steps"),
                "faster": speed_ratio(data.totals, row.method.name, against),
            }
        )
    return rows


def _cell(key: str, digits: int = 2) -> Any:
    def shown(row: Mapping[str, Any]) -> Cell | str:
        value: Interval | None = row[key]
        return NONE if value is None else interval(value, digits)

    return shown


def _megabytes(row: Mapping[str, Any]) -> str:
    if row["megabytes"] is None:
        return NONE
    return f"{row['megabytes']:.1f}{' for all' if row['once'] else ''}"


COLUMNS: tuple[Column[Any], ...] = (
    keyed("method", "method", left=True),
    keyed("tree", "shape", left=True),
    Column(
        "trained", lambda row: NONE if row["trained"] is None else f"{row['trained'] / 1e6:.2f}M"
    ),
    Column("MB/level", _megabytes),
    Column("tok/step", _cell("tokens_per_step")),
    Column("tok/s", _cell("tokens_per_second", 1)),
    Column("over plain", _cell("over_plain")),
    Column("over text", _cell("over_best_text")),
)
DRAWN_COLUMNS: tuple[Column[Any], ...] = (
    keyed("nodes", "nodes"),
    keyed("rule", "rule", left=True),
    Column("tok/step", _cell("tokens_per_step")),
    Column("over onehot", _cell("keeps", 3)),
    Column("tok/s", _cell("tokens_per_second", 1)),
    Column("over onehot", _cell("faster", 3)),
)


def ratio_table(title: str, ratios: Mapping[str, Interval]) -> Table:
    """Ratios of one method over others."""
    columns = [
        Column[tuple[str, Interval]]("over", lambda row: row[0], left=True),
        Column[tuple[str, Interval]]("ratio", lambda row: interval(row[1], 3)),
    ]
    return Table(title, columns, [*ratios.items()], title=title)


def factor_table(title: str, rows: Sequence[Any]) -> Table:
    """The four factors of one method's speed over those of others."""
    columns = [
        Column[Any]("over", lambda row: row.against, left=True),
        *(
            Column[Any](name, lambda row, name=name: interval(row.factors[name], 3))
            for name in rows[0].factors
        ),
        Column[Any]("= speed", lambda row: interval(row.measured, 3)),
    ]
    return Table(title, columns, rows, title=title)


def reported(out: Path, names: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Print the tables of finished runs; returns their figures."""
    sizes = {source: DraftSize(**size) for source, size in chosen["sizes"].items()}
    figures: dict[str, Any] = {"chosen": chosen, "rows": [], "checks": {}}
    for name in names:
        loaded = load_run(out / name)
        sampling = loaded.samplings[0]
        figures.setdefault("about", of_manifest(loaded.manifest))
        if name == "drawn":
            figures["drawn"] = drawn_rows(loaded, sampling)
            title = f"{chosen['drawn']['head']}, {sampling}: drawn and chosen children"
            print_parts(Table(title, DRAWN_COLUMNS, figures["drawn"], title=title))
            continue
        rows = rows_of(loaded, sampling, sizes)
        figures["rows"] += rows
        title = f"{sampling}: {len(loaded.measurements[sampling].prompts)} prompts"
        print_parts(Table(sampling, COLUMNS, rows, title=title, colour=lambda row: row["group"]))
        found = figures["checks"][sampling] = checks(loaded, sampling, chosen)
        if found:
            print_parts(
                ratio_table(f"{sampling}: speed of {found['head']}", found["faster"]),
                ratio_table(f"{sampling}: tokens per step of {found['equal']}", found["keeps"]),
                factor_table(f"{sampling}: why {found['head']}", found["explained"]),
            )
            found["explained"] = [asdict(row) for row in found["explained"]]
    return figures


def main(
    config: Annotated[str, typer.Argument(help="A config with model, prompts and sources.")] = NAME,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Override keys of the config.")
    ] = None,
    trained: Annotated[
        list[Path] | None,
        typer.Option("--trained", help="Folder of a finished training, in place of its heads."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the study.")] = Path("runs") / NAME,
    hours: Annotated[
        float, typer.Option("--hours", min=0.01, help="Hours of all live runs.")
    ] = 2.0,
    beam: Annotated[
        int,
        typer.Option("--beam", min=0, help="Also choose among trees that grow: 8. Takes longer."),
    ] = 0,
    choose_only: Annotated[
        bool, typer.Option("--choose-only", help="Choose shapes, and say how long the runs take.")
    ] = False,
    saved: Annotated[bool, typer.Option(help="Write the result file.")] = True,
) -> None:
    """Choose, run, and save the findings."""
    console = Console(width=140, soft_wrap=True)
    try:
        asked = load_config(config, overrides or ())
        if trained:
            asked = with_trained(asked, trained)
        out.mkdir(parents=True, exist_ok=True)
        as_asked = yaml.safe_dump(asked.model_dump(mode="json"), sort_keys=False)
        before = kept(out / "asked.json", lambda: {"config": as_asked, "beam": beam})
        if before != {"config": as_asked, "beam": beam}:
            raise typer.BadParameter(f"{out} holds a study of another config: choose another --out")
        recordings = Recordings(asked, out / "recordings", beam, console)
        chosen = kept(out / "chosen.json", lambda: chosen_by_replay(recordings))
        runs = dict(runs_of(recordings.config, chosen, hours))
        for name, of_run in runs.items():
            methods = [m for m in of_run.methods if isinstance(m, TreeMethod)]
            each = sum(seconds_each(of_run, chosen, of_run.samplings[0].name, methods))
            count = of_run.prompts.count or 0
            say(
                console,
                f"{name}: {1 + len(methods)} methods on {count} prompts, "
                f"about {each * count / 60:.0f} minutes",
            )
        if choose_only:
            return
        del recordings
        for name, of_run in runs.items():
            path = out / f"{name}.yaml"
            path.write_text(yaml.safe_dump(of_run.model_dump(mode="json"), sort_keys=False))
            run(of_run, folder=out / name, source=path, console=console)
        figures = reported(out, list(runs), chosen)
    except TreespecError as error:
        raise typer.BadParameter(str(error)) from None
    if saved:
        about = figures.pop("about")
        say(console, f"written: {write(NAME, about | {'figures': figures})}")


if __name__ == "__main__":
    typer.run(main)
