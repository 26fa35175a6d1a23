"""`warden config`: checks a configuration and everything it names, all mistakes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from audit.seal import KeyFault, load_root_key, same_volume
from sidecar.cli.common import Exit, JsonOption, absent, emit, fail
from sidecar.runtime import compose
from sidecar.runtime.settings import SettingsError, load

app = typer.Typer(no_args_is_help=True, help="The sidecar's configuration: check.")


@app.callback()
def root() -> None:
    """The sidecar's configuration."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="warden.yaml")],
    *,
    json: JsonOption = False,
) -> None:
    """Say whether `warden serve` would start with FILE: its text, the bundle it names, its keys."""
    problems = _problems(file)
    if json:
        emit({"ok": not problems, "problems": problems})
    if problems:
        if json:
            raise typer.Exit(int(Exit.NO))
        fail(Exit.NO, f"{len(problems)} problem(s)\n" + "\n".join(problems))
    if not json:
        typer.echo(f"{file}: good")


def _problems(file: Path) -> list[str]:
    if absent(file):
        return [f"{file}: no such file"]
    try:
        settings = load(file)
    except SettingsError as fault:
        return [str(problem) for problem in fault.problems]
    problems: list[str] = []
    try:
        compose.check(settings)
    except compose.StartError as fault:
        problems += str(fault).splitlines()
    problems += [f"{file}: {problem}" for problem in compose.identity_problems(settings)]
    journal = settings.audit.journal
    key = load_root_key(journal.key_file, apart_from=journal.directory)
    if isinstance(key, KeyFault):
        problems.append(f"{file}: audit.journal.key_file: {key.detail}")
    elif journal.directory.exists() and same_volume(journal.key_file, journal.directory):
        typer.echo(
            f"{file}: audit.journal.key_file: on the journal's own volume; who takes the disk has both", err=True
        )
    return problems
