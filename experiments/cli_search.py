"""The commands about trees: `treespec search`, `profile`, `trace`, `replay`, `export`."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli_common import (
    INTERRUPTED,
    ConfigArgument,
    Debug,
    Overrides,
    Quiet,
    calm_transformers,
    complain,
    friendly,
    output,
    progress,
)

__all__ = ["app"]

app = typer.Typer()


@app.command("search")
def search_command(
    rates: Annotated[
        str,
        typer.Argument(
            metavar="RATES",
            help="Of the first, second, ... child: 0.6,0.2,0.1; levels apart by ; or a file: a trace "
            "(`treespec trace`), an estimate.",
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option("--size", help="Nodes, the root included: 16. With --latency, at most."),
    ] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Edges from the root.")] = None,
    branching: Annotated[int | None, typer.Option("--branching", help="Children at most.")] = None,
    into: Annotated[str, typer.Option("--to", help="Format to show the tree in.")] = "medusa",
    latency: Annotated[
        Path | None,
        typer.Option("--latency", help="Times (`treespec profile`): rank by predicted speed."),
    ] = None,
    prefix: Annotated[
        int | None, typer.Option("--prefix", help="Tokens before the tree, for --latency.")
    ] = None,
    law: Annotated[
        str | None, typer.Option("--law", help="How children are drawn, for --latency.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Texts at once, for --latency.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the ranking as JSON, for --latency.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Find the tree that keeps most tokens; with times, the fastest tree, chain or neither."""
    with friendly(debug):
        from experiments.tree_commands import search, search_fastest

        if latency is None:
            typer.echo(search(rates, 16 if size is None else size, depth, branching, into))
            return
        limits = {"max_size": size, "depth": depth, "branching": branching}
        where = {"prefix": prefix, "batch": batch, "laws": None if law is None else [law]}
        typer.echo(search_fastest(rates, latency, into, as_json=as_json, **limits, **where))


@app.command("profile")
def profile_command(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The file to write, such as latency.json.")],
    overrides: Overrides = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", help="Nodes of trees, such as 1,2,4,8,16.")
    ] = None,
    prefixes: Annotated[
        str | None, typer.Option("--prefixes", help="Tokens before the tree, such as 64,256.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Rounds; each measures everything once.")
    ] = 7,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure what verifying, drafting, accepting and committing take here, by size and prefix.

    Ctrl-C ends it early: what was measured until then is written, with exit code 130.
    """
    with friendly(debug):
        from experiments.config_file import load_config
        from experiments.profile_commands import integers, print_profile, profile, require_new

        require_new(out)
        calm_transformers()
        made = profile(
            load_config(config, overrides or ()),
            sizes=integers("--sizes", sizes),
            prefixes=integers("--prefixes", prefixes),
            repeats=repeats,
            console=progress(quiet),
        )
        path = made.model.save(out)
        if not quiet:
            print_profile(made.model, output())
        for note in made.notes:
            complain(note)
        typer.echo(f"{path}: {made.rounds} rounds, laws {', '.join(made.model.laws)}")
        if made.interrupted:
            raise typer.Exit(INTERRUPTED)


@app.command("export")
def export_command(
    tree: Annotated[str, typer.Argument(help="A file, or a tree as text.")],
    into: Annotated[str, typer.Option("--to", help="Format: vllm, eagle, sglang, ...")],
    form: Annotated[str | None, typer.Option("--from", help="Format of the tree.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write.")] = None,
    debug: Debug = False,
) -> None:
    """Write a tree in another tool's words, and say what these leave out."""
    with friendly(debug):
        from experiments.tree_commands import export

        printed, report = export(tree, into, form, out)
        typer.echo(printed)
        typer.echo(report, err=True)


@app.command("trace")
def trace_command(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The file to write, such as trace.npz.")],
    overrides: Overrides = None,
    sampling: Annotated[
        str | None,
        typer.Option("--sampling", help="Which setting, such as T=1, if there are several."),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Take law and rule of this tree method.")
    ] = None,
    law: Annotated[str | None, typer.Option("--law", help="How children are drawn.")] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="How they are accepted.")] = None,
    width: Annotated[int, typer.Option("--width", help="Children at each position.")] = 8,
    beyond: Annotated[
        int, typer.Option("--beyond", help="Positions after each text's end, for deep trees.")
    ] = 16,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the prompts' own texts instead of decoding.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Record which drafted child is accepted at every position, so that any tree can be replayed."""
    with friendly(debug):
        from experiments.config_file import load_config
        from experiments.trace_commands import require_new, trace

        require_new(out)
        calm_transformers()
        made = trace(
            load_config(config, overrides or ()),
            sampling=sampling,
            method=method,
            law=law,
            rule=rule,
            width=width,
            beyond=beyond,
            follow=follow,
            console=progress(quiet),
        )
        typer.echo(
            f"{made.save(out)}: {made.texts} texts, {len(made.tokens)} positions, {made.width} children "
            f"each, law {made.law}, rule {made.rule}"
        )


@app.command("replay")
def replay_command(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Of `treespec trace`.")],
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes", help="Trees: chain:4,kary:2x3,chains:2x4,expansion:3x2x1, or files."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Show what trees would have accepted on recorded texts, without running a model."""
    with friendly(debug):
        from experiments.trace_commands import replay_json, replay_tables, replay_traces

        rows = replay_traces(traces, shapes)
        if as_json:
            typer.echo(replay_json(rows))
        else:
            output().print(*replay_tables(rows), sep="\n\n")
