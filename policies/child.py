"""The compiling process: ``python -m policies.child`` is asked over stdin for one bundle, and answers over stdout.

It reads, checks, compiles and tests the directory beside the sidecar, so that no call waits for any of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from policies.bundle import Bundle
from policies.compact import Ask, End, Hashes, Parts, Refused, Reply, Request, Rows, Store, replies
from policies.framing import Broken, Reader, Writer
from policies.reading import changed, compile_directory
from policies.tenant import Tenant

__all__ = ["main"]

NICE: Final = 5  # calls go first
DEADLINE: Final = 150  # seconds; past the sidecar's own, in case that is gone
_DESCRIPTORS: Final = 2**16
_PR_SET_PDEATHSIG: Final = 1


class _Asked(Struct):
    """What came in: the question, and what is known from before."""

    ask: Ask | None
    hashes: dict[str, bytes]
    tenants: dict[str, Tenant]
    store: Store


def main() -> int:
    """One question, one answer, and the end. Exits 1 where the sidecar went away."""
    os.closerange(3, _DESCRIPTORS)  # where who started us could not have it done
    os.nice(NICE)
    signal.alarm(DEADLINE)
    _end_first()
    began = time.monotonic()

    def left() -> float:
        return DEADLINE - (time.monotonic() - began)

    try:
        asked = _read(Reader(sys.stdin.fileno(), Request, left))
        if asked.ask is None:
            return 1
        writer = Writer(sys.stdout.fileno(), left)
        for reply in _answer(asked, asked.ask):
            writer.write(reply)
    except Broken:
        return 1
    return 0


def _end_first() -> None:
    """With the sidecar, even if that is killed; and before it, where memory runs out."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")


def _read(reader: Reader[Request]) -> _Asked:
    found = _Asked(None, {}, {}, Store(keeps_parts=True))
    while True:
        match reader.read():
            case Ask() as ask:
                found.ask = ask
            case Hashes(hashes=hashes):
                found.hashes |= hashes
            case Parts(parts=parts):
                found.store.add(parts)
            case Rows(rows=rows):
                found.tenants |= {tenant.name: tenant for tenant in map(found.store.tenant, rows)}
            case End():
                return found


def _answer(asked: _Asked, ask: Ask) -> list[Reply]:
    bundle = compile_directory(Path(ask.directory), asked, ask.at)
    if not isinstance(bundle, Bundle):
        return [Refused(bundle)]
    return list(replies(bundle, asked, asked.store, changed(asked, bundle)))


if __name__ == "__main__":
    sys.exit(main())
