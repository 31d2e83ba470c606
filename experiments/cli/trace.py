"""Commands about recorded acceptance and times: `trace`, `replay`, `estimate`, `profile`."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import (
    INTERRUPTED,
    AsJson,
    ConfigArgument,
    Debug,
    Overrides,
    Plugins,
    Quiet,
    complain,
    echo,
    friendly,
    json_text,
    load,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples


@app.command(
    "trace",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec trace speed --sampling T=0 --out trace.npz",
        "treespec trace tree_vs_chain --sampling T=1 --out warm.npz prompts.count=24",
        "treespec trace smoke --sampling T=0 --method 'chain 4' --out chain.npz",
        "treespec trace speed --sampling T=0 --beam 8 --out growths.npz",
        "treespec trace merged --sampling T=0 --method lookup --out lookup.npz",
    ),
)
def trace_command(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The file to write, such as trace.npz.")],
    overrides: Overrides = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            "--sampling", help="The sampling setting, such as T=1, if the config has several."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="Record the draft source, law and rule of this method."),
    ] = None,
    law: Annotated[str | None, typer.Option("--law", help="How children are drawn.")] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="How children are accepted.")] = None,
    width: Annotated[int, typer.Option("--width", help="Children at each position.")] = 8,
    beyond: Annotated[
        int, typer.Option("--beyond", help="Positions after each text's end, for deep trees.")
    ] = 16,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the prompts' own texts instead of decoding.")
    ] = False,
    beam: Annotated[
        int,
        typer.Option(
            "--beam", help="For growths: also record N children of the N best nodes per level."
        ),
    ] = 0,
    beam_depth: Annotated[
        int, typer.Option("--beam-depth", help="Levels that --beam records, and those of a head.")
    ] = 8,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no progress.")] = False,
    plugin: Plugins = None,
    debug: Debug = False,
) -> None:
    """Record which drafted children the target accepts.

    Recording is per position, so that `treespec replay` and `treespec search` can use the file for every
    static tree. With --beam, draft probabilities off the text are recorded too, for growths. For a method
    with a text source, such as lookup, everything it may draft within its budget is recorded. For a trained
    head, such as eagle3, the draft rooted at every position is recorded, --beam-depth levels deep.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, write_new
        from treespec.experiments.measure.profile.plan import measured_without
        from treespec.experiments.measure.traces import trace

        require_new(out)
        experiment = load(config, overrides, plugin)
        recorded = trace(
            experiment,
            sampling=sampling,
            method=method,
            law=law,
            rule=rule,
            width=width,
            beyond=beyond,
            follow=follow,
            beam=beam,
            beam_depth=beam_depth,
            console=progress(quiet),
        )
        path = write_new(out, recorded.to_bytes())
        echo(
            f"{path}: {recorded.texts} texts, {len(recorded.tokens)} positions, "
            f"{'' if recorded.text_drafts is None else 'at most '}{recorded.width} children each, "
            f"law {recorded.law}, rule {recorded.rule}"
        )
        if recorded.text_drafts is not None:
            budget = recorded.text_drafts.budget
            echo(
                f"drafts within depth {budget.depth}, size {budget.size} and branching {budget.branching}"
            )
        if recorded.levels is not None:
            echo(f"the trained head's drafts at every position: {recorded.levels} levels")
        if recorded.draft_rows is not None:
            rows = recorded.draft_rows
            echo(f"draft rows for growths: {rows.depth} levels, {rows.width} children each")
        if method is None:
            for note in measured_without(experiment):
                complain(note)


