"""The tensors of one call as they go into its record: described in its row, their bytes in objects beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from audit.assemble import Cleaner
from audit.leaf import canonical_json
from audit.vault import SALT_BYTES, RecordSealer, commitment

__all__ = [
    "LISTED", "NO_PAYLOAD", "PREFIX", "Described", "ObjectRef", "Payload", "SealedObject", "Side", "Unkept",
    "column_of", "folder_of", "nowhere", "object_name", "refs_of", "sealed_payload", "unpacked",
]  # fmt: skip

PREFIX: Final = "tensors"  # of all of them in the store
LISTED: Final = 4096  # tensors told of one side of a call
_ENCODER: Final = msgspec.msgpack.Encoder()
_BODIES: Final = msgspec.msgpack.Decoder(tuple[bytes, list[bytes | None]])

Side = Literal["inputs", "outputs"]


class Unkept(StrEnum):
    """Why a side's bytes are not all in its object."""

    BOUND = "bound"  # more than the tenant has kept of them
    REDACTED = "redacted"  # texts, of which the tenant wants identifiers taken out
    HELD = "held"  # more than the shipper may hold of calls that have not ended
    UNREADABLE = "unreadable"  # the message can't be read any more
    NOWHERE = "nowhere"  # the sidecar has no object store for this jurisdiction


class Described(msgspec.Struct, frozen=True, array_like=True):
    """One tensor. ``response``: of which answer (0 of inputs); ``data`` None: its bytes are not kept."""

    response: int
    name: str
    datatype: str
    shape: list[int]
    nbytes: int
    sha256: bytes = b""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Payload:
    """What of one call's tensors is known; a side that is not there was not asked for."""

    tensors: dict[Side, list[Described]] = field(default_factory=dict)
    unkept: dict[Side, str] = field(default_factory=dict)


NO_PAYLOAD: Final = Payload()


def nowhere(payload: Payload) -> Payload:
    """The same without bytes."""
    return Payload(
        {side: [msgspec.structs.replace(each, data=None) for each in told] for side, told in payload.tensors.items()},
        dict.fromkeys(payload.tensors, Unkept.NOWHERE.value) | payload.unkept,
    )


class SealedObject(msgspec.Struct, frozen=True, array_like=True):
    """An object as it is to lie in the store; it goes with its row until it is there."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """What a row says of an object: its name, its bytes, and their SHA-256, all as sealed."""

    side: Side
    name: str
    nbytes: int
    sha256: bytes


def column_of(side: Side) -> str:
    """What an object is sealed as."""
    return f"{side}_object"


def folder_of(day: date, data_key: str) -> str:
    """Where all objects under one data key are: so they go with it, whatever is left of their rows."""
    return f"{PREFIX}/{day.isoformat()}/{data_key}"


def object_name(day: date, data_key: str, call_id: str, side: Side) -> str:
    """One name for each side of a record: a retry finds what it has put there before."""
    call = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{folder_of(day, data_key)}/{call}-{side}"


def sealed_payload(
    payload: Payload, sealer: RecordSealer, *, day: date, call_id: str, clean: Cleaner
) -> tuple[str, bytes | None, list[SealedObject]]:
    """(the column ``payloads``, the salt sealed, the objects). Digests are published under the salt (audit.vault)."""
    if not payload.tensors:
        return "{}", None, []
    salt = sealer.draw(SALT_BYTES)
    told: dict[str, Any] = {}
    objects: list[SealedObject] = []
    for side, tensors in payload.tensors.items():
        part: dict[str, Any] = {"tensors": [_told(each, salt, clean) for each in tensors[:LISTED]]}
        if side in payload.unkept:
            part["unkept"] = payload.unkept[side]
        bodies = [each.data for each in tensors[:LISTED]]
        if any(body is not None for body in bodies):
            name = object_name(day, sealer.data_key, call_id, side)
            sealed = sealer.seal(column_of(side), _ENCODER.encode((salt, bodies)))
            part["object"] = [name, len(sealed), hashlib.sha256(sealed).hexdigest()]
            objects.append(SealedObject(name, sealed))
        told[side] = part
    return canonical_json(told), sealer.seal("payloads", salt), objects


def _told(each: Described, salt: bytes, clean: Cleaner) -> list[Any]:
    digest = commitment(salt, each.sha256).hex() if each.sha256 else ""
    name, datatype = clean.text(each.name), clean.text(each.datatype)
    return [each.response, name, datatype, list(each.shape), each.nbytes, digest, each.data is not None]


def refs_of(payloads: Any) -> list[ObjectRef]:
    """The objects that a row's ``payloads`` (parsed JSON) names. Raises ValueError for what no shipper wrote."""
    try:
        return [
            ObjectRef(side, str(told["object"][0]), int(told["object"][1]), bytes.fromhex(told["object"][2]))
            for side, told in payloads.items()
            if told.get("object") is not None
        ]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as fault:
        raise ValueError(f"no payloads: {fault!r}") from None


def unpacked(plain: bytes) -> tuple[bytes, Sequence[bytes | None]]:
    """An object's content: the salt, and each tensor's bytes in the order of the row's list.

    Raises msgspec.DecodeError.
    """
    return _BODIES.decode(plain)
