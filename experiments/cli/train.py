"""`treespec train`: train drafts for a target, and let the target write the texts for it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    ExecutorName,
    Quiet,
    SlurmOptions,
    Workers,
    echo,
    friendly,
    json_text,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples


class _OrConfig(TyperGroup):
    """A group whose first argument may be a config, which is then trained."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


_train = typer.Typer(no_args_is_help=True, cls=_OrConfig)
app.add_typer(
    _train,
    name="train",
    help="Train draft models and heads for a target.",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec train embedded",
        "treespec train embedded tokens=50000 --out trained/first",
        "treespec train data texts --target smollm2 --tokens 200000",
        "treespec train smollm2 texts.path=texts",
        "treespec train check trained/smollm2",
    ),
)


@_train.callback()
def _training() -> None:
    """Train draft models and heads for a target: `treespec train CONFIG`."""


@_train.command(
    "run",
    epilog=examples(
        "treespec train embedded",
        "treespec train embedded tokens=50000 --out trained/first",
        "treespec train smollm2 texts.path=texts --only eagle3",
        "torchrun --nproc-per-node 8 -m treespec.experiments.cli train smollm2 device=cuda",
    ),
)
def train_command(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="A YAML file, or a shipped one: embedded, distillation, smollm2."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Override keys: tokens=50000 drafts.0.inner=512."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write, or to go on with.  [trained/NAME]"),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="Train this draft alone.")
    ] = None,
    executor: ExecutorName = "process",
    workers: Workers = None,
    slurm: SlurmOptions = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train the drafts of a config on the same texts; the same command goes on with a killed training.

    Each draft is measured on the way, by what it is for: tokens per step of several trees, replayed on the
    target's own answers to held-out prompts. Written are heads in their authors' layouts, which configs
    take as `draft: {source: eagle3, model: FOLDER}`, the curves as a figure, and results.json.
    """
    with friendly(debug, "interrupted; the same command goes on where it stopped"):
        from treespec.experiments.errors import ConfigError
        from treespec.experiments.report.terminal import print_finding
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.experiments.training.processes import processes
        from treespec.experiments.training.settings import load_training
        from treespec.experiments.training.trained import finding
        from treespec.experiments.training.training_run import TrainingRun

        calm_transformers()
        made = load_training(config, overrides or ())
        folder = out or Path("trained", made.name)
        if executor != "process":
            _train_as_jobs(made, folder, executor, workers, slurm or [], only, quiet=quiet)
        elif workers is not None or slurm:
            raise ConfigError("--workers and --slurm need --executor local or slurm")
        with processes(made.device) as others:
            reporter = Reporter(progress(quiet) if others.first else None)
            trained = TrainingRun(made, folder, reporter, others).run(only)
        if not others.first:
            return
        if as_json:
            echo(json_text({"folder": folder, "drafts": [one.row() for one in trained]}))
        elif not quiet:
            print_finding(finding(trained, folder), output())
            echo(f"written: {folder}")


def _train_as_jobs(
    config: Any,
    folder: Path,
    executor: str,
    workers: int | None,
    slurm: list[str],
    only: str | None,
    *,
    quiet: bool,
) -> None:
    """Train each draft in a process of its own; what is left to do here is the table."""
    from treespec.experiments.run.progress import Reporter
    from treespec.experiments.sweep.executors import Executor, LocalWorkers
    from treespec.experiments.sweep.slurm import Slurm, parse_settings
    from treespec.experiments.sweep.sweep import require_workers
    from treespec.experiments.training.training_jobs import MODULE, run_job, train_as_jobs

    require_workers(executor, workers)
    parameters = parse_settings(slurm)

    def make(logs: Path) -> Executor:
        if executor == "local":
            return LocalWorkers(workers or 1, module=MODULE)
        return Slurm(logs / "slurm", parameters, workers=workers, run=run_job)

    train_as_jobs(config, folder, make, Reporter(progress(quiet)), only)


@_train.command(
    "check",
    epilog=examples(
        "treespec train check trained/embedded",
        "treespec train check trained/smollm2 --only eagle3 --json",
    ),
)
def check_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a training.")],
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME", help="Check this draft alone.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Device of target and drafts.  [the config's]")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run trained drafts on the held-out prompts, and compare every step with the metric's replay.

    Both are equal but where two numbers are almost tied: each such step is shown with its gap.
    """
    with friendly(debug):
        from treespec.experiments.report.terminal import print_finding
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.experiments.training.check_trained import check_trained, finding

        calm_transformers()
        checked = check_trained(folder, Reporter(progress(quiet)), only, device)
        if as_json:
            echo(json_text({"folder": folder, "trees": [one.row() for one in checked]}))
        else:
            print_finding(finding(checked), output())


