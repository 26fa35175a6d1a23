"""API keys that turned up where they do not belong: found in any text, proven to be ours, and ended at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import Connection

from sidecar.identity import keys, store
from sidecar.identity.keys import ApiKey
from sidecar.identity.store import KeyInfo, Office

MAX_TEXT: Final = 16 * 2**20  # bytes of one report
MAX_FOUND: Final = 1000  # keys in one report
# As keys.parse reads them, wherever they stand; the checksum then tells a real one from a look-alike.
_KEY: Final = re.compile(rb"wdn_[a-z0-9]{1,12}_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}(?![0-9A-Za-z])")

# revoked: it works nowhere any more. ended: it was the old secret of a rotation, whose grace is over now; the new one
# works on. already: it worked no more. unknown: no secret of ours (or an older one), though its checksum fits.
Result = Literal["revoked", "ended", "already", "unknown"]


@dataclass(frozen=True, slots=True)
class Leak:
    """What became of one key that was found. ``info`` is None where it is not one of ours."""

    key_id: str
    result: Result
    info: KeyInfo | None = None


def find(text: bytes) -> list[ApiKey]:
    """The keys in ``text``, each once, in their order, at most ``MAX_FOUND``; what only looks like one is left out."""
    found: dict[bytes, ApiKey] = {}
    for match in _KEY.finditer(text):
        key = keys.parse(match[0])
        if key is not None:
            found.setdefault(match[0], key)
        if len(found) == MAX_FOUND:
            break
    return list(found.values())


def report(connection: Connection, office: Office, key: ApiKey, where: str, at: datetime) -> Leak:
    """End the secret that leaked, if it is one of ours, and record it. Idempotent. The caller commits.

    Nobody is believed who only knows an id: what was found must be the key's secret.
    """
    info = store.show(connection, key.id)
    which = store.proves(connection, office, key)
    if info is None or which is None or info.environment != key.environment:
        return Leak(key.id, "unknown")
    over = which == "old" and (info.rotated_until is None or info.rotated_until <= at)
    if over or info.state(at) in {"revoked", "expired"}:
        return Leak(key.id, "already", info)
    done = (store.revoke if which == "current" else store.end_grace)(connection, office, key.id, at, leaked=where)
    assert isinstance(done, KeyInfo)
    return Leak(key.id, "revoked" if which == "current" else "ended", done)
