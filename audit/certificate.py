"""An erasure's certificate as a signed note: what was erased, when, and whether it is done; checkable by itself."""

from __future__ import annotations

import json
from typing import Any, Final

from audit.erasing import Erasure
from audit.fleet import FLEET
from audit.leaf import canonical_json
from audit.logbook import log_signer, origin_of
from audit.tlog import NoteError, Verifier, parse_note
from sidecar.core.model import Secret

__all__ = ["certificate", "read_certificate"]

_KIND: Final = "certificate"


def certificate(erasure: Erasure, jurisdiction: str, root: Secret) -> str:
    """Signed by the key of the fleet's log. The same state gives the same note: Ed25519 signs alike."""
    text = f"{origin_of(jurisdiction, _KIND)}\n{canonical_json(erasure.shape())}\n"
    return log_signer(root, origin_of(jurisdiction, FLEET)).sign(text)


def read_certificate(note: str, jurisdiction: str, verifier: Verifier) -> dict[str, Any]:
    """What it certifies. Raises NoteError where it is none of this jurisdiction's, or was altered."""
    parsed = parse_note(note)
    origin, _, body = parsed.text.rstrip("\n").partition("\n")
    if not verifier.accepts(parsed):
        raise NoteError(f"not signed by the key of {verifier.name}, or altered since")
    if origin != origin_of(jurisdiction, _KIND):
        raise NoteError(f"a note of {origin!r}, no certificate of {jurisdiction}")
    try:
        told = json.loads(body)
    except ValueError as fault:
        raise NoteError(f"a certificate's body is no JSON: {fault}") from fault
    if not isinstance(told, dict):
        raise NoteError("a certificate's body is no JSON object")
    return told
