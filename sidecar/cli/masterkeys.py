"""`warden audit master-keys`: whether the keys that content is sealed under are all there; giving up lost ones."""

from __future__ import annotations

from typing import Annotated

import typer

from audit import lostkeys, store
from audit.filekeys import FileKeys
from audit.lostkeys import NotLostError
from audit.storing import lock_keys
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, emit, fail
from sidecar.cli.database import database
from sidecar.cli.keeping import app, officers_desk
from sidecar.cli.records import harmless
from sidecar.runtime.masterkeys import key_store

__all__ = ["app"]

_keys = typer.Typer(no_args_is_help=True, help="The tenants' master keys, which stored content is sealed under.")
app.add_typer(_keys, name="master-keys")


@_keys.command()
def status(
    tenant: Annotated[str | None, typer.Option("--tenant", help="One tenant; else all with records.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Each tenant's versions: in use, there, and missing although the database holds what is sealed under them.

    Exit 1 where any is missing.
    """
    with officers_desk(config, jurisdiction, "") as desk:
        found = lostkeys.states(desk.connection, desk.opener.provider, tenant)
        keys = key_store(desk.opened.settings)
        under = {each.tenant: keys.covers(each.tenant) for each in found} if isinstance(keys, FileKeys) else {}
    for each in found:
        if as_json:
            wrapped = {str(version): name for version, name in under.get(each.tenant, {}).items() if name}
            emit({**each.shape(), "wrapped_under": wrapped})
            continue
        here, missing = (", ".join(map(str, versions)) or "-" for versions in (each.here, each.missing))
        lost = f" ({each.lost_keys} data keys)" if each.missing else ""
        typer.echo(harmless(f"{each.tenant}  current {each.current or '-'}  here {here}  missing {missing}{lost}"))
    if any(each.missing for each in found):
        raise typer.Exit(int(Exit.NO))


@_keys.command()
def wrap(
    config: ConfigOption = DEFAULT_CONFIG, jurisdiction: JurisdictionOption = None, *, as_json: JsonOption = False
) -> None:
    """Wrap under the key of `audit.keys.aws` or `gcp` what lies unwrapped, or wrapped under another, in the directory.

    Once after a key was configured, or another one in its place: until then both are asked. It can be broken off.
    """
    done = 0
    with database(config, jurisdiction, application="warden-audit") as opened:
        keys = key_store(opened.settings)
        if not isinstance(keys, FileKeys) or keys.cover is None:
            fail(Exit.USAGE, f"{config}: neither audit.keys.aws nor gcp is configured: there is nothing to wrap under")
        with store.transaction(opened.engine) as connection:
            tenants = lostkeys.tenants_of(connection)
        for tenant in tenants:
            with store.transaction(opened.engine) as connection:  # one by one: nobody waits for the whole of it
                lock_keys(connection, [tenant], alone=True)
                done += len(keys.cover_anew(tenant))
    if as_json:
        emit({"wrapped": done, "tenants": len(tenants), "under": keys.cover.name})
        return
    typer.echo(f"{done} master keys of {len(tenants)} tenants are wrapped under {keys.cover.name} now")


@_keys.command(name="give-up")
def give_up(
    tenant: Annotated[str, typer.Option("--tenant", help="Whose.")],
    versions: Annotated[str, typer.Option("--versions", help="The lost versions, as `status` names them: 1,2.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with your name.")],
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Go on without lost master keys: what is sealed under them is destroyed for good, and said so on record.

    Should they be found again, they open nothing. The tenant's next record gets a new key.
    """
    try:
        wanted = sorted({int(part) for part in versions.split(",")})
    except ValueError:
        fail(Exit.USAGE, f"--versions {versions!r}: write numbers, separated by commas: 1,2")
    if not reason.strip():
        fail(Exit.USAGE, "--reason: say why; it is kept with your name")
    try:
        with officers_desk(config, jurisdiction, reason) as desk:
            done = lostkeys.give_up(desk.connection, desk.opener.provider, desk.officer, tenant, wanted)
    except NotLostError as fault:
        fail(Exit.NO, str(fault))
    if as_json:
        emit({"tenant": tenant, "versions": wanted, "keys": done.keys, "records": done.records})
        return
    typer.echo(f"{done.keys} data keys of {harmless(tenant)} are destroyed; {done.records} records stay unreadable")
