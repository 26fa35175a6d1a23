"""`warden journal`: what is in the journal, read beside a running sidecar and without changing anything."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, assert_never

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from audit.follow import read_identity, read_shipped
from audit.journal_bounds import State
from audit.objects import LocalObjects
from audit.record import Admitted, Entry, Event, Output, Refused, Responded, Settled, decode
from audit.recovery import DAMAGE_MARK
from audit.rootkeys import Root
from audit.seal import KeyFault, load_root_key
from audit.segments import End, FaultKind, Frame, FrameReader, JournalFault, Lost, read_info, segments_in, unlock
from audit.writing import holder
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.desk import load_settings
from sidecar.cli.lost import import_lost
from sidecar.cli.rootkeys import list_keys, missing_keys, rotate_key
from sidecar.runtime.copy_settings import CopyError, CopySection, store_of
from sidecar.runtime.rootkeys import root_keys
from sidecar.runtime.settings import JournalSection
from sidecar.telemetry.shipfile import ShipFile, ShipReport

app = typer.Typer(no_args_is_help=True, help="The local journal: its state, its frames.")

app.command("import")(import_lost)
app.command("keys")(list_keys)
app.command("rotate-key")(rotate_key)

_ASK_SECONDS: Final = 2.0  # for the running sidecar's answer, which it has at hand
_ASK_BYTES: Final = 64 * 1024


@app.command()
def status(config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """Segments, sequences, bytes, what is shipped and what waits, and whether new calls can be recorded.

    A journal that is being written is asked about at its sidecar's admin port. Exit 1 where calls can't be recorded, or
    where a segment is damaged or its root key is missing; 3 where the sidecar doesn't answer, so that it is unknown.
    """
    settings = load_settings(config)
    own, *further = settings.audit.jurisdictions
    try:
        found = _status(settings.audit.of(own).journal, settings.listen.admin)
        report = ShipFile(settings.audit.journal.directory / "ship.json", time.time).read()
        found |= {"jurisdiction": own, "ship": _ship(report)}
        # Those of other databases: a name that the pod's own does not have in its place of the answer.
        found["databases"] = {
            name: _status(settings.audit.of(name).journal, settings.listen.admin, name) for name in further
        }
    except OSError as fault:
        fail(Exit.DEPENDENCY, f"{fault.filename or settings.audit.journal.directory}: {fault.strerror}")
    if as_json:
        emit(found)
    else:
        _show(found)
    journals = [found, *found["databases"].values()]
    if any(each["damaged"] or each["missing_keys"] or each["state"] not in ("ok", "unknown") for each in journals):
        raise typer.Exit(int(Exit.NO))
    raise typer.Exit(int(Exit.DONE if all(each["state"] == "ok" for each in journals) else Exit.DEPENDENCY))


def _status(section: JournalSection, admin: str, jurisdiction: str = "") -> dict[str, Any]:
    """``jurisdiction``: whose database it is for; "": the pod's own. Raises OSError where it can't be read."""
    directory = section.directory
    segments = [_segment(first, path) for first, path in segments_in(directory)]
    space = os.statvfs(directory)
    nbytes, free = sum(segment["bytes"] for segment in segments), space.f_bavail * space.f_frsize
    short, writer = free < section.min_free or nbytes >= section.max_bytes, holder(directory)
    state, detail = _asked(admin, jurisdiction) if writer is not None else ("full" if short else "ok", "")
    return {
        "directory": str(directory),
        "journal": read_identity(directory),
        "state": state,
        "detail": detail,
        "writer": writer,
        "first_sequence": segments[0]["first"] if segments else None,
        "shipped": read_shipped(directory),
        "copy": _copies(section),
        "bytes": nbytes,
        "max_bytes": section.max_bytes,
        "free_bytes": free,
        "min_free": section.min_free,
        "damaged": [segment["name"] for segment in segments if segment["damaged"]],
        "missing_keys": missing_keys(section),
        "segments": segments,
    }


def _copies(section: JournalSection) -> dict[str, dict[str, Any]]:
    """Where what is not in the database is, beside this disk, by the stores' names."""
    return {name: _copy(copy, section.directory) for name, copy in section.copies.items()}


