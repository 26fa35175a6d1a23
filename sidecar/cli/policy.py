"""``warden policy``: check, test, explain, compare and replay a bundle before it is rolled out, and ask why after."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from policies.bundle import Bundle, load
from policies.compare import Change, compare
from policies.coverage import rules, untouched
from policies.explain import Asked, CaseResult, Explanation, explain, run_cases
from policies.schemas import CEDAR_SCHEMAS, cedar_schemas, schemas
from policies.units import parse_duration, parse_moment
from policies.yamlfile import Problem
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.past import explain_past, replay
from sidecar.core.model import Action

app: Final = typer.Typer(no_args_is_help=True, help="Check, test, explain and compare policy bundles.")

MOST_TOLD: Final = 200  # changes that are printed one by one

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
        counts += f", {len(found.rules.rules)} rules on content" if found.rules is not None else ""
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
    """JSON Schemas of a bundle's documents, and the Cedar schemas of its policies, for editors."""
    found = schemas()
    if directory is None:
        emit({**found, **cedar_schemas()})
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in found.items():
            (directory / name).write_text(dumps(content, indent=2) + "\n", "utf-8")
        for name, text in cedar_schemas().items():
            (directory / name).write_text(text, "utf-8")
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename or directory}: {fault.strerror}")
    for name, content in found.items():
        typer.echo(f"{directory / name}  for {content['x-warden-files']}")
    for name, glob in CEDAR_SCHEMAS.items():
        typer.echo(f"{directory / name}  for {glob}")


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
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="Left out with --call: the bundle that decided it.")
    ] = None,
    *,
    tenant: Annotated[str, typer.Option(help="Who asks.")] = "",
    model: Annotated[str, typer.Option(help="For which model.")] = "",
    region: Annotated[str, typer.Option(help="Where the pod is.")] = "",
    data_class: Annotated[str, typer.Option(help="What x-data-class says; several between commas.")] = "",
    action: Annotated[str, typer.Option(help="infer, metadata or manage.")] = "infer",
    role: Annotated[list[str] | None, typer.Option(help="A role of the caller; may be repeated.")] = None,
    principal: Annotated[str, typer.Option(help="The token's subject.")] = "explain",
    key: Annotated[str, typer.Option(help="An API key's name, in place of a token.")] = "",
    source: Annotated[str, typer.Option(help="The caller's address.")] = "",
    at: Annotated[str | None, typer.Option(help="When: a day, or a time with its zone (default: now).")] = None,
    storage: Annotated[str | None, typer.Option(help="The database's jurisdiction (default: the region's).")] = None,
    telemetry: Annotated[str | None, typer.Option(help="The collector's jurisdiction (default: the region's).")] = None,
    call: Annotated[str | None, typer.Option(help="A recorded call's id, in place of all the above.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """What a sidecar would decide, or did, and every step on the way. Exits 0 for allow, 1 for deny."""
    if call is not None:
        _explain_past(call, None if bundle is None else _good(bundle), config, json=json)
        return
    if bundle is None or not tenant or not region:
        fail(Exit.USAGE, "needs BUNDLE, --tenant and --region (and --model); or --call")
    if action == Action.INFER and not model:
        fail(Exit.USAGE, "--action infer needs --model")
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
        key=key,
        source=source,
        at=_moment(at),
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


def _moment(written: str | None) -> float:
    if written is None:
        return time.time()
    try:
        return parse_moment(written)
    except ValueError as fault:
        fail(Exit.USAGE, f"--at {written!r} {fault}")


def _explain_past(call: str, under: Bundle | None, config: Path, *, json: bool) -> None:
    past, found = explain_past(call, under, config)
    got = str(found.reason or "allow")
    same = past.verdict is None or past.verdict == got or (got != "allow" and past.would_refuse == got)
    recorded = {"verdict": past.verdict, "rule": past.rule, "bundle": past.bundle, "would_refuse": past.would_refuse}
    if json:
        emit({**found.json(), "call": call, "recorded": recorded, "same": same})
    else:
        typer.echo(f"call {call}, {past.principal.tenant}/{past.principal.name}, {past.model or past.method.name}")
        _tell(found)
        before = "the bundle was not asked" if past.verdict is None else past.verdict
        typer.echo(f"recorded: {before}  by {past.rule}{'' if same else '  (differs)'}\nrecorded under {past.bundle}")
    if not found.allowed:
        raise typer.Exit(int(Exit.NO))


@app.command("test")
def cases_command(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """Run the bundle's own test cases (tests/*.yaml), and name the rules that none of them touches.

    Exits 1 if one fails, or if there are none.
    """
    good = _good(bundle)
    at = time.time()
    results = list(run_cases(good, at))
    failed = [result for result in results if result.failure]
    every, left = rules(good), untouched(good, results, at)
    if json:
        coverage = {"rules": len(every), "untouched": left}
        emit({"ok": bool(results) and not failed, "cases": [_told(result) for result in results], "coverage": coverage})
    else:
        for result in results:
            typer.echo(
                f"{'FAIL' if result.failure else 'ok  '} {result.name}{result.failure and ': ' + result.failure}"
            )
        for rule in left:
            typer.echo(f"note no case touches {rule}")
        typer.echo(
            f"{len(results)} cases, {len(failed)} failed; {len(every) - len(left)} of {len(every)} rules touched"
        )
    if failed or not results:
        raise typer.Exit(int(Exit.NO))


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The bundle as it is.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The bundle as it is to be.")],
    *,
    at: Annotated[str | None, typer.Option(help="From when on: a day, or a time with its zone (default: now).")] = None,
    json: JsonOption = False,
) -> None:
    """Whose calls would be answered otherwise: over the cases of both, and every principal, model, region and class.

    Exits 0 where nothing changes, else 1.
    """
    compared = compare(_good(old), _good(new), _moment(at))
    changes = [_changed(change) for change in compared.changes()]
    if json:
        emit({"changes": changes, "asked": compared.asked, "old": compared.old.digest, "new": compared.new.digest})
    else:
        lines = _lines(changes)
        for line in lines[:MOST_TOLD]:
            typer.echo(line)
        if len(lines) > MOST_TOLD:
            typer.echo(f"… and {len(lines) - MOST_TOLD} more lines; --json has all")
        typer.echo(f"{len(changes)} of {compared.asked} questions answered otherwise")
    if changes:
        raise typer.Exit(int(Exit.NO))


def _lines(changes: list[dict[str, Any]]) -> list[str]:
    """Changes for reading: those that differ only in their moment or their data class are one line."""
    moments: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for change in changes:
        asked = {name: str(value or "") for name, value in change["asked"].items()}
        at, data_class = asked.pop("at"), asked.pop("data_class")
        answer = (change["old"], change["new"], change["rule"])
        moments.setdefault(((*answer, *asked.values()), data_class), []).append(at)
    classes: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (same, data_class), ats in moments.items():
        classes.setdefault((same, tuple(ats)), []).append(data_class)
    return [_line(same, ats, of) for (same, ats), of in classes.items()]


def _line(same: tuple[str, ...], ats: tuple[str, ...], classes: list[str]) -> str:
    old, new, rule, *who = same
    of = " | ".join(each or "no class" for each in classes) if len(classes) > 1 else classes[0]
    when = ats[0] if len(ats) == 1 else f"{ats[0]} to {ats[-1]} ({len(ats)} moments)"
    return f"{' '.join(filter(None, [*who, of and f'[{of}]', when]))}: {old} → {new}  by {rule}"


def _changed(change: Change) -> dict[str, Any]:
    asked = change.asked
    told = {
        "case": change.case,
        "tenant": asked.tenant,
        "principal": f"key {asked.key}" if asked.key else "" if asked.principal == "explain" else asked.principal,
        "roles": "" if asked.roles == frozenset({"tenant"}) else ",".join(sorted(asked.roles)),
        "action": asked.action.value,
        "model": asked.model,
        "region": asked.region,
        "data_class": asked.data_class,
        "source": asked.source,
        "at": datetime.fromtimestamp(asked.at, UTC).isoformat(timespec="seconds"),
    }
    return {"asked": told, "old": change.old.verdict, "new": change.new.verdict, "rule": change.new.rule}


@app.command("replay")
def replay_command(
    bundle: BundleArgument,
    *,
    since: Annotated[str, typer.Option(help="An age (24h, 7d), a day, or a time with its zone.")] = "24h",
    config: ConfigOption = DEFAULT_CONFIG,
    json: JsonOption = False,
) -> None:
    """Decide the recorded calls again under BUNDLE, and tell those whose answer would be another; exits 1 if any."""
    replayed, changed = replay(_good(bundle), _since(since), config)
    told = [
        {
            "call_id": each.past.call_id,
            "tenant": each.past.principal.tenant,
            "model": each.past.model,
            "region": each.past.region,
            "old": each.past.verdict,
            "new": each.verdict,
            "rule": each.rule,
        }
        for each in changed
    ]
    if json:
        emit({"changed": told, "counts": replayed.counts})
    else:
        for call in told[:MOST_TOLD]:
            typer.echo(
                f"{call['call_id']} {call['tenant']} {call['model']}: {call['old']} → {call['new']}  by {call['rule']}"
            )
        if len(told) > MOST_TOLD:
            typer.echo(f"… and {len(told) - MOST_TOLD} more; --json has all")
        typer.echo(", ".join(f"{count} {what}" for what, count in replayed.counts.items()))
    if told:
        raise typer.Exit(int(Exit.NO))


def _since(written: str) -> datetime:
    now = time.time()
    try:
        return datetime.fromtimestamp(now - parse_duration(written), UTC)
    except ValueError:
        pass
    try:
        return datetime.fromtimestamp(parse_moment(written), UTC)
    except ValueError:
        fail(Exit.USAGE, f"--since {written!r}: write an age (24h, 7d), a day (2026-12-01), or a time with its zone")


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
