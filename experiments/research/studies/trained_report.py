"""The tables of the study of trained drafts: every method, and the best head against every other source."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.report.explanation import explained
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.summary import speed_ratio, summarise
from treespec.experiments.report.table import NONE, Cell, Column, Table, interval, keyed
from treespec.experiments.research.benchmarks.results_file import of_manifest, print_parts
from treespec.experiments.research.studies.draft_sizes import DraftSize
from treespec.experiments.research.studies.trained_choice import runs_a_model
from treespec.experiments.research.studies.trained_plan import DRAWN_RUN, Planned, planned
from treespec.search.intervals import Interval

WIDTH = 150
"""Columns of the terminal that the tables need."""


def rows_of(
    loaded: Run, sampling: str, plans: Sequence[Planned], sizes: Mapping[str, DraftSize]
) -> list[dict[str, Any]]:
    """A row for each method: its size, its speed, and its ratios over plain and the best text source.

    The best text source is the fastest on these prompts, which favours it.
    """
    data = loaded.measurements[sampling]
    best = data.fastest(_texts(plans))
    source = {plan.name: plan.source for plan in plans}
    rows = []
    for row in summarise(loaded, data).rows:
        name = row.method.name
        size = sizes.get(source.get(name, ""))
        rows.append(
            {
                "sampling": sampling,
                "method": name,
                "group": row.method.group,
                "shape": _shape(loaded, name),
                "trained": None if size is None else size.trained,
                "megabytes": None if size is None else size.level_bytes / 1e6,
                "once": size is not None and size.once,
                "tokens_per_step": row.tokens_per_step,
                "tokens_per_second": row.tokens_per_second,
                "over_plain": row.speedup,
                "over_best_text": None if best is None else speed_ratio(data.totals, name, best),
                "best_text": best,
            }
        )
    return rows


def _texts(plans: Sequence[Planned]) -> list[str]:
    """The methods whose source runs no model."""
    return list(dict.fromkeys(plan.name for plan in plans if not runs_a_model(plan.method)))


def _shape(loaded: Run, name: str) -> str:
    built = {m.name: m for m in build(Config.model_validate(loaded.manifest["config"])).methods}
    shape = built[name].shape
    if shape is None:
        return str(getattr(getattr(built[name].config, "shape", None), "label", NONE))
    if shape.size == 1:
        return NONE
    return f"chain {shape.depth}" if shape.is_chain else "+".join(map(str, shape.level_sizes[1:]))


def checks(
    loaded: Run, sampling: str, plans: Sequence[Planned], chosen: Mapping[str, Any], *, cold: str
) -> dict[str, Any]:
    """The best head against every other source: in speed, and at equal nodes in tokens per step;
    and each source's tree against its chain.

    The best head and its form are those of the replay at the setting `cold`, on other prompts; of the other
    sources every method is compared.
    """
    data, shapes = loaded.measurements[sampling], chosen["shapes"][cold]
    if not chosen["sizes"]:
        return {}
    speeds = {
        (head, form): shapes[head][form]["tokens_per_second"]
        for head in chosen["sizes"]
        for form in ("chain", "tree")
        if form in shapes[head]
    }
    head, form = max(speeds, key=lambda key: speeds[key])
    of_head = {(p.form, p.drawn): p.name for p in plans if p.source == head}
    drawn = any(drawn for _, drawn in of_head)
    mine, equal = of_head[form, drawn], of_head.get(("equal", drawn))
    others = list(dict.fromkeys(plan.name for plan in plans if plan.source != head))
    equals = [plan.name for plan in plans if plan.form == "equal" and plan.name in _texts(plans)]
    return {
        "head": mine,
        "faster": {other: speed_ratio(data.totals, mine, other) for other in ("plain", *others)},
        "equal": equal,
        "keeps": {text: speed_ratio(data.totals, equal, text, "steps") for text in equals if equal},
        "trees": over_chains(data.totals, plans),
        "explained": [explained(data, mine, other) for other in ("plain", *_texts(plans))],
    }


def over_chains(totals: Totals, plans: Sequence[Planned]) -> dict[str, Interval]:
    """How much faster the best tree of each source is than its best chain, both chosen on other prompts."""
    name = {(plan.source, plan.drawn, plan.form): plan.name for plan in plans}
    return {
        tree: speed_ratio(totals, tree, name[source, drawn, "chain"])
        for (source, drawn, form), tree in name.items()
        if form == "tree" and name.get((source, drawn, "chain"), tree) != tree
    }


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
    """Ratios by the name of what they are over."""
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


def reported(out: Path, config: Config, names: Sequence[str], chosen: Mapping[str, Any]) -> Any:
    """Print the tables of finished runs; returns their figures."""
    sizes = {source: DraftSize(**size) for source, size in chosen["sizes"].items()}
    cold = [setting.name for setting in config.samplings if not setting.temperature]
    figures: dict[str, Any] = {"chosen": chosen, "rows": [], "checks": {}}
    for name in names:
        loaded = load_run(out / name)
        sampling = loaded.samplings[0]
        figures.setdefault("about", of_manifest(loaded.manifest))
        if name == DRAWN_RUN:
            figures["drawn"] = drawn_rows(loaded, sampling)
            title = f"{chosen['drawn']['head']}, {sampling}: drawn and chosen children"
            print_parts(Table(title, DRAWN_COLUMNS, figures["drawn"], title=title), width=WIDTH)
            continue
        plans = planned(config, chosen, sampling)
        rows = rows_of(loaded, sampling, plans, sizes)
        figures["rows"] += rows
        title = f"{sampling}: {len(loaded.measurements[sampling].prompts)} prompts"
        table = Table(sampling, COLUMNS, rows, title=title, colour=lambda row: row["group"])
        print_parts(table, width=WIDTH)
        found = checks(loaded, sampling, plans, chosen, cold=[*cold, sampling][0])
        if found:
            print_parts(
                ratio_table(f"{sampling}: speed of {found['head']}", found["faster"]),
                ratio_table(
                    f"{sampling}: speed of each source's tree over its chain", found["trees"]
                ),
                ratio_table(f"{sampling}: tokens per step of {found['equal']}", found["keeps"]),
                factor_table(f"{sampling}: why {found['head']}", found["explained"]),
                width=WIDTH,
            )
            found["explained"] = [asdict(row) for row in found["explained"]]
        figures["checks"][sampling] = found
    return figures
