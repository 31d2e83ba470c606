"""`treespec draft`: check a trained head before it is used, and write it for other programs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Quiet,
    echo,
    friendly,
    json_text,
    output,
    progress,
    yaml_or_name,
)
from treespec.experiments.cli.help import app, examples

_draft = typer.Typer(no_args_is_help=True)
app.add_typer(
    _draft,
    name="draft",
    help="Check a trained head, or write it for engines.",
    rich_help_panel="Checks",
    epilog=examples(
        "treespec draft check heads/eagle3 --target Qwen/Qwen3-8B",
        "treespec draft check glm --target glm --source '{source: mtp, state: pre}'",
        "treespec draft export heads/eagle3 for-engines --target Qwen/Qwen3-8B",
    ),
)

Head = Annotated[
    str, typer.Argument(metavar="HEAD", help="Folder, hub id or shipped name of the head.")
]
Target = Annotated[
    str, typer.Option("--target", help="The target: embedded, a folder, a hub id, or smollm2.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        help="eagle, eagle3, mtp, medusa, block, or with keys: '{source: mtp, state: pre}'.  [as its "
        "files say]",
    ),
]


def _source_of(head: str, source: str | None) -> dict[str, Any]:
    """The draft source and its keys: as given, or the one that the head's files say."""
    from treespec.experiments.measure.head_check import family_of

    given = yaml_or_name("--source", source) or family_of(head)
    return {"source": given} if isinstance(given, str) else given


@_draft.command(
    "check",
    epilog=examples(
        "treespec draft check heads/eagle3 --target Qwen/Qwen3-8B",
        "treespec draft check heads/old --target llama --source eagle --tokens 400 --json",
        "treespec draft check glm --target glm --source '{source: mtp, state: pre}'",
    ),
)
def check_command(
    head: Head,
    target: Target,
    source: Source = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of all texts together.")] = 200,
    dtype: Annotated[str, typer.Option("--dtype", help="Dtype of the target.")] = "float32",
    device: Annotated[str, typer.Option("--device", help="Device of the target.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a trained head by every convention that its format leaves open, and warn if another fits better.

    The head drafts greedy texts of the target. A head that is run by other conventions than those it was
    trained with loads and runs, and is right almost nowhere. The exit code is 0 with a warning too.
    """
    with friendly(debug):
        from treespec.experiments.config.places import require_inputs

        require_inputs({"--target": target})
        from treespec.experiments.measure.head_check import check_head, finding
        from treespec.experiments.report.terminal import print_finding
        from treespec.experiments.run.models import calm_transformers

        calm_transformers()
        check = check_head(
            head,
            _source_of(head, source),
            {"target": target, "dtype": dtype, "device": device},
            tokens=tokens,
            say=lambda contract: None if as_json or quiet else echo(contract),
            console=progress(quiet),
        )
        if as_json:
            rows = [
                {
                    "conventions": one.label,
                    "keys": one.keys,
                    "right": [one.right_at(depth) for depth in range(1, 5)],
                    "tokens_per_step": one.tokens_per_step,
                    "steps": len(one.accepted),
                }
                for one in check.tried
            ]
            found = {"contract": check.contract, "warning": check.warning, "rows": rows}
            echo(json_text(found))
        elif quiet:
            echo(check.verdict)
        else:
            print_finding(finding(check), output())


@_draft.command(
    "export",
    epilog=examples(
        "treespec draft export heads/eagle3 for-engines --target Qwen/Qwen3-8B",
        "treespec draft export heads/old for-engines --target llama --source eagle",
    ),
)
def export_command(
    head: Head,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="New or empty folder to write to.")
    ],
    target: Target,
    source: Source = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a trained head in its authors' layout, so that serving engines can load it.

    Read in any layout that `source` knows; written in one. Weights get the dtype of the stored target.
    """
    with friendly(debug):
        from treespec.experiments.config.places import require_inputs

        require_inputs({"--target": target})
        from treespec.experiments.measure.head_check import export_head
        from treespec.experiments.run.models import calm_transformers

        calm_transformers()
        contract = export_head(
            head,
            _source_of(head, source),
            {"target": target, "dtype": "auto"},
            folder,
            console=progress(quiet),
        )
        echo(f"{contract}\nwritten: {folder}")
