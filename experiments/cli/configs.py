"""`treespec configs`, `init`, `parts` and `doctor`: what configs can say, and what this machine can do."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.cli.common import (
    FAILED,
    AsJson,
    Debug,
    Plugins,
    complete_config,
    echo,
    friendly,
    json_text,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples


@app.command(
    "configs",
    rich_help_panel="Checks",
    epilog=examples(
        "treespec configs",
        "treespec configs tree_vs_chain",
        "treespec configs --schema > treespec.schema.json",
        "treespec configs --schema --plugin mine.py > treespec.schema.json",
        "treespec configs --json",
    ),
)
def configs_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Print this config: a shipped one, or a YAML file.",
            autocompletion=complete_config,
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of configs, for editors.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the shipped configs, or print one.

    All keys are explained in docs/configs.md.
    """
    with friendly(debug):
        from treespec.experiments.config.files import shipped
        from treespec.experiments.errors import ConfigError

        if schema and (name is not None or as_json):
            raise ConfigError(
                "--schema prints the schema of all configs: give no NAME and no --json"
            )
        if plugin and not schema:
            raise ConfigError("--plugin adds its parts to the schema: give --schema too")
        if schema:
            from treespec.experiments.config.plugged import plug_in
            from treespec.experiments.config.reference import schema_text

            plug_in(plugin or ())
            echo(schema_text(), nl=False)
            return
        if name is not None:
            _print_config(name, as_json)
            return
        rows = [
            {
                "name": shipped_name,
                "path": path,
                "about": path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip(),
            }
            for shipped_name, path in shipped().items()
        ]
        if as_json:
            echo(json_text({"configs": rows}))
        else:
            for row in rows:
                echo(f"{row['name']:20} {row['about']}")


@app.command(
    "init",
    rich_help_panel="Experiments",
    epilog=examples("treespec init my.yaml", "treespec init experiments/first.yaml"),
)
def init_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write, such as my.yaml.")
    ],
    debug: Debug = False,
) -> None:
    """Write a small config to start from.

    It is commented line by line, and runs as it is on the embedded pair, in less than a minute. An
    existing file is left as it is: exit code 2.
    """
    with friendly(debug):
        from treespec.experiments.config.file import write_first

        write_first(file)
        echo(f"written: {file}; run it with: treespec run {file}")


def _print_config(name: str, as_json: bool) -> None:
    from treespec.experiments.config.file import config_text, read_data

    path, text = config_text(name)
    if as_json:
        echo(json_text({"path": path, "config": read_data(name)[1]}))
    else:
        echo(text, nl=not text.endswith("\n"))


TITLES = {
    "rules": "acceptance rules (rule: NAME)",
    "laws": "laws: how children are chosen (law: NAME)",
    "shapes": "shapes (shape: {kind: NAME, ...})",
    "growths": "growths: trees grown from draft probabilities (shape: {kind: NAME, ...})",
    "sources": "draft sources (draft: {source: NAME, ...})",
    "processors": "logits processors (samplings: [{custom: [{processor: NAME}]}])",
    "metrics": "metrics, recorded for each prompt",
    "models": "models that `treespec models get NAME` fetches (models: {target: NAME})",
}


@app.command(
    "parts",
    rich_help_panel="Checks",
    epilog=examples("treespec parts", "treespec parts --plugin mine.py", "treespec parts --json"),
)
def parts_command(plugin: Plugins = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List what configs can name: rules, laws, shapes and more.

    Also growths, draft sources and metrics, including those of plug-ins: of installed packages, and of
    files given with --plugin.
    """
    with friendly(debug):
        from treespec.experiments.config.parts import listed
        from treespec.experiments.config.plugged import plug_in

        plug_in(plugin or ())
        by_kind: dict[str, Any] = listed()
        if as_json:
            echo(json_text(by_kind))
        else:
            for kind, rows in by_kind.items():
                _print_parts(TITLES[kind], rows)


def _print_parts(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of parts; a column `from` appears only if some parts come from plug-ins."""
    from treespec.experiments.report.table import Column, Table, keyed
    from treespec.experiments.report.terminal import print_table
    from treespec.plugins import OURS

    def about(row: Mapping[str, Any]) -> str:
        settings = ", ".join(row.get("settings") or ())
        return row["about"] + (f" [{settings}]" if settings else "")

    def origin(row: Mapping[str, Any]) -> str:
        return "" if row["origin"] == OURS else row["origin"]

    columns = [keyed("name", "name", left=True), Column("what it is", about, left=True)]
    if any(map(origin, rows)):
        columns.append(Column("from", origin, left=True))
    if rows:
        print_table(Table("", columns, rows, title=title), output())


@app.command(
    "doctor",
    rich_help_panel="Checks",
    epilog=examples(
        "treespec doctor",
        "treespec doctor --quick",
        "treespec doctor --json > machine.json",
    ),
)
def doctor_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the self-test, except for loading the pair.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what this machine can do, in half a minute.

    Reports on Python, torch, GPUs, kernels, compilers and SLURM. Then compares a text with `generate`,
    measures how small a difference between two methods shows here, compares all implementations of tree
    attention, and measures the cost of verifying 16 nodes.

    Exit code 0: all tests passed. 1: a test failed.
    """
    from treespec.experiments.doctor import examine, print_checkup
    from treespec.experiments.run.progress import Reporter

    with suppress(ImportError):  # the checks report a missing package
        from treespec.experiments.run.models import calm_transformers

        calm_transformers()
    with Reporter(progress(quiet=False)).task("checking this machine") as say:
        checkup = examine(quick, say)
    if as_json:
        echo(json_text({"ok": checkup.ok, **vars(checkup)}))
    else:
        print_checkup(checkup, output())
    if not checkup.ok:
        raise typer.Exit(FAILED)
