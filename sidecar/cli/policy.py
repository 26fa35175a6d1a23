"""``warden policy``: check, test, explain, compare and replay a bundle before it is rolled out, and ask why after."""

from __future__ import annotations

import time
from json import dumps
from pathlib import Path
from typing import Annotated, Final

import typer

from policies.bundle import Bundle
from policies.cases import CaseResult, run_cases
from policies.content import Content
from policies.coverage import rules, untouched
from policies.explain import Asked, Explanation, explain
from policies.replay import is_same
from policies.schemas import CEDAR_SCHEMAS, cedar_schemas, schemas
from sidecar.cli.bundles import BundleArgument, good, moment, read
from sidecar.cli.changes import ContentOption, ReasonOption, diff_command, reading, replay_command
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.past import Reading, explain_past
from sidecar.core.model import Action

app: Final = typer.Typer(no_args_is_help=True, help="Check, test, explain and compare policy bundles.")

MOST_TEXT: Final = 64 << 20  # bytes of one prompt or output

app.command("diff")(diff_command)
app.command("replay")(replay_command)


@app.command()
def check(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """Tell everything that is wrong with a bundle, with file, line and column."""
    found = read(bundle)
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
    found = good(bundle)
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
    issuer: Annotated[str, typer.Option(help="The token's issuer.")] = "",
    at: Annotated[str | None, typer.Option(help="When: a day, or a time with its zone (default: now).")] = None,
    storage: Annotated[str | None, typer.Option(help="The database's jurisdiction (default: the region's).")] = None,
    telemetry: Annotated[str | None, typer.Option(help="The collector's jurisdiction (default: the region's).")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A prompt, put to the guards and to redaction.")] = None,
    output_file: Annotated[Path | None, typer.Option(help="An output, put to them as well.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="That the call asks for (default: the model's).")] = None,
    call: Annotated[str | None, typer.Option(help="A recorded call's id, in place of all the above.")] = None,
    content: ContentOption = False,
    reason: ReasonOption = "",
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    json: JsonOption = False,
) -> None:
    """What a sidecar would decide, or did, and every step on the way. Exits 0 for allow, 1 for deny."""
    if call is not None:
        how = reading(jurisdiction, content=content, reason=reason)
        _explain_past(call, None if bundle is None else good(bundle), config, how, json=json)
        return
    if bundle is None or not tenant or not region:
        fail(Exit.USAGE, "needs BUNDLE, --tenant and --region (and --model); or --call")
    if action == Action.INFER and not model:
        fail(Exit.USAGE, "--action infer needs --model")
    if action != Action.INFER and (prompt_file or output_file):
        fail(Exit.USAGE, f"--action {action}: only infer has a prompt or an output")
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
        issuer=issuer,
        at=moment(at),
        content=_content(prompt_file, output_file, max_tokens),
    )
    found = explain(good(bundle), asked)
    if isinstance(found, list):
        fail(Exit.USAGE, "; ".join(problem.message for problem in found))
    if json:
        emit(found.json())
    else:
        _tell(found)
    if not found.allowed:
        raise typer.Exit(int(Exit.NO))


def _content(prompt: Path | None, output: Path | None, max_tokens: int | None) -> Content | None:
    if prompt is None and output is None:
        return None
    texts = [None if each is None else _text(each) for each in (prompt, output)]
    return Content(prompt=texts[0], output=texts[1], max_tokens=max_tokens)


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            found = opened.read(MOST_TEXT + 1)
    except OSError as fault:
        fail(Exit.USAGE, f"{file}: {fault.strerror}")
    if len(found) > MOST_TEXT:
        fail(Exit.USAGE, f"{file}: more than {MOST_TEXT} bytes")
    return found.decode("utf-8", "surrogateescape")


def _explain_past(call: str, under: Bundle | None, config: Path, asked: Reading, *, json: bool) -> None:
    past, found = explain_past(call, under, config, asked)
    same = is_same(past, found)
    recorded = {
        "verdict": past.verdict if past.guarded == "allow" else past.guarded,
        "rule": past.rule,
        "bundle": past.bundle,
        "would_refuse": past.would_refuse,
    }
    if json:
        emit({**found.json(), "call": call, "recorded": recorded, "same": same})
    else:
        typer.echo(f"call {call}, {past.principal.tenant}/{past.principal.name}, {past.model or past.method.name}")
        _tell(found)
        before = "the bundle was not asked" if past.verdict is None else recorded["verdict"]
        typer.echo(f"recorded: {before}  by {past.rule}{'' if same else '  (differs)'}\nrecorded under {past.bundle}")
        if past.guarded != "allow" and found.judged is None:
            typer.echo("its content was what decided; --content --reason TEXT puts it to the guards again")
    if not found.allowed:
        raise typer.Exit(int(Exit.NO))


@app.command("test")
def cases_command(bundle: BundleArgument, *, json: JsonOption = False) -> None:
    """Run the bundle's own test cases (tests/*.yaml), and name the rules that none of them touches.

    Exits 1 if one fails, or if there are none.
    """
    found = good(bundle)
    at = time.time()
    results = list(run_cases(found, at))
    failed = [result for result in results if result.failure]
    every, left = rules(found), untouched(found, results, at)
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


def _told(result: CaseResult) -> dict[str, object]:
    answer = result.explanation
    return {
        "name": result.name,
        "ok": not result.failure,
        "expect": result.case.case.expect,
        "got": answer.answer,
        "rule": answer.verdict.rule,
    }


def _tell(found: Explanation) -> None:
    marks = {"pass": "✓", "deny": "✗", "skip": "·", "shadow": "≈"}
    for step in found.steps:
        typer.echo(f"  {marks[step.outcome]} {step.step:<10} {'  '.join(filter(None, (step.rule, step.detail)))}")
    verdict = found.answer if found.answer in ("allow", "cut") else f"deny {found.reason}"
    typer.echo(f"{verdict}  by {found.verdict.rule}\nbundle {found.bundle}")
