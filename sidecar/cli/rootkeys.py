"""`warden journal keys` and `rotate-key`: which root keys the journal's segments are under; a new one for the next."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.rootkeys import new_root_key
from audit.seal import KeyFault, key_id
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, emit, fail
from sidecar.cli.desk import load_settings
from sidecar.runtime.rootkeys import first_id, root_keys, sealed_in
from sidecar.runtime.settings import JournalSection

__all__ = ["list_keys", "missing_keys", "rotate_key"]


def list_keys(config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> None:
    """Each root key by its id: where it is, whether new segments are under it, how many there are, how many unshipped.

    `may go`: nothing here needs it. Copies of the journal outside (audit.journal.copy) may, until they are deleted.
    Exit 1 where one is missing that segments are under, or the one in use can't be had.
    """
    audit = load_settings(config).audit
    section = audit.journal
    try:  # of every database's journal: all are under the same keys
        rows, fault = _rows(section, [audit.of(each).journal.directory for each in audit.jurisdictions])
    except OSError as broken:
        fail(Exit.DEPENDENCY, f"{section.directory}: {broken.strerror}")
    for row in rows:
        emit(row) if as_json else typer.echo(_words(row))
    if fault is not None:
        fail(Exit.NO, fault)
    if any(row["missing"] for row in rows):
        raise typer.Exit(int(Exit.NO))


def missing_keys(section: JournalSection) -> list[str]:
    """Ids of those that segments are under and that are not here. Raises OSError."""
    if isinstance(root_keys(section), KeyFault):
        return sorted({each.root.hex() for each in sealed_in(section.directory) if each.root})
    return [str(row["id"]) for row in _rows(section, [section.directory])[0] if row["missing"]]


def _rows(section: JournalSection, directories: Sequence[Path]) -> tuple[list[dict[str, Any]], str | None]:
    keys = root_keys(section)
    if isinstance(keys, KeyFault):
        fail(Exit.USAGE, keys.detail)
    sealed = [each for directory in directories for each in sealed_in(directory) if each.root]
    fault, first, here = keys.fault(), first_id(section), set(keys.ids())
    current = None if fault is not None else key_id(keys.current())
    rows = []
    for identity in sorted(here | {each.root for each in sealed}):
        under = [each for each in sealed if each.root == identity]
        unshipped = sum(not each.shipped for each in under)
        place = section.key_file if identity == first else (section.keys_directory or Path()) / f"{identity.hex()}.key"
        missing = keys.find(identity) is None
        rows.append(
            {
                "id": identity.hex(),
                "file": None if missing else str(place),
                "current": identity == current,
                "segments": len(under),
                "unshipped": unshipped,
                "missing": missing,
                "may_go": not missing and not under and identity not in (current, first) and fault is None,
            }
        )
    return rows, None if fault is None else fault.detail


def _words(row: dict[str, Any]) -> str:
    state = "MISSING" if row["missing"] else "in use" if row["current"] else "may go" if row["may_go"] else "needed"
    where = row["file"] or "nowhere here"
    return f"{row['id']}  {state:<8}  {row['segments']} segments, {row['unshipped']} unshipped  {where}"


def rotate_key(
    config: ConfigOption = DEFAULT_CONFIG,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Instead of audit.journal.keys_directory.")
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Make a new root key, and name it as the one in use: the journal's next segment is under it.

    A running sidecar takes it with its next segment, one that starts at once. The old one stays needed until no segment
    is under it (`warden journal keys`). `--into`: for a mounted secret, made of the files that are in DIR then.
    """
    section = load_settings(config).audit.journal
    directory = into or section.keys_directory
    if directory is None:
        fail(Exit.USAGE, f"{config}: audit.journal.keys_directory is not configured, and --into names none")
    if directory.resolve().is_relative_to(section.directory.resolve()):
        fail(Exit.USAGE, f"{directory}: lies in the journal's own directory; who takes it would have both")
    made = new_root_key(directory, secrets.token_bytes)
    if isinstance(made, KeyFault):
        fail(Exit.DEPENDENCY, made.detail)
    if as_json:
        emit({"id": made.identity.hex(), "file": str(made.path)})
        return
    typer.echo(f"{made.path}: the journal's next segment is under it")
