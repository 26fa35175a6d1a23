"""The `warden` command: one table of its subcommands, each imported only when it is asked for."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Final

import typer

from sidecar.cli.common import Exit

# Name → the module and the Typer app, or the function, that is the command. Importing all of them takes over a second.
GROUPS: Final = {
    "config": "sidecar.cli.config",
    "policy": "sidecar.cli.policy",
    "keys": "sidecar.cli.keys",
    "token": "sidecar.cli.token",
    "models": "sidecar.cli.models",
    "db": "sidecar.cli.db",
    "audit": "sidecar.cli.evidence",  # adds to sidecar.cli.audit's
    "journal": "sidecar.cli.journal",
}
COMMANDS: Final = {
    "demo": ("sidecar.cli.demo.command", "demo"),
    "serve": ("sidecar.cli.serve", "serve"),
    "ship": ("sidecar.cli.ship", "ship"),
    "init": ("sidecar.cli.init", "init"),
    "usage": ("sidecar.cli.usage", "usage"),
}
# No command takes a whole key (sidecar.identity.keys), so one among the arguments is a mistake.
_WHOLE_KEY: Final = re.compile(r"wdn_[a-z0-9]{1,12}_[0-9A-Za-z]{12}_[0-9A-Za-z]")


def build(asked: str | None = None) -> typer.Typer:
    """The command line, with only the subcommand ``asked`` for, or whole."""
    app = typer.Typer(
        name="warden",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Triton Warden: governance and observability for NVIDIA Triton, per tenant.",
    )
    app.callback()(_root)  # without a callback a single command would lose its name
    known = asked in GROUPS or asked in COMMANDS
    for name, module in GROUPS.items():
        if not known or name == asked:
            app.add_typer(import_module(module).app, name=name)
    for name, (module, function) in COMMANDS.items():
        if not known or name == asked:
            app.command(name=name)(getattr(import_module(module), function))
    return app


def _tell_version(asked: bool) -> None:  # noqa: FBT001 — as typer calls it
    if asked:
        typer.echo(f"warden {version('triton-warden')}")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Nothing of its own."""


def main() -> None:
    if any(map(_WHOLE_KEY.search, sys.argv[1:])):  # before a parser, a fault or a record of this asking repeats it
        sys.stderr.write("warden: an argument holds a whole API key: give the 12 characters in its middle, its id\n")
        sys.exit(int(Exit.USAGE))
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    build(asked)()


if __name__ == "__main__":
    main()
