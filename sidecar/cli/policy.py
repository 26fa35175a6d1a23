"""``warden policy``: check, digest, explain and test a bundle before it is rolled out."""

from __future__ import annotations

import sys
import time
from json import dumps
from pathlib import Path
from typing import Annotated, Final

import typer

from policies.bundle import Bundle, load
from policies.explain import Asked, CaseResult, Explanation, explain, run_cases
from policies.schemas import CEDAR_SCHEMA, cedar_schema, schemas
from policies.yamlfile import Problem
from sidecar.cli.common import Exit, JsonOption, emit, fail
from sidecar.core.model import Action

app: Final = typer.Typer(no_args_is_help=True, help="Check, test and explain a policy bundle.")

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle's directory.")]


@app.command()
def check(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """Tell everything that is wrong with a bundle, with file, line and column."""
    found = _load(bundle)
    problems = found if isinstance(found, list) else []
    if json:
        told = [
            {"file": p.file, "line": p.line, "column": p.column, "path": p.path, "message": p.message} for p in problems
        ]
        emit({"ok": not problems, "bundle": None if isinstance(found, list) else found.digest, "problems": told})
    elif isinstance(found, Bundle):
        counts = f"{len(found.tenants)} tenants, {len(found.models)} models, {len(found.access.statements)} policies"
        typer.echo(f"{bundle}: good ({counts}, {len(found.cases)} cases)\n{found.digest}")
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(f"{bundle}: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}")
    if problems:
        raise typer.Exit(int(Exit.NO))


@app.command()
def schema(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Where to write them; left out: all on stdout, as one JSON object."),
    ] = None,
) -> None:
    """JSON Schemas of a bundle's documents, and the Cedar schema of its policies, for editors."""
    found = schemas()
    if directory is None:
        emit({**found, CEDAR_SCHEMA: cedar_schema()})
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in found.items():
            (directory / name).write_text(dumps(content, indent=2) + "\n", "utf-8")
        (directory / CEDAR_SCHEMA).write_text(cedar_schema(), "utf-8")
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename or directory}: {fault.strerror}")
    for name, content in found.items():
        typer.echo(f"{directory / name}  for {content['x-warden-files']}")
    typer.echo(f"{directory / CEDAR_SCHEMA}  for access/*.cedar")


@app.command()
def digest(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """The digest that records and answers name this bundle by."""
    found = _good(bundle)
    if json:
        emit({"bundle": found.digest})
    else:
        typer.echo(found.digest)


@app.command("explain")
def decide_command(
    bundle: BundleArgument,
    *,
    tenant: Annotated[str, typer.Option(help="Who asks.")],
    model: Annotated[str, typer.Option(help="For which model.")],
    region: Annotated[str, typer.Option(help="Where the pod is.")],
    data_class: Annotated[str, typer.Option(help="What x-data-class says.")] = "",
    action: Annotated[str, typer.Option(help="infer, metadata or manage.")] = "infer",
    role: Annotated[list[str] | None, typer.Option(help="A role of the caller; may be repeated.")] = None,
    principal: Annotated[str, typer.Option(help="The token's subject or the key's name.")] = "explain",
    storage: Annotated[str | None, typer.Option(help="The database's jurisdiction (default: the region's).")] = None,
    telemetry: Annotated[str | None, typer.Option(help="The collector's jurisdiction (default: the region's).")] = None,
    json: JsonOption = False,
) -> None:
    """What a sidecar would decide, and every step on the way. Exits 0 for allow, 1 for deny."""
    if action not in (Action.INFER, Action.METADATA, Action.MANAGE):
        fail(Exit.USAGE, f"--action {action}: should be infer, metadata or manage")
    asked = Asked(
        tenant=tenant,
        model=model,
        region=region,
        data_class=data_class,
        action=Action(action),
        roles=frozenset(role or ["tenant"]),
        principal=principal,
        storage=storage,
        telemetry=telemetry,
        at=time.time(),
    )
    found = explain(_good(bundle), asked)
    if isinstance(found, list):
        fail(Exit.USAGE, "; ".join(problem.message for problem in found))
    if json:
        emit(found.json())
    else:
        _tell(found)
    if not found.allowed:
        raise typer.Exit(int(Exit.NO))


@app.command("test")
def cases_command(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """Run the bundle's own test cases (tests/*.yaml). Exits 1 if one fails, or if there are none."""
    results = list(run_cases(_good(bundle), time.time()))
    failed = [result for result in results if result.failure]
    if json:
        emit({"ok": bool(results) and not failed, "cases": [_told(result) for result in results]})
    else:
        for result in results:
            typer.echo(
                f"{'FAIL' if result.failure else 'ok  '} {result.name}{result.failure and ': ' + result.failure}"
            )
        typer.echo(f"{len(results)} cases, {len(failed)} failed")
    if failed or not results:
        raise typer.Exit(int(Exit.NO))


def _told(result: CaseResult) -> dict[str, object]:
    answer = result.explanation
    return {
        "name": result.name,
        "ok": not result.failure,
        "expect": result.case.case.expect,
        "got": answer.reason or "allow",
        "rule": answer.verdict.rule,
    }


def _tell(found: Explanation) -> None:
    marks = {"pass": "✓", "deny": "✗", "skip": "·", "shadow": "≈"}
    for step in found.steps:
        typer.echo(f"  {marks[step.outcome]} {step.step:<10} {'  '.join(filter(None, (step.rule, step.detail)))}")
    verdict = "allow" if found.allowed else f"deny {found.reason}"
    typer.echo(f"{verdict}  by {found.verdict.rule}\nbundle {found.bundle}")


def _load(bundle: Path) -> Bundle | list[Problem]:
    if not bundle.is_dir():
        fail(Exit.USAGE, f"{bundle}: no such directory")
    return load(bundle)


def _good(bundle: Path) -> Bundle:
    """The bundle, or leave: a bad one is bad input to anything but ``check``."""
    found = _load(bundle)
    if isinstance(found, list):
        for problem in found:
            sys.stderr.write(f"{problem}\n")
        fail(Exit.USAGE, f"{bundle}: {len(found)} problems; nothing was decided")
    return found