def _copy(section: CopySection, journal: Path) -> dict[str, Any]:
    try:
        objects = store_of(section)
    except CopyError as fault:
        return {"where": None, "detail": str(fault)}
    if isinstance(objects, LocalObjects) and objects.on_volume_of(journal):
        return {"where": objects.where, "detail": "it lies on the journal's own volume, and is lost with it"}
    return {"where": objects.where, "detail": ""}


def _asked(admin: str, jurisdiction: str) -> tuple[str, str]:
    """What the sidecar says of a journal it writes: ok, refusing or unknown, and why."""
    host, _, port = admin.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_ASK_SECONDS)
    try:
        connection.request("GET", "/readyz")
        checks = json.loads(connection.getresponse().read(_ASK_BYTES))["checks"]
        check = checks[f"journal {jurisdiction}" if jurisdiction else "journal"]
        detail = str(check["detail"])
        # One of a further database does not decide whether the pod is ready; its state is the first word.
        well = check["ok"] is True and (not jurisdiction or detail.partition(":")[0] == State.OK)
    except (OSError, http.client.HTTPException) as fault:
        return "unknown", f"http://{admin}/readyz: {fault or type(fault).__name__}"
    except (ValueError, LookupError, TypeError):
        return "unknown", f"http://{admin}/readyz: that is no answer of a sidecar"
    else:
        return "ok" if well else "refusing", detail
    finally:
        connection.close()


def _ship(report: ShipReport | None) -> dict[str, Any] | None:
    """What `warden ship` said within the last seconds, by the database's jurisdiction; None: it isn't running."""
    if report is None:
        return None
    return {
        jurisdiction: {
            "database_up": each.database_up,
            "shipped": each.shipped_sequence,
            "waiting": each.lag_records,
            "oldest_at": None if each.oldest_unshipped_at is None else _time(round(each.oldest_unshipped_at * 1e9)),
            "last_error": each.last_error,
            "poisoned": each.poisoned,
        }
        for jurisdiction, each in report.databases.items()
    }


