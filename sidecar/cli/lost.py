"""`warden journal import`: what a lost pod left in the object store becomes records, each exactly once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.follow import read_identity
from audit.objects import LocalObjects, Together
from audit.reassembly import CopiedJournal, forget, journals_in
from audit.rootkeys import Root
from audit.seal import KeyFault
from audit.store import WrongJurisdictionError
from policies.units import parse_duration
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.desk import load_settings
from sidecar.runtime.copy_settings import CopyError, CopySection, store_of
from sidecar.runtime.importing import ALIVE_S, Imported, ImportFaultError, import_journal
from sidecar.runtime.rootkeys import root_keys
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipping import AlreadyShippingError

__all__ = ["import_lost"]


def import_lost(
    config: ConfigOption = DEFAULT_CONFIG,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="A directory of copies, instead of audit.journal.copy.")
    ] = None,
    journal: Annotated[
        str | None, typer.Option(help="Only this one (32 hex digits); left out: all that are lost.")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(help="The lost journal's root key, instead of this one's.")] = None,
    patience: Annotated[str, typer.Option(help="How long the database may be away before it is given up.")] = "60s",
    *,
    lost: Annotated[
        bool, typer.Option("--lost", help="Also where its sidecar was heard of just now: its pod is gone for good.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Store what lost journals' copies hold and the database lacks; calls under way are recorded as aborted.

    May be repeated, killed, and run while the lost pod comes back. A journal that is stored whole and whose copies are
    older than `audit.journal.keep` is deleted from the store. A store that is away is named, and of what it may hold
    more of only that is stored which is certain. Exit 1 where a journal or a store was passed over.
    """
    settings = load_settings(config)
    root = root_keys(settings.audit.journal, key_file)
    if isinstance(root, KeyFault):
        fail(Exit.USAGE, root.detail)
    try:
        seconds = parse_duration(patience)
    except ValueError as fault:
        fail(Exit.USAGE, f"--patience: {fault}")
    stores = _stores(settings, source)
    found: list[tuple[Together, CopiedJournal]] = []
    for store in stores:
        with suppress(OSError):  # none of its places answers: each is in ``away``
            found += [(store, each) for each in journals_in(store) if journal in (None, each.journal)]
    where = ", ".join(store.where for store in stores)
    if all(store.silent for store in stores):
        fail(Exit.DEPENDENCY, "; ".join(why for store in stores for why in store.away.values()))
    own = {read_identity(settings.audit.of(each).journal.directory) for each in settings.audit.jurisdictions} - {""}
    done = [_one(settings, store, each, root, own, seconds, lost=lost) for store, each in found]
    done += [{"store": name, "state": "away", "detail": why} for store in stores for name, why in store.away.items()]
    for each in done:
        emit(each) if as_json else typer.echo(_words(each))
    if journal is not None and not found:
        fail(Exit.NO, f"{where} holds nothing of journal {journal}")
    if not done and not as_json:
        typer.echo(f"{where} holds no journal")
    if any(each["state"] in ("alive", "failed", "open", "partial", "away") for each in done):
        raise typer.Exit(int(Exit.NO))


def _stores(settings: Settings, source: Path | None) -> list[Together]:
    """One for each database: its journal is copied to stores of its jurisdiction; several are read as one."""
    if source is not None:
        try:
            return [Together([LocalObjects(source)])]
        except OSError as fault:
            fail(Exit.USAGE, f"{source}: {fault.strerror}")
    sections = [settings.audit.of(each).journal.copies for each in settings.audit.jurisdictions]
    stores = [_opened(copies) for copies in sections if copies]
    if not stores:
        fail(Exit.USAGE, "nothing to import from: audit.journal.copy names no store; name a directory with --from")
    return stores


def _opened(copies: Mapping[str, CopySection]) -> Together:
    """Of those named; one that can't be opened is away like one that doesn't answer."""
    opened, away = [], {}
    for name, section in copies.items():
        try:
            opened.append(store_of(section))
        except CopyError as fault:
            away[name] = str(fault)
    return Together(opened, away)


def _one(
    settings: Settings, objects: Together, found: CopiedJournal, root: Root, own: Set[str], patience_s: float,
    *, lost: bool,
) -> dict[str, Any]:  # fmt: skip
    named = {"journal": found.journal, "sidecar": found.beat.sidecar if found.beat is not None else ""}
    if found.journal in own:
        return {**named, "state": "own", "detail": "this sidecar's own; it goes on with it by itself"}
    now = time.time()
    if not lost and found.alive(now, ALIVE_S):
        words = f"heard of {now - found.newest:.0f} s ago; wait {ALIVE_S:.0f} s, or say that it is gone with --lost"
        return {**named, "state": "alive", "detail": words}
    work = settings.audit.journal.directory / "imports" / found.journal
    try:
        imported = import_journal(
            settings, objects, found, work, root, patience_s=patience_s,
            told=lambda trouble: typer.echo(f"journal {found.journal}: waiting: {trouble}", err=True),
        )  # fmt: skip
        whole = not (imported.open or imported.faults or imported.away)
        old = whole and found.newest < now - settings.audit.journal.keep
        if old:
            forget(objects, found)
    except (ImportFaultError, WrongJurisdictionError, AlreadyShippingError, OSError) as fault:
        return {**named, "state": "failed", "detail": str(fault)}
    return {**named, **imported.shape(), "state": _state(imported), "deleted": old}


def _state(imported: Imported) -> str:
    if imported.away:
        return "partial"
    return "open" if imported.open else "stored"


def _words(done: dict[str, Any]) -> str:
    if "store" in done:
        return f"store {done['store']}: away: {done['detail']}"
    name = f"journal {done['journal']}" + (f" of {done['sidecar']}" if done["sidecar"] else "")
    if "records" not in done:
        return f"{name}: {done['state']}: {done['detail']}"
    told = f"{name}: {done['records']} records stored, {done['aborted']} of them of calls that were cut off"
    told += f"; logs closed: {', '.join(done['closed']) or 'none'}"
    if done["away"]:
        told += f"; NOT ended: {', '.join(done['away'])} may hold more of it: run it again"
    elif done["open"]:
        told += f"; NOT closed: {', '.join(done['open'])}: run it again"
    if done["deleted"]:
        told += "; its copies are deleted"
    return "\n  ".join([told, *done["faults"]])
