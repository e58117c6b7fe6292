"""Groups of commands that say in one line what is wrong."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from lln.cli.console import Refusal


class OneLineErrors(TyperGroup):
    """Says in one line what is wrong with an option, instead of a usage page."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise Refusal(f"{args[0]!r} is not one of the commands {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        run = super().main
        if not standalone_mode:
            return run(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = run(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            sys.exit(1)
        except Exception as error:
            # Which class this is depends on typer's version; what it can do does not.
            if not hasattr(error, "format_message"):
                raise
            message = " ".join(error.format_message().split())
            Console(stderr=True, soft_wrap=True).print(
                f"error: {message}", markup=False, highlight=False
            )
            sys.exit(2)
        sys.exit(code or 0)