@app.command(
    "replay",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec replay trace.npz --shapes chain:4,kary:2x3,expansion:3x2x1",
        "treespec replay trace.npz --shapes chains:2x4,tree.json --json",
        "treespec replay t.npz --growth '{kind: eagle2, k: 4, depth: 6, size: 16}'",
        "treespec replay lookup.npz --growth '{kind: budget, depth: 4}'",
    ),
)
def replay_command(
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE", help="Files written by `treespec trace`.")
    ],
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes", help="Trees: chain:4,kary:2x3,chains:2x4,expansion:3x2x1, or files."
        ),
    ] = None,
    growth: Annotated[
        list[str] | None,
        typer.Option(
            "--growth",
            help="A growth (on a trace with --beam) or a budget, as in configs; repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Try any trees on recorded traces, without a model."""
    with friendly(debug):
        from treespec.experiments.config.files import RECORDING, require_there

        for path in traces:
            require_there(path, "", RECORDING)
        from treespec.experiments.measure.replays import (
            plain_rows,
            replay_tables,
            replay_traces,
        )
        from treespec.experiments.report.terminal import print_table

        rows = replay_traces(traces, shapes, growth or ())
        if as_json:
            echo(json_text({"rows": plain_rows(rows)}))
        else:
            for table in replay_tables(rows):
                print_table(table, output())
                if table.said:
                    echo(table.said)


@app.command(
    "estimate",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec estimate trace.npz --by depth --shrinkage 20 --out rates.json",
        "treespec estimate trace.npz --ranks 4 --interval bootstrap",
    ),
)
def estimate_command(
    source: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A file written by `treespec trace`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the estimate to this file; as Sequoia's vector if it ends in .pt."
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option("--by", help="rank: one row of rates for all depths; depth: a row per level."),
    ] = "rank",
    depth: Annotated[
        int | None, typer.Option("--depth", help="With --by depth: number of levels.")
    ] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", help="Children per node.")] = None,
    interval: Annotated[
        str, typer.Option("--interval", help="wilson, or bootstrap over texts.")
    ] = "wilson",
    shrinkage: Annotated[
        float,
        typer.Option(
            "--shrinkage", help="Pseudo-counts that shrink each level towards all levels together."
        ),
    ] = 0.0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Estimate how often the k-th child is accepted.

    Prints rates with intervals and counts; warnings about small samples follow the table.
    """
    with friendly(debug):
        from treespec.experiments.config.files import (
            RECORDING,
            require_new,
            require_there,
            write_new,
        )

        require_there(source, "", RECORDING)
        from treespec.experiments.measure.estimate import (
            LEVELS_SHOWN,
            estimate,
            estimate_json,
            estimate_table,
        )
        from treespec.experiments.report.terminal import print_table
        from treespec.search.formats import dump_rates

        if out is not None:
            require_new(out)
        estimated, error = estimate(
            source, by=by, depth=depth, ranks=ranks, interval=interval, shrinkage=shrinkage
        )
        if out is not None:
            as_vector = out.suffix == ".pt"
            write_new(out, dump_rates(estimated.rates) if as_vector else estimated.to_json())
        if as_json:
            echo(estimate_json(estimated, error))
            return
        table = estimate_table(estimated, depth or LEVELS_SHOWN)
        print_table(table, output())
        echo(table.said)
        if error is not None:
            echo(f"expected calibration error {error:.2f} of the draft's probabilities")
        for text in estimated.warnings:
            echo(f"note: {text}")
        if out is not None:
            echo(f"written: {out}")


@app.command(
    "profile",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec profile speed --out latency.json",
        "treespec profile smoke --out small.json --sizes 1,4,16 --prefixes 64",
        "treespec profile speed --out batches.json --batch 1,2,4,8",
        "treespec profile trained_drafts --out head.json --method 'eagle3, tree'",
    ),
)
def profile_command(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The file to write, such as latency.json.")],
    overrides: Overrides = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", help="Tree sizes in nodes, such as 1,2,4,8,16.")
    ] = None,
    prefixes: Annotated[
        str | None, typer.Option("--prefixes", help="Tokens before the tree, such as 64,256.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch", help="Texts decoded side by side, such as 1,2,4,8; one by default."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="Time the draft of this method: a trained head, or a model."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Number of rounds; each measures everything once.")
    ] = 9,
    plugin: Plugins = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure how long the parts of a step take on this machine.

    Times verifying, drafting, accepting and committing, by tree size and number of tokens before the tree.
    With --batch, times are of a whole round: of a step of every text, each with a tree of that size.

    Ctrl-C ends it early: the times measured so far are written, with exit code 130.
    """
    with friendly(debug):
        from treespec.experiments.config.files import integers, require_new, write_new
        from treespec.experiments.measure.profile.profile import profile
        from treespec.experiments.measure.profile.profile_tables import print_profile

        require_new(out)
        measured = profile(
            load(config, overrides, plugin),
            sizes=integers("--sizes", sizes),
            prefixes=integers("--prefixes", prefixes),
            batches=integers("--batch", batch),
            method=method,
            repeats=repeats,
            console=progress(quiet),
        )
        path = write_new(out, measured.model.to_json())
        if not quiet:
            print_profile(measured.model, output())
        for note in measured.notes:
            complain(note)
        echo(f"{path}: {measured.rounds} rounds, laws {', '.join(measured.model.laws)}")
        if measured.interrupted:
            raise typer.Exit(INTERRUPTED)
