"""The help of `treespec`: commands in groups on one screen, and examples under every command."""

from typing import Any

from typer import BadParameter
from typer.core import TyperGroup

from treespec.reading_words import plain_words

__all__ = ["ORDER", "PANELS", "CommandGroup", "examples"]

PANELS = ("Experiments", "Trees", "Checks")
"""In the order in which the help shows them; a command says which is its own (`rich_help_panel`)."""

ORDER = (
    *("init", "run", "sweep", "report", "diff", "generate"),
    *(
        "search",
        "regret",
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
"""The commands that come first in their panels; the others follow by name."""

LONGEST_SENTENCE = 1000
"""Characters of a command's first sentence: so many that it is never cut; it may take a second line."""

UNWRAPPED = "\b"
"""Stands before a paragraph whose lines are kept as they are."""


def examples(*commands: str) -> str:
    """The epilog of a command: lines that work as they are written.

    Args:
        commands: whole command lines, `treespec` included.

    Example:
        >>> examples("treespec configs").splitlines()[1:]
        ['Examples:', '  treespec configs']
    """
    return "\n".join([UNWRAPPED, "Examples:", *(f"  {command}" for command in commands)])


class CommandGroup(TyperGroup):
    """Shows its commands in their panels, before the options."""

    def invoke(self, ctx: Any) -> Any:
        """Call a command; errors in its options are put in our words."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            error.message = plain_words(error.message).rstrip(".")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands, then the options."""
        self.format_commands(ctx, formatter)
        records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel: every command with its first sentence."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {
            name: command
            for name, command in commands.items()
            if command is not None and not command.hidden
        }
        names = sorted(
            shown, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
        )
        width = max(map(len, shown), default=0)
        for panel in PANELS:
            rows = [
                (name.ljust(width), shown[name].get_short_help_str(LONGEST_SENTENCE))
                for name in names
                if getattr(shown[name], "rich_help_panel", None) == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
