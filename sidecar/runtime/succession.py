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
_MOST: Final = 512  # bytes of a name


def succeed(directory: Path, pod: str) -> str:
    """The name under which this sidecar held leases before, "" for none that is known; it is called ``pod`` now.

    The journal's directory must be held: whoever wrote the name has ended then.
    """
    path, before = directory / FILE, ""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
        before = content.decode().strip() if len(content) <= _MOST else ""
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as fault:
        logs.event(_LOG, logging.WARNING, "leases.predecessor_unknown", detail=f"{path}: {fault}"[:200])
    try:
        write_whole(path, pod.encode())
    except OSError as fault:
        logs.event(_LOG, logging.WARNING, "leases.name_not_kept", detail=f"{path}: {fault.strerror}")
    return before if before != pod else ""
