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

from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console

from treespec.errors import TreespecError
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.terminal import say
from treespec.experiments.research.benchmarks.results_file import write
from treespec.experiments.research.studies.trained_choice import Recordings, kept, with_trained
from treespec.experiments.research.studies.trained_plan import (
    chosen_by_replay,
    runs_of,
    seconds_each,
)
from treespec.experiments.research.studies.trained_report import reported

NAME = "trained_drafts"


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
        figures = reported(out, asked, list(runs), chosen)
    except TreespecError as error:
        raise typer.BadParameter(str(error)) from None
    if saved:
        about = figures.pop("about")
        say(console, f"written: {write(NAME, about | {'figures': figures})}")


if __name__ == "__main__":
    typer.run(main)
