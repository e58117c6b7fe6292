"""The command line. This module works without typer and rich, to say that they are missing."""

import sys


def main() -> None:
    """The entry point of `lln`."""
    try:
        from lln.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("error: the command line needs typer and rich: pip install 'lln[cli]'\n")
        raise SystemExit(2) from None
    app()
