"""`warden config`: checks a configuration and everything it names, all mistakes at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from audit.seal import KeyFault, load_root_key, same_volume
from sidecar.cli.common import CONFIG_VARIABLE, DEFAULT_CONFIG, Exit, JsonOption, absent, emit, fail
from sidecar.cli.live import Live, ask
from sidecar.runtime import compose, rootkeys
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.settings import Settings, SettingsError, load
from sidecar.triton.selfcheck import Finding

app = typer.Typer(no_args_is_help=True, help="The sidecar's configuration: check.")


@app.callback()
def root() -> None:
    """The sidecar's configuration."""


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", envvar=CONFIG_VARIABLE, help="The sidecar's configuration.")
    ] = DEFAULT_CONFIG,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Ask the running Triton, Redis and databases too, as a running sidecar does.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say whether `warden serve` would start with FILE: its text, the bundle it names, its keys.

    With --live also what is amiss with the Triton, the Redis and the databases that it names: a critical finding of
    Triton's is a no, and so is a Redis that cannot hold leases or a database that is not this release's.
    """
    problems = _problems(file)
    found = ask(load(file)) if live and not problems else Live()
    problems += [f"{file}: {each}" for each in found.problems]
    bad = bool(problems) or bool(found.away) or found.critical
    if json:
        told = {"findings": [_told(each) for each in found.findings], "away": list(found.away)} if live else {}
        emit({"ok": not bad, "problems": problems, **told})
    for each in () if json else found.findings:
        typer.echo(f"{each.severity} {each.name}: {each.detail}")
    if problems and not json:
        fail(Exit.NO, f"{len(problems)} problem(s)\n" + "\n".join(problems))
    if found.away and not problems:
        fail(Exit.DEPENDENCY, f"{file}: good, but " + "; ".join(found.away))
    if bad:
        raise typer.Exit(int(Exit.NO))
    if not json:
        for words in _warnings(file):
            typer.echo(f"warning: {words}", err=True)
        typer.echo(f"{file}: good")


def _warnings(file: Path) -> list[str]:
    """What keeps no sidecar from starting, but some of its tenants from calling, or from what they asked for."""
    settings = load(file)
    return [words for _, words in compose.unkept(settings, compose.check(settings).current().bundle.tenants)]


def _told(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "severity": finding.severity, "detail": finding.detail}


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
    problems += [f"{file}: {problem}" for problem in compose.named_problems(settings)]
    journal = settings.audit.journal
    keys = rootkeys.strict_root_keys(journal)
    if isinstance(keys, KeyFault):
        problems.append(f"{file}: audit.journal.{keys.detail}")
    elif journal.directory.exists():
        journals = [settings.audit.of(each).journal for each in settings.audit.jurisdictions]
        sealed = (problem for each in journals for problem in rootkeys.problems(each, keys))
        problems += [f"{file}: audit.journal: {problem}" for problem in sealed]
        for place in filter(None, (journal.key_file, journal.keys_directory)):
            if place.exists() and same_volume(place, journal.directory):
                words = "on the journal's own volume; who takes the disk has both"
                typer.echo(f"{file}: audit.journal: {place}: {words}", err=True)
    return problems + [f"{file}: {problem}" for problem in _databases(settings)]


def _databases(settings: Settings) -> Iterator[str]:
    """What is wrong with the files that the databases' sections name."""
    own = settings.audit.database.jurisdiction
    for jurisdiction in settings.audit.jurisdictions:
        section = settings.audit.of(jurisdiction).database
        place = "audit.database" if jurisdiction == own else f"audit.databases.{jurisdiction}"
        dsn = sidecar_dsn(section)
        if isinstance(dsn, KeyFault):
            yield f"{place}.sidecar_dsn_file: {dsn.detail}"
        if section.key_file is not None:
            key = load_root_key(section.key_file, apart_from=settings.audit.journal.directory)
            if isinstance(key, KeyFault):
                yield f"{place}.key_file: {key.detail}"
