"""`warden init`: drafts a configuration, a policy bundle and keys from a live Triton, in mode observe."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from audit.seal import KeyFault, create_key_file
from policies.document import Name, TenantName
from sidecar.cli.common import Exit, JsonOption, emit, fail, program
from sidecar.cli.drafting import JOURNAL, KEYS, Place, Server, draft, front_models, listed, printable, remarks
from sidecar.cli.survey import Silent, survey
from sidecar.identity import mint
from sidecar.runtime.restricted import load as load_secret
from sidecar.runtime.settings import Address, RestrictedSection
from sidecar.transports.upstream import Restricted

_PLACE = "--region eu-west-1 --jurisdiction EU"


def init(
    triton: Annotated[str, typer.Option(metavar="HOST:PORT", help="Triton's gRPC address, such as 127.0.0.1:8001.")],
    directory: Annotated[
        Path, typer.Option("--dir", help="Where warden.yaml, bundle/ and keys/ are put; nothing there is overwritten.")
    ] = Path(),
    region: Annotated[str, typer.Option(help="Needed: where this pod is, such as eu-west-1.")] = "",
    jurisdiction: Annotated[
        str, typer.Option(help="Needed: whose law that is under, such as EU; the database keeps it.")
    ] = "",
    tenant: Annotated[str, typer.Option(help="The first tenant.")] = "main",
    restricted: Annotated[
        str,
        typer.Option(
            metavar="KEY=FILE", help="Of a Triton with --grpc-restricted-protocol: its key, its secret's file."
        ),
    ] = "",
    *,
    json: JsonOption = False,
) -> None:
    """Ask a live Triton what it serves and draft all that `warden serve` needs, in mode observe: nothing is refused."""
    place = _place(triton, region, jurisdiction, tenant)
    secret = _secret(restricted) if restricted else None
    if secret is not None:
        place = replace(place, restricted=secret.section)
    _unused(directory)
    server = survey(triton, None if secret is None else secret.shown)
    if isinstance(server, Silent):
        fail(Exit.DEPENDENCY, f"Triton at {triton} cannot be asked: {server.detail}")
    files = draft(server, place)
    _write(directory, files)
    for sentence in remarks(server, triton):
        _warn(sentence)
    if json:
        models = [model.name for model in front_models(server)]
        emit({"config": str(directory / "warden.yaml"), "bundle": str(directory / "bundle"), "models": models})
    else:
        typer.echo(_next_steps(directory, server, place))


def _place(triton: str, region: str, jurisdiction: str, tenant: str) -> Place:
    """The options as one value, or leave with every one that is wrong."""
    wrong = []
    if not region or not jurisdiction:
        wrong.append(
            f"--region and --jurisdiction are needed, such as {_PLACE}: the database keeps the latter for good"
        )
    elif region == jurisdiction:
        wrong.append("--region and --jurisdiction are the same: residency rules couldn't tell which is meant")
    kinds: tuple[tuple[str, Any, str], ...] = (
        ("--triton", Address, triton),
        ("--region", Name, region),
        ("--jurisdiction", Name, jurisdiction),
        ("--tenant", TenantName, tenant),
    )
    for option, kind, value in kinds:
        if not value and kind is Name:
            continue  # told above
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError as fault:
            wrong.append(f"{option} {value!r}: {fault.errors()[0]['msg'].removeprefix('Value error, ')}")
    if wrong:
        fail(Exit.USAGE, "\n".join(wrong))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "warden"
    return Place(name, region, jurisdiction, tenant, triton)


@dataclass(frozen=True, slots=True)
class _Secret:
    section: tuple[str, str]  # key and file, as warden.yaml names them
    shown: Restricted


def _secret(option: str) -> _Secret:
    """``KEY=FILE`` as ``triton.restricted_secret`` has it, and what it reads; or leave, saying why not."""
    key, _, file = option.partition("=")
    if not file:
        fail(Exit.USAGE, f"--restricted {option!r}: write KEY=FILE, such as warden=triton.secret")
    path = Path(file).absolute()  # the draft's own paths are relative to another directory
    try:
        found = load_secret(RestrictedSection(key=key, file=path), {})
    except ValidationError as fault:
        fail(Exit.USAGE, f"--restricted {option!r}: KEY: {fault.errors()[0]['msg']}")
    if not isinstance(found, Restricted):
        fail(Exit.USAGE, f"--restricted {option!r}: {found}")
    return _Secret((key, str(path)), found)


def _unused(directory: Path) -> None:
    """Leave where something is in the way: an old journal too, which a new key could not open."""
    there = [str(directory / name) for name in ("warden.yaml", "bundle", KEYS, JOURNAL) if _exists(directory / name)]
    if there:
        fail(Exit.USAGE, f"already there, and not overwritten: {', '.join(there)}; name another directory with --dir")


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _write(directory: Path, files: dict[str, str]) -> None:
    """All of it, or nothing of it stays. Every file is made anew: a race with another init is lost, not overwritten."""
    made: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in (KEYS, "bundle"):
            (directory / name).mkdir(mode=0o700 if name == KEYS else 0o755)
            made.append(directory / name)
        _write_keys(directory / KEYS)
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                if path.parent == directory:
                    made.append(path)
                file.write(text)
    except OSError as fault:
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        fail(Exit.USAGE, f"{fault.filename or directory}: {fault.strerror}; nothing was written")


def _write_keys(directory: Path) -> None:
    """The journal's key, the pepper of API keys, the key that signs tokens (0600 each), and what verifies those."""
    for name in ("journal.key", "pepper.key"):
        key = create_key_file(directory / name, secrets.token_bytes)
        if isinstance(key, KeyFault):
            raise OSError(None, key.detail, str(directory / name))
    pem = mint.generate_key()
    mint.write_private(directory / "signing.pem", pem)
    signing = mint.load_key(pem)
    assert isinstance(signing, mint.SigningKey)
    mint.write_public(directory / "jwks.json", mint.public_jwks(signing))


def _warn(sentence: str) -> None:
    sys.stderr.write(f"note: {sentence}.\n")


def _next_steps(directory: Path, server: Server, place: Place) -> str:
    config, bundle = (shlex.quote(str(directory / name)) for name in ("warden.yaml", "bundle"))
    option = "" if directory == Path() else f" --config {config}"
    warden = program()
    names = listed([model.name for model in front_models(server)]) or "none"
    return f"""\
Drafted from Triton {printable(server.version)} at {place.triton}, for tenant {place.tenant} in {place.region}
  {config}  mode observe: decides and records, refuses nothing
  {bundle}  the policy bundle, to be reviewed like code
  {shlex.quote(str(directory / KEYS))}  secrets: back them up, never commit them
  models it may call: {names}

Next
  1. Name your Postgres in {config} (audit.database.dsn), then check all of it:
       {warden} config check {config} && {warden} policy test {bundle}
  2. Prepare the database:       {warden} db upgrade{option}
  3. Issue the first API key:    {warden} keys issue --tenant {place.tenant} --name first{option}
  4. Start the sidecar:          {warden} serve{option}
  5. Point clients at 127.0.0.1:8011 instead of {place.triton}; give them the key as x-api-key when you can.
  6. See what would have been refused ("would be"); when nothing is left that shouldn't be, name what else says where
     this is (sidecar.evidence), and set mode: enforce
       {warden} audit search --since 1h{option}"""
