"""Whose place in Redis a sidecar takes that starts after a crash: nobody holds a part back for who is surely gone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from audit.spool import write_whole
from sidecar.telemetry import logs

__all__ = ["FILE", "succeed"]

_LOG: Final = logging.getLogger("warden.leases")
FILE: Final = "leases.pod"  # in the journal's directory, which is one sidecar's at a time
_MOST: Final = 8  # names: of a sidecar that crashes before it has reached Redis, the one before is still to be told of
_BYTES: Final = 8192


def succeed(directory: Path, pod: str) -> tuple[str, ...]:
    """The names under which this sidecar held leases before, as far as they are known; it is called ``pod`` now.

    The journal's directory must be held: whoever wrote them has ended then.
    """
    path, before = directory / FILE, tuple[str, ...]()
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES + 1)
        if len(content) <= _BYTES:
            before = tuple(name for name in content.decode().splitlines() if name and name != pod)[-_MOST:]
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as fault:
        logs.event(_LOG, logging.WARNING, "leases.predecessor_unknown", detail=f"{path}: {fault}"[:200])
    try:
        write_whole(path, "\n".join([*before, pod]).encode())
    except OSError as fault:
        logs.event(_LOG, logging.WARNING, "leases.name_not_kept", detail=f"{path}: {fault.strerror}")
    return before