@_train.command(
    "data",
    epilog=examples(
        "treespec train data texts --target smollm2 --tokens 200000",
        "treespec train data texts --target smollm2 --device cuda --batch 512 --tokens 8000000",
        "treespec train data code --tokens 50000 --greedy 1",
        "treespec train data texts-of-mine --target smollm2 --texts docs",
        "treespec train data answers --target smollm2 --texts questions --continue",
    ),
)
def data_command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder to write, or to go on with.")
    ],
    target: Annotated[
        str, typer.Option("--target", help="The target: embedded, a folder, a hub id, or smollm2.")
    ] = "embedded",
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens of all answers; may grow later.")
    ] = 200_000,
    batch: Annotated[int, typer.Option("--batch", help="Texts written side by side.")] = 64,
    answer: Annotated[int, typer.Option("--answer", help="Maximum tokens of an answer.")] = 256,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of sampled answers and invented prompts.")
    ] = 1.0,
    greedy: Annotated[
        float, typer.Option("--greedy", help="Share of answers that are written greedily.")
    ] = 0.5,
    invented: Annotated[
        float, typer.Option("--invented", help="Share of prompts that a chat model invents.")
    ] = 0.5,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            metavar="FOLDER",
            help="Take the .txt, .md, .py and .jsonl files of a folder as they are; nothing is written.",
        ),
    ] = None,
    continued: Annotated[
        bool, typer.Option("--continue", help="Let the target continue or answer these texts.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts and answers.")] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="Dtype of the target.  [bfloat16 where the device multiplies in it, else float32]",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Device of the target.")] = "cpu",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Let a target write texts to train on; the same command goes on with a killed one.

    A chat model answers filled templates and prompts that it invents; the embedded target continues code.
    Loops, repeats, empty answers and held-out prompts are dropped.
    """
    with friendly(debug, "interrupted; the same command goes on where it stopped"):
        from treespec.experiments.config.files import require_within
        from treespec.experiments.config.places import require_inputs
        from treespec.experiments.errors import ConfigError

        require_inputs({"--target": target})
        require_within("--tokens", tokens, 1, 10**10)
        require_within("--batch", batch, 1, 2**16)
        require_within("--answer", answer, 1, 2**20)
        require_within("--seed", seed, 0, 2**62)
        _require_shares(temperature, {"--greedy": greedy, "--invented": invented})
        if continued and texts is None:
            raise ConfigError("--continue needs a folder of texts: give --texts FOLDER")
        if texts is not None and not texts.is_dir():
            raise ConfigError(f"--texts {texts}: there is no such folder")
        from treespec.experiments.report.terminal import print_finding
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.run.progress import Reporter
        from treespec.experiments.training.precision import has_bfloat16
        from treespec.experiments.training.texts.counts import finding
        from treespec.experiments.training.texts.text_folder import dtype_begun_in
        from treespec.experiments.training.texts.write_texts import Recipe, write_texts
        from treespec.models.load import load_pair

        calm_transformers()
        reporter = Reporter(progress(quiet))
        usual = "bfloat16" if has_bfloat16(device) else "float32"
        dtype = dtype or dtype_begun_in(out) or usual
        with reporter.task(f"loading {target}"):
            pair = load_pair(target, "none", dtype=dtype, device=device, passes="eager")
        recipe = Recipe(
            target=target,
            tokens=tokens,
            batch=batch,
            answer=answer,
            temperature=temperature,
            greedy=greedy,
            invented=invented,
            seed=seed,
            texts=texts,
            continued=continued,
        )
        written = write_texts(out, recipe, pair, reporter)
        manifest = written.data.manifest
        if as_json:
            echo(json_text({"folder": out, "recipe": manifest["recipe"], **manifest["counts"]}))
        elif not quiet:
            print_finding(finding(manifest, written.seconds, written.tokens), output())
            echo(f"written: {out}")


def _require_shares(temperature: float, shares: dict[str, float]) -> None:
    """Reject shares outside 0 to 1, and a temperature that is none."""
    from treespec.experiments.errors import ConfigError

    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"{name} = {share}: must be between 0 and 1")
    if not 0 <= temperature <= 100:
        raise ConfigError(f"--temperature = {temperature}: must be between 0 and 100")
