"""`warden token`: sign short-lived tokens, make the keys that sign them, revoke tokens of any issuer."""

from __future__ import annotations

import contextlib
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from policies.units import parse_duration
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, emit, fail, here, program
from sidecar.cli.desk import done, load_settings, operator, token_desk, warn_of_unnamed
from sidecar.cli.words import ROLES_HELP, known_roles, moment
from sidecar.identity import mint as minting
from sidecar.identity import store
from sidecar.identity.files import load_signing_key
from sidecar.runtime.ids import uuid7
from sidecar.runtime.settings import Settings, SigningSection

app = typer.Typer(no_args_is_help=True, help="Tokens: make and rotate signing keys, mint and revoke tokens.")
_LONGEST_S = 365 * 86_400


@app.command()
def mint(
    tenant: Annotated[str, typer.Option(help="For which tenant it speaks.")],
    subject: Annotated[str, typer.Option(help="Who it names (the sub claim).")],
    ttl: Annotated[str, typer.Option(help="How long it is valid.")] = "15m",
    scope: Annotated[str | None, typer.Option(help="The scope claim, as it is.")] = None,
    roles: Annotated[str, typer.Option(help=ROLES_HELP)] = "tenant",
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Sign a token that names the operator who minted it, and print it."""
    asserted = known_roles(roles)
    settings = load_settings(config)
    signing = _signing(settings, config)
    lifetime = _lifetime(settings, signing, ttl)
    said = minting.Assertion(
        issuer=signing.issuer,
        audience=signing.audience,
        tenant=tenant,
        subject=subject,
        lifetime=lifetime,
        operator=f"cli:{operator()}",
        roles=asserted,
        scope=scope,
    )
    token_id = uuid7(time.time_ns(), secrets.token_bytes(10))
    warn_of_unnamed(settings, tenant)
    token, expires = minting.mint(_key(signing), said, token_id=token_id, at=time.time())
    if as_json:
        emit({"token": token, "expires_at": datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")})
        return
    sys.stdout.write(f"{token}\n")


@app.command()
def init(
    jwks: Annotated[Path | None, typer.Option(help="Where to write the public JWK set.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Make the configured signing key where there is none (Ed25519, for its owner only), and publish its JWK."""
    signing = _signing(load_settings(config), config)
    try:
        minting.write_private(signing.key_file, minting.generate_key())
        sys.stderr.write(f"Made {signing.key_file}.\n")
    except FileExistsError:
        sys.stderr.write(f"Kept {signing.key_file}.\n")
    except OSError as fault:
        fail(Exit.USAGE, f"{signing.key_file}: {fault.strerror}")
    key = _key(signing)
    if jwks is None:
        sys.stdout.write(minting.public_jwks(key).decode())
        return
    try:
        # A set that is there stays: older keys in it still verify what they signed.
        minting.write_public(jwks, minting.with_key(_published(jwks) if jwks.exists() else [], key))
    except OSError as fault:
        fail(Exit.USAGE, f"{jwks}: {fault.strerror}")


@app.command()
def rotate(
    jwks: Annotated[Path, typer.Option(help="The public JWK set that the sidecars read.")],
    wait: Annotated[str, typer.Option(help="How long the sidecars are given to read the new set.")] = "10s",
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Sign with a new key from now on; the old ones verify until they are removed (`retire`).

    The new key is published first, then given time to be read, then used, so that no token is refused. Started again
    after an interruption it goes on with the key it had made.
    """
    signing = _signing(load_settings(config), config)
    seconds = _seconds("--wait", wait)
    following = signing.key_file.with_name(signing.key_file.name + ".next")
    old = _key(signing)
    try:
        with contextlib.suppress(FileExistsError):
            minting.write_private(following, minting.generate_key("EdDSA" if old.algorithm == "EdDSA" else "ES256"))
        new = load_signing_key(following)
        if isinstance(new, str):
            fail(Exit.USAGE, new)
        members = _published(jwks) if jwks.exists() else [old.public]
        minting.write_public(jwks, minting.with_key(members, new))
        sys.stderr.write(f"Published {new.kid}; signing with it in {seconds:g} s.\n")
        time.sleep(seconds)
        following.replace(signing.key_file)
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename}: {fault.strerror}")
    sys.stderr.write(
        f"Signing with {new.kid}. When the last token of {old.kid} has expired:\n"
        f"{program()} token retire {old.kid} --jwks {here(jwks)} --config {here(config)}\n"
    )


# A thumbprint may begin with "-" (one kid of 64 from elsewhere, or of an earlier version): it is no option.
@app.command(context_settings={"ignore_unknown_options": True})
def retire(
    kid: Annotated[str, typer.Argument(help="The key to remove from the set.")],
    jwks: Annotated[Path, typer.Option(help="The public JWK set that the sidecars read.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Remove an old public key: what it signed is refused from then on, remembered tokens included."""
    if kid == _key(_signing(load_settings(config), config)).kid:
        fail(Exit.NO, f"{kid} is the key that signs; rotate first")
    members = _published(jwks)
    if kid not in {member["kid"] for member in members}:
        fail(Exit.NO, f"{jwks}: no key {kid}")
    try:
        minting.write_public(jwks, minting.without_key(members, kid))
    except OSError as fault:
        fail(Exit.USAGE, f"{jwks}: {fault.strerror}")
    sys.stderr.write(f"Removed {kid}.\n")


def _published(jwks: Path) -> Sequence[Mapping[str, str]]:
    try:
        found = minting.published(jwks.read_bytes())
    except OSError as fault:
        fail(Exit.USAGE, f"{jwks}: {fault.strerror}")
    if isinstance(found, str):
        fail(Exit.USAGE, f"{jwks}: {found}")
    return found


def _seconds(option: str, value: str) -> float:
    try:
        return parse_duration(value)
    except ValueError as fault:
        fail(Exit.USAGE, f"{option}: {fault}")


@app.command()
def revoke(
    issuer: Annotated[str | None, typer.Option(help="With --jti: the token's issuer (its iss claim).")] = None,
    jti: Annotated[str | None, typer.Option(help="The one token to revoke (its jti claim).")] = None,
    tenant: Annotated[str | None, typer.Option(help="With --issued-before: whose tokens.")] = None,
    issued_before: Annotated[
        str | None,
        typer.Option(help="Revoke all issued before this time, such as 2027-01-01T00:00:00Z, or before now."),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Revoke one token, or all of a tenant's issued before a moment, everywhere, within about a second; for good."""
    at = datetime.now(UTC)
    desk = token_desk(config)
    with desk.transaction() as connection:
        store.forget_denials(connection, at)
        match (issuer, jti, tenant, issued_before):
            case (str(), str(), None, None):
                new = store.deny_token(connection, desk.office, issuer, jti, at)
            case (None, None, str(), str()):
                new = done(store.deny_tenant(connection, desk.office, tenant, _before(issued_before, at), at))
            case _:
                fail(Exit.USAGE, "either --issuer with --jti, or --tenant with --issued-before")
    known = {"issuer": issuer, "jti": jti, "tenant": tenant, "issued_before": issued_before}
    if as_json:
        emit({name: value for name, value in known.items() if value is not None} | {"new": new})
        return
    sys.stderr.write("Revoked.\n" if new else "Was revoked already.\n")


def _before(value: str, at: datetime) -> datetime:
    """``now``, or a time. A duration would be read as one ahead by some and as one back by others."""
    if value == "now":
        return at
    if "T" not in value:
        fail(Exit.USAGE, f"--issued-before: {value!r} is neither now nor a time such as 2027-01-01T00:00:00Z")
    return moment("--issued-before", value, at)


def _signing(settings: Settings, config: Path) -> SigningSection:
    if settings.identity.signing is None:
        fail(Exit.USAGE, f"{config}: identity.signing is not configured")
    return settings.identity.signing


def _lifetime(settings: Settings, signing: SigningSection, ttl: str) -> int:
    """Whole seconds, within what this configuration's issuer of that name accepts."""
    lifetime = int(_seconds("--ttl", ttl))
    if not 1 <= lifetime <= _LONGEST_S:
        fail(Exit.USAGE, "--ttl: between 1s and 365d")
    for issuer in settings.identity.issuers:
        if issuer.issuer == signing.issuer and lifetime > issuer.max_lifetime:
            fail(Exit.USAGE, f"--ttl: {issuer.issuer} may live {issuer.max_lifetime:g} s at most")
    return lifetime


def _key(signing: SigningSection) -> minting.SigningKey:
    if not signing.key_file.exists():
        fail(Exit.USAGE, f"{signing.key_file}: No such file or directory; make it with: warden token init")
    key = load_signing_key(signing.key_file)
    if isinstance(key, str):
        fail(Exit.USAGE, key)
    return key
