"""The record that a day's rows go, or stay after all: signed, since it excuses that they are gone.

Any login that records what its owner does can write an act of that kind (an officer's, a reader's), and a sidecar's can
write one into the fleet's log. Only who has the jurisdiction's root key can sign it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final

from audit.leaf import canonical_json
from audit.tlog import NoteError, Signer, Verifier, parse_note

__all__ = ["DROPPED", "KEPT", "RETENTION", "believed", "signed_detail"]

RETENTION: Final = "retention"  # whose key signs it (audit.logbook.origin_of); no sidecar's log is without a dot
DROPPED: Final = "partition_dropped"
KEPT: Final = "partition_kept"  # what was on record to go stays: nothing of it is excused any more


def signed_detail(signer: Signer, kind: str, event_id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """``told`` with the note that vouches for it."""
    return {**told, "note": signer.sign(_text(signer.verifier.name, kind, event_id, told))}


def believed(verifier: Verifier, kind: str, event_id: str, detail: Mapping[str, Any]) -> bool:
    """Whether that event was made with the jurisdiction's key, as it stands."""
    told = {name: value for name, value in detail.items() if name not in {"note", "login"}}
    try:
        note = parse_note(str(detail.get("note", "")))
    except NoteError:
        return False
    return verifier.accepts(note) and note.text == _text(verifier.name, kind, event_id, told)


def _text(origin: str, kind: str, event_id: str, told: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(dict(told)).encode()).digest()
    return f"{origin}\n{kind} {event_id}\n{base64.b64encode(digest).decode()}\n"
