"""Commands that choose and export trees: `search`, `export`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    complain,
    echo,
    friendly,
    json_text,
    working,
)
from treespec.experiments.cli.help import app, examples

LatencyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--latency",
        help="Times (`treespec profile`) to rank by predicted speed: one file, or one per source.",
    ),
]


@app.command(
    "search",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec search 0.6,0.2,0.1 --size 16 --depth 5 --to eagle",
        "treespec search '0.7,0.2;0.5,0.2;0.4,0.1' --size 8 --json",
        "treespec search trace.npz --latency latency.json --size 64",
        "treespec search a.npz b.npz --latency latency.json --prefix 64,256",
        "treespec search trace.npz --latency batches.json --batch 1,8",
    ),
)
def search_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="A trace (`treespec trace`) to replay trees on; several are ranked together. Or "
            "acceptance rates: an estimate (`treespec estimate --out`), Sequoia's vector (.pt), or by rank "
            "of the child: 0.6,0.2,0.1, with levels separated by ;.",
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            help="Nodes, root included: 16 by default, or fewer if the trace of a text source holds fewer. "
            "A maximum with --latency.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", help="With --latency: consider only these sizes: 1,2,4,8,16,32."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", help="Maximum levels below the root.")
    ] = None,
    branching: Annotated[
        int | None, typer.Option("--branching", help="Maximum children per node.")
    ] = None,
    into: Annotated[
        str, typer.Option("--to", help="Format in which to print the tree.")
    ] = "medusa",
    latency: LatencyFiles = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", help="With --latency: tokens before the tree: 64, or 64,256."),
    ] = None,
    law: Annotated[
        str | None, typer.Option("--law", help="With --latency: how children are drawn.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            help="With --latency: texts in a batch: 1, or 1,8; by default all that were timed.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the tree to this file, in format --to.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the best tree for a trace or rates, and for times.

    Without --latency: prints the tree of --size nodes that keeps the most tokens. With it: ranks trees,
    chains and plain decoding by predicted speed, and says which to use, or what would decide between them.
    """
    with friendly(debug):
        from treespec.experiments.config.files import (
            TIMES,
            integers,
            require_new,
            require_source,
            require_there,
        )

        for source in sources:
            require_source(source)
        for path in latency or ():
            require_there(path, "--latency", TIMES)
        from treespec.experiments.errors import ConfigError
        from treespec.experiments.measure.fastest import search_fastest
        from treespec.experiments.measure.search import search, write_tree

        if out is not None:
            require_new(out)
            for name, value in (("--prefix", prefix), ("--batch", batch)):
                if value is not None and "," in value:
                    raise ConfigError(
                        f"--out {out} holds one tree, but {name} {value} asks for several rankings: give "
                        "one value, or omit --out"
                    )
        result: Any
        if not latency:
            given = {"--sizes": sizes, "--prefix": prefix, "--law": law, "--batch": batch}
            for name, value in given.items():
                if value is not None:
                    raise ConfigError(
                        f"{name} selects among times: give --latency too, or omit {name}"
                    )
            if len(sources) > 1:
                raise ConfigError(
                    f"{len(sources)} sources can only be ranked by speed: give --latency, or one source"
                )
            with working("searching"):
                result = search(sources[0], size, depth, branching, into)
        else:
            with working("comparing trees, chains and plain decoding"):
                result = search_fastest(
                    sources,
                    latency,
                    into,
                    prefixes=integers("--prefix", prefix) or (),
                    batches=integers("--batch", batch) or (),
                    laws=None if law is None else [law],
                    sizes=integers("--sizes", sizes),
                    max_size=size,
                    depth=depth,
                    branching=branching,
                )
        echo(json_text(result.data()) if as_json else str(result))
        if out is not None:
            complain(write_tree(result.shape, into, out))


@app.command(
    "export",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec export '[[0], [1], [0, 0]]' --from medusa --to sglang",
        "treespec export tree.json --to eagle",
        "treespec export tree.json --to sequoia --out tree.pt",
    ),
)
def export_command(
    tree: Annotated[str, typer.Argument(help="The tree: a file, or text.")],
    into: Annotated[
        str, typer.Option("--to", help="Format to write: medusa, eagle, sglang, openvino, ...")
    ],
    form: Annotated[
        str | None, typer.Option("--from", help="Format of TREE; recognised by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write.")] = None,
    debug: Debug = False,
) -> None:
    """Convert a tree to another tool's format.

    Lists on stderr what the other tool cannot express.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_tree

        require_tree(tree)
        from treespec.experiments.measure.search import export

        printed, report = export(tree, into, form, out)
        echo(printed)
        complain(report)