def _segment(first: int, path: Path) -> dict[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header, nbytes = read_info(descriptor), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    info = header[0] if header is not None else None
    return {
        "name": path.name,
        "first": first,
        "bytes": nbytes,
        "created_at": _time(info.created_ns) if info is not None else None,
        "sidecar": info.sidecar if info is not None else None,
        "region": info.region if info is not None else None,
        "jurisdiction": info.jurisdiction if info is not None else None,
        "root_key": info.root.hex() if info is not None else None,
        "damaged": path.with_name(path.name + DAMAGE_MARK).exists(),
    }


def _show(found: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for line in _shipping(found["ship"]):
        console.print(line, markup=False)
    for jurisdiction, each in {found["jurisdiction"]: found, **found["databases"]}.items():
        console.print(f"for the database of {jurisdiction}:", markup=False)
        _show_one(console, each)


def _show_one(console: Console, found: dict[str, Any]) -> None:
    writer = f"process {found['writer']}" if found["writer"] else "nobody"
    console.print(f"journal {found['journal'] or '(never opened)'} in {found['directory']}", markup=False)
    state = f"{found['state']} ({found['detail']})" if found["detail"] not in ("", found["state"]) else found["state"]
    console.print(f"state {state}; written by {writer}", markup=False)
    console.print(f"shipped through sequence {found['shipped']}", markup=False)
    for identity in found["missing_keys"]:
        console.print(
            f"root key {identity} is MISSING: segments are sealed under it (warden journal keys)", markup=False
        )
    for name, copy in found["copy"].items():
        told = "; ".join(filter(None, (copy["where"] or "nowhere", copy["detail"])))
        console.print(f"copied to {name}: {told}", markup=False)
    if not found["copy"]:
        words = "copied to nowhere; what is not shipped yet is lost with this disk (audit.journal.copy)"
        console.print(words, markup=False)
    console.print(
        f"{found['bytes']:,} of {found['max_bytes']:,} bytes; {found['free_bytes']:,} free on its volume, "
        f"{found['min_free']:,} must be"
    )
    table = Table("segment", "first sequence", "bytes", "since", "region", "damaged")
    for segment in found["segments"]:
        table.add_row(
            segment["name"],
            str(segment["first"]),
            f"{segment['bytes']:,}",
            segment["created_at"] or "?",
            segment["region"] or "?",
            "yes" if segment["damaged"] else "",
        )
    console.print(table)


def _shipping(ship: dict[str, Any] | None) -> Iterator[str]:
    if ship is None:
        yield "warden ship isn't running"
        return
    for jurisdiction, each in ship.items():
        since = f" since {each['oldest_at']}" if each["oldest_at"] else ""
        database = "answers" if each["database_up"] else "does not answer"
        error = f"; last error: {each['last_error']}" if each["last_error"] else ""
        yield f"{jurisdiction}: about {each['waiting']} records wait{since}; the database {database}{error}"


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A segment, or the journal's directory.")],
    config: ConfigOption = DEFAULT_CONFIG,
    key_file: Annotated[Path | None, typer.Option(help="The root key, instead of the configuration's.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Every frame: sequence, kind, call id, size. Exit 1 where frames are damaged or torn.

    No prompt and no output: `warden audit` reveals those, and the database records who looked and why.
    """
    root = _root(config, key_file)
    if isinstance(root, KeyFault):
        fail(Exit.USAGE, root.detail)
    whole = True
    try:
        paths = [segment for _, segment in segments_in(path)] if path.is_dir() else [path]
        for segment in paths:
            for row in _frames(segment, root):
                whole = whole and row["kind"] not in ("damaged", "torn")
                _print(row, as_json=as_json)
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename or path}: {fault.strerror}")
    raise typer.Exit(int(Exit.DONE if whole else Exit.NO))


def _root(config: Path, key_file: Path | None) -> Root | KeyFault:
    """With a key file alone no configuration is needed."""
    if key_file is not None and not config.exists():
        return load_root_key(key_file)
    return root_keys(load_settings(config).audit.journal, key_file)


def _print(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(row)
        return
    rest = {name: value for name, value in row.items() if name not in ("sequence", "kind", "call_id", "bytes")}
    sequence = "-" if row["sequence"] is None else row["sequence"]
    words = "  ".join(f"{name}={value}" for name, value in rest.items())
    typer.echo(f"{sequence:>12}  {row['kind']:<9} {row['call_id'] or '-':<40} {row['bytes']:>8}  {words}".rstrip())


def _frames(path: Path, root: Root) -> Iterator[dict[str, Any]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        segment = unlock(descriptor, path, root)
        if isinstance(segment, JournalFault):
            fail(Exit.USAGE if segment.kind is FaultKind.KEY else Exit.NO, segment.detail)
        reader, first = FrameReader(descriptor, segment), segment.info.first
        while True:
            match reader.next(search=True):
                case Frame() as frame:
                    row = {"sequence": first + frame.index, "kind": "", "call_id": None, "bytes": len(frame.entry)}
                    yield row | _entry(frame.entry)
                case Lost() as lost:
                    yield _bad("damaged", first + lost.index, lost.end - lost.offset, lost.offset)
                case End(left=0):
                    return
                case End() as end:
                    yield _bad("torn", first + end.index, end.left, end.offset)
                    return
                case _ as never:
                    assert_never(never)
    finally:
        os.close(descriptor)


def _bad(kind: str, sequence: int, nbytes: int, offset: int) -> dict[str, Any]:
    return {"sequence": sequence, "kind": kind, "call_id": None, "bytes": nbytes, "offset": offset}


def _entry(data: bytes) -> dict[str, Any]:
    try:
        entry: Entry = decode(data)
    except (msgspec.DecodeError, UnicodeError):
        return {"kind": "unreadable"}
    match entry:
        case Admitted(call=facts):
            shown = {"call_id": facts.call_id, "tenant": facts.tenant, "model": facts.model}
        case Refused(call=facts):
            shown = {"call_id": facts.call_id, "tenant": facts.tenant, "model": facts.model}
            shown["reason"] = entry.reason
        case Output() | Responded():
            shown = {"call_id": entry.call_id}
        case Settled():
            shown = {"call_id": entry.call_id, "outcome": entry.outcome}
        case Event():
            shown = {"event": entry.kind}
        case _:
            assert_never(entry)
    return {"kind": str(type(entry).__struct_config__.tag), **shown}


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="microseconds")
