"""What of the fleet's log is kept outside the database, as commands read it."""

from __future__ import annotations

from pathlib import Path

from audit.anchor import anchored_in
from audit.fleet import read_notes
from audit.objects import LocalObjects, ObjectStore
from sidecar.cli.common import Exit, fail
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipping import anchor_store

__all__ = ["outside"]


def outside(settings: Settings, given: Path | None = None) -> tuple[list[str], dict[str, int]]:
    """The newest notes that anchors hold, and of each object store how many entries its largest head is of."""
    section, notes, sizes = settings.audit.anchor, [], {}
    try:
        file = section.file if section is not None and given is None else given
        at = anchor_store(settings) if given is None else None
        store: ObjectStore | None = at.open() if at is not None else None
        if given is not None and given.is_dir():
            file, store = None, LocalObjects(given)
        if file is not None:
            notes += read_notes(file)[-1:]
        if store is not None:
            heads = anchored_in(store)
            notes += [head.note for head in heads]
            sizes[store.where] = max((head.size for head in heads), default=0)
    except OSError as fault:
        fail(Exit.DEPENDENCY, f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault))
    return notes, sizes
