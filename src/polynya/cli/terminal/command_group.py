"""Command groups: help with whole first sentences, and hints for misplaced options."""

from __future__ import annotations

import click

_LINE_MAX = 400  # long enough for a command's first sentence


class CommandGroup(click.Group):
    """Lists its commands by their whole first sentences. Reports where an option that precedes its
    command belongs."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, self.commands[name].get_short_help_str(_LINE_MAX))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command, words = self._meant(ctx, given)
            if command is None or not any(
                error.option_name in parameter.opts for parameter in command.params
            ):
                raise
            message = (
                f"'{error.option_name}' belongs after the command: '{ctx.command_path} {words} "
                f"{error.option_name} …'."
            )
            raise click.UsageError(message, ctx) from None

    def _meant(self, ctx: click.Context, args: list[str]) -> tuple[click.Command | None, str]:
        """Return the command that the words name, and its name; None if they name none."""
        command: click.Command | None = self
        words: list[str] = []
        for word in args:
            if isinstance(command, click.Group) and word in command.list_commands(ctx):
                command = command.get_command(ctx, word)
                words.append(word)
        return (command, " ".join(words)) if words else (None, "")
