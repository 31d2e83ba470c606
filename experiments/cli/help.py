"""The app `treespec` and its help: commands in groups on one screen, and examples for every command."""

from typing import Any

import typer
from typer.core import TyperGroup

PANELS = ("Experiments", "Trees", "Checks")
"""Groups of commands, in the order of the help; each command names its group as `rich_help_panel`."""

ORDER = (
    *("init", "run", "sweep", "report", "diff", "generate", "models", "train"),
    *(
        "search",
        "estimate",
        "trace",
        "replay",
        "profile",
        "export",
        "datastore",
        "skip-set",
    ),
    *("check-lossless", "configs", "parts", "doctor"),
)
"""Commands that come first in their panels; all others follow by name."""

LONGEST_SENTENCE = 1000
"""Characters of a command's first sentence: large enough never to cut it; it may wrap to a second line."""

UNWRAPPED = "\b"
"""Marks a paragraph whose lines are not rewrapped."""


def examples(*commands: str) -> str:
    """The epilog of a command: examples that work as written.

    Example:
        >>> examples("treespec configs").splitlines()[1:]
        ['Examples:', '  treespec configs']
    """
    return "\n".join([UNWRAPPED, "Examples:", *(f"  {command}" for command in commands)])


class CommandGroup(TyperGroup):
    """A group whose help shows its commands by panel, before the options."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from treespec.reading_models import plain_words

            error.message = plain_words(error.message).rstrip(".")
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse arguments that are no text, before they reach names, records and tokenizers."""
        for text in args:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise typer.BadParameter(f"{text!r} is not UTF-8: convert it, or set PYTHONUTF8=1")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(
            self.commands,
            key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
        )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        with formatter.section("Options"):
            # typer's text of --show-completion would take two lines of the one screen.
            formatter.write_dl(
                [
                    (name, text.replace(", to copy it or customize the installation", ""))
                    for name, text in filter(None, records)
                ]
            )

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {
            name: command
            for name, command in commands.items()
            if command is not None and not command.hidden
        }
        width = max(map(len, shown), default=0)
        for panel in PANELS:
            rows = [
                (name.ljust(width), shown[name].get_short_help_str(LONGEST_SENTENCE))
                for name in shown
                if getattr(shown[name], "rich_help_panel", None) == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


FIRST_STEPS = f"""{UNWRAPPED}
First steps:
  treespec doctor              what this machine can do
  treespec run smoke           every kind of method, in seconds
  treespec run tree_vs_chain   do trees beat chains here?
"""

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    epilog=FIRST_STEPS,
)
