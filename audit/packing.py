"""A call's columns as a row of a binary COPY, and its log's leaf, made in one pass; what calls share is made once.

A row is what ``COPY … FROM STDIN (FORMAT BINARY)`` takes of one tuple (PostgreSQL's documentation of COPY, "Binary
Format"): the number of columns, then of each its length (-1: null) and its bytes. A leaf is audit.leaf's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

from audit.columns import CALL_COLUMNS
from audit.leaf import JSON, NULLABLE
from audit.tables import audit_calls

__all__ = ["Packed", "UnfitError", "pack", "pack_any", "surely_fits", "unpack"]

EPOCH_2000: Final = 946_684_800_000_000  # µs from the UNIX epoch to that of Postgres's timestamps
INDEXED: Final = 256  # characters of a text that is surely fit for any of its columns (audit.assemble)
_NULL: Final = b"\xff\xff\xff\xff"
_HEAD: Final = b"\x00warden/call/v1\x00"  # of what is hashed: RFC 6962's leaf, and what kind it is
_AT: Final = len(_HEAD)
_ENCODER: Final = msgspec.msgpack.Encoder()
_NOTHING: Final = msgspec.Raw(b"")
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)

Packed = tuple[bytes, bytes]
"""The row and its leaf's hash."""


class UnfitError(ValueError):
    """A value is not surely what its column takes: it must be looked at closely first (audit.fitting)."""


def surely_fits(text: str) -> bool:
    """Whether any column takes it as it is."""
    return text.isascii() and "\x00" not in text and len(text) <= INDEXED


# --- one column ---------------------------------------------------------------------------------------------------


def _kind(name: str) -> str:
    kinds = {
        sa.Text: "text", sa.BigInteger: "int8", sa.Integer: "int4", sa.SmallInteger: "int2", sa.Boolean: "bool",
        sa.DateTime: "time", BYTEA: "bytes", JSONB: "json",
    }  # fmt: skip
    return kinds[type(audit_calls.c[name].type)]


_KINDS: Final = tuple(map(_kind, CALL_COLUMNS))
_PACKS: Final[dict[str, Callable[[Any], bytes]]] = {
    "text": str.encode,
    "json": lambda value: b"\x01" + value.encode(),  # jsonb_recv: version 1, then the text
    "bytes": bytes,
    "int8": struct.Struct(">q").pack,
    "int4": struct.Struct(">i").pack,
    "int2": struct.Struct(">h").pack,
    "bool": struct.Struct(">?").pack,
    "time": lambda value: struct.pack(">q", value - EPOCH_2000),
}
_UNPACKS: Final[dict[str, Callable[[bytes], Any]]] = {
    "text": bytes.decode,
    "json": lambda data: data[1:].decode(),
    "bytes": bytes,
    "int8": lambda data: struct.unpack(">q", data)[0],
    "int4": lambda data: struct.unpack(">i", data)[0],
    "int2": lambda data: struct.unpack(">h", data)[0],
    "bool": lambda data: data != b"\x00",
    "time": lambda data: _UNIX + timedelta(microseconds=struct.unpack(">q", data)[0] + EPOCH_2000),
}
_NAMES: Final = tuple(msgspec.Raw(b"\x92" + _ENCODER.encode(name)) for name in CALL_COLUMNS)  # a pair begins so
_OF_JSON: Final = frozenset(CALL_COLUMNS.index(name) for name in JSON["call"])
_ALWAYS: Final = frozenset(
    place for place, name in enumerate(CALL_COLUMNS) if name in NULLABLE or _KINDS[place] == "time"
)  # where they are not null, whatever they are


def _pair(place: int, value: Any) -> bytes:
    """What the leaf says of it; "" where that is nothing."""
    if place in _OF_JSON and value in {"{}", "[]"}:
        return b""
    if CALL_COLUMNS[place].endswith("_sealed"):
        value = None if value is None else sha256(value).digest()
    elif not (value or (value is not None and place in _ALWAYS)):
        return b""
    return b"" if value is None else bytes(_NAMES[place]) + _ENCODER.encode(value)


def _field(place: int, value: Any) -> bytes:
    if value is None:
        return _NULL
    try:
        data = _PACKS[_KINDS[place]](value)
    except struct.error as fault:
        raise OverflowError(f"{CALL_COLUMNS[place]}: {value} does not fit: {fault}") from fault
    return struct.pack(">i", len(data)) + data


def pack_any(values: Sequence[Any]) -> Packed:
    """Whatever the values are, in the order of the columns; times as µs since the UNIX epoch, JSON canonical.

    Raises OverflowError for a number that its column does not hold, UnicodeEncodeError for a lone surrogate.
    """
    row = [struct.pack(">h", len(values)), *(_field(place, value) for place, value in enumerate(values))]
    pairs = [pair for place, value in enumerate(values) if (pair := _pair(place, value))]
    count = len(pairs)
    head = bytes((0x90 | count,)) if count < 16 else struct.pack(">BH", 0xDC, count)  # MessagePack: fixarray, array 16
    return b"".join(row), sha256(b"".join((_HEAD, head, *pairs))).digest()


def unpack(row: bytes) -> list[Any]:
    """The values of a row, in the order of the columns; times as datetimes."""
    (count,) = struct.unpack_from(">h", row)
    values: list[Any] = []
    at = 2
    for kind in _KINDS[:count]:
        (length,) = struct.unpack_from(">i", row, at)
        at += 4
        values.append(None if length < 0 else _UNPACKS[kind](row[at : at + length]))
        at += max(length, 0)
    return values


# --- many calls ---------------------------------------------------------------------------------------------------

# Where the columns are that ``pack`` takes one by one; a test holds it to ``pack_any``.
_WHO: Final = slice(11, 24)  # tenant … retention_days
_ROUTE: Final = slice(38, 44)  # would_refuse … decision
_REST: Final = slice(64, 70)  # error_sealed … evidence_sealed
_LATER: Final = 71
_START: Final = struct.Struct(">hiqi").pack
_LENGTH: Final = struct.Struct(">i").pack
_ONE: Final = struct.Struct(">iq").pack
_TWO: Final = struct.Struct(">iqiq").pack
_TRACED: Final = struct.Struct(">i?").pack
_CUT: Final = struct.Struct(">i?").pack
_COUNTS: Final = struct.Struct(">iqiqi?i?iqiq").pack  # input_tokens … response_bytes

_Part = tuple[bytes, msgspec.Raw, int]  # of a row, of a leaf, and how many pairs that is
_NO_PART: Final[_Part] = (b"", _NOTHING, 0)


def _made(places: Sequence[int], values: Sequence[Any], *, ours: bool = False) -> _Part:
    """Raises UnfitError, but not of what is ``ours``."""
    for place, value in zip(places, values, strict=True):
        if isinstance(value, str) and not ours:
            most, nul = (INDEXED, "\x00") if _KINDS[place] == "text" else (16 * INDEXED, "\\u0000")
            if not value.isascii() or nul in value or len(value) > most:
                raise UnfitError(CALL_COLUMNS[place])
    pairs = [pair for place, value in zip(places, values, strict=True) if (pair := _pair(place, value))]
    row = b"".join(_field(place, value) for place, value in zip(places, values, strict=True))
    return row, msgspec.Raw(b"".join(pairs)), len(pairs)


@lru_cache(maxsize=2048)
def _run(first: int, values: tuple[Any, ...]) -> _Part:
    """The columns from ``first`` on, of which many calls have the same."""
    return _made(range(first, first + len(values)), values)


@lru_cache(maxsize=64)
def _home(sidecar: str, log: str, journal: str, region: str, jurisdiction: str) -> tuple[_Part, _Part, _Part]:
    return (
        _made((2, 3), (sidecar, log), ours=True), _made((5,), (journal,), ours=True),
        _made((8, 9), (region, jurisdiction), ours=True),
    )  # fmt: skip


@lru_cache(maxsize=2048)
def _end(outcome: str, status: int, reason: str, version: str, digest: str | None) -> tuple[_Part, _Part]:
    return _made((45, 46, 47), (outcome, status, reason)), _made((62, 63), (version, digest))


_NO_REST: Final = (None, 0, "[]", "{}", False, None)
_REST_OF_MOST: Final = _made(range(64, 70), _NO_REST)
_UNTRACED: Final = b"".join(_field(place, value) for place, value in zip(range(24, 28), ("", "", "", False)))  # noqa: B905


def _added(values: tuple[Any, ...]) -> _Part:
    """The columns that there are since; what is sealed is nobody else's."""
    if any(isinstance(value, bytes) for value in values):
        return _made(range(_LATER, _LATER + len(values)), values)
    return _run(_LATER, values)


def _length(value: bytes | None) -> bytes:
    return _NULL if value is None else _LENGTH(len(value))


def pack(v: tuple[Any, ...]) -> Packed:
    """As ``pack_any``, a fifth of its time, of values that surely fit. Raises UnfitError, OverflowError for others."""
    ids, detail = v[1] + v[24] + v[25] + v[26] + v[49], v[48]
    if not (surely_fits(ids) and surely_fits(detail)):
        raise UnfitError("an id or a detail")
    parts = (
        *_home(v[2], v[3], v[5], v[8], v[9]), _run(11, v[_WHO]), _run(28, v[28:29]), _run(38, v[_ROUTE]),
        *_end(v[45], v[46], v[47], v[62], v[63]),
        _REST_OF_MOST if v[_REST] == _NO_REST else _made(range(64, 70), v[_REST]),
        _added(v[_LATER:]) if len(v) > _LATER else _NO_PART,
    )  # fmt: skip
    try:
        return _row(v, parts), _leaf(v, parts)
    except struct.error as fault:
        raise UnfitError("a number") from fault


def _row(v: tuple[Any, ...], parts: tuple[_Part, ...]) -> bytes:
    (home, _, _), (journal, _, _), (place, _, _), (who, _, _), (tensors, _, _), (route, _, _), (ended, _, _), (
        model, _, _), (rest, _, _), (later, _, _) = parts  # fmt: skip
    call_id, data_key = v[1].encode(), v[31].encode()
    identity, mac, prompt, prompt_digest, output, output_digest = v[32], v[33], v[34], v[36], v[50], v[52]
    return b"".join((
        _START(len(v), 8, v[0] - EPOCH_2000, len(call_id)), call_id, home, _ONE(8, v[4]), journal,
        _TWO(8, v[6], 8, v[7]), place, _ONE(8, v[10] - EPOCH_2000), who,
        _UNTRACED if not v[27] and not v[24] and not v[25] and not v[26] else _traced(v), tensors,
        _TWO(8, v[29], 8, v[30]), _LENGTH(len(data_key)), data_key, _LENGTH(len(identity)), identity,
        _length(mac), mac or b"", _length(prompt), prompt or b"",
        _ONE(8, v[35]), _length(prompt_digest), prompt_digest or b"", _CUT(1, v[37]), route,
        _NULL if v[44] is None else _ONE(8, v[44] - EPOCH_2000), ended,
        _texts(v[48:50]), _length(output), output or b"",
        _ONE(8, v[51]), _length(output_digest), output_digest or b"", _CUT(1, v[53]),
        _COUNTS(8, v[54], 8, v[55], 1, v[56], 1, v[57], 8, v[58], 8, v[59]),
        _NULL if v[60] is None else _ONE(8, v[60]), _ONE(8, v[61]), model, rest, _ONE(8, v[70]), later,
    ))  # fmt: skip


def _traced(v: tuple[Any, ...]) -> bytes:
    return _texts(v[24:27]) + _TRACED(1, v[27])


_NO_TEXTS: Final = bytes(8)


def _texts(texts: tuple[str, ...]) -> bytes:
    """In ASCII."""
    if texts == ("", ""):
        return _NO_TEXTS
    return b"".join(_LENGTH(len(text)) + text.encode() for text in texts)


def _leaf(v: tuple[Any, ...], parts: tuple[_Part, ...]) -> bytes:
    """An array of everything, names and shared runs already encoded; its length is then put right.

    Each number and text stands in it or, where it is 0 or empty, nothing instead of it.
    """
    n, no = _NAMES, _NOTHING
    (_, home, _), (_, journal, _), (_, place, _), (_, who, _), (_, tensors, _), (_, route, _), (_, ended, _), (
        _, model, _), (_, rest, _), (_, later, _) = parts  # fmt: skip
    counts = (
        v[6], v[27], v[29], v[30], v[35], v[37], v[51], v[53], v[54], v[55], v[56], v[57], v[58], v[59], v[61],
        v[70],
    )  # fmt: skip
    (first, sampled, asked, tokens, prompt_bytes, prompt_cut, output_bytes, output_cut, tokens_in,
     tokens_out, exact_in, exact_out, responses, answered, spent, held) = counts  # fmt: skip
    texts = (v[1], v[24], v[25], v[26], v[31], v[48], v[49])
    call_id, trace, span, parent, data_key, detail, internal = texts
    there = (v[33] or None, v[34], v[36] or None, v[44], v[50], v[52] or None, v[60])
    mac, prompt, prompt_digest, settled, output, output_digest, ttft = there
    pairs = 5 + len(counts) - counts.count(0) + len(texts) - texts.count("") + len(there) - there.count(None)
    for part in parts:
        pairs += part[2]
    flat = (
        n[0], v[0], n[1] if call_id else no, call_id or no, home, n[4], v[4], journal,
        n[6] if first else no, first or no, n[7], v[7], place, n[10], v[10], who,
        n[24] if trace else no, trace or no, n[25] if span else no, span or no, n[26] if parent else no, parent or no,
        n[27] if sampled else no, sampled or no, tensors, n[29] if asked else no, asked or no,
        n[30] if tokens else no, tokens or no, n[31] if data_key else no, data_key or no,
        n[32], sha256(v[32]).digest(), no if mac is None else n[33], no if mac is None else mac,
        no if prompt is None else n[34], no if prompt is None else sha256(prompt).digest(),
        n[35] if prompt_bytes else no, prompt_bytes or no,
        no if prompt_digest is None else n[36], no if prompt_digest is None else prompt_digest,
        n[37] if prompt_cut else no, prompt_cut or no, route,
        no if settled is None else n[44], no if settled is None else settled, ended,
        n[48] if detail else no, detail or no, n[49] if internal else no, internal or no,
        no if output is None else n[50], no if output is None else sha256(output).digest(),
        n[51] if output_bytes else no, output_bytes or no,
        no if output_digest is None else n[52], no if output_digest is None else output_digest,
        n[53] if output_cut else no, output_cut or no, n[54] if tokens_in else no, tokens_in or no,
        n[55] if tokens_out else no, tokens_out or no, n[56] if exact_in else no, exact_in or no,
        n[57] if exact_out else no, exact_out or no, n[58] if responses else no, responses or no,
        n[59] if answered else no, answered or no, no if ttft is None else n[60], no if ttft is None else ttft,
        n[61] if spent else no, spent or no, model, rest, n[70] if held else no, held or no, later,
    )  # fmt: skip
    buffer = bytearray(_HEAD)
    _ENCODER.encode_into(flat, buffer, _AT)
    if pairs < 16:  # MessagePack's shorter head: no call has so few, but nothing here may depend on that
        buffer[_AT : _AT + 3] = bytes((0x90 | pairs,))
    else:
        struct.pack_into(">H", buffer, _AT + 1, pairs)
    return sha256(buffer).digest()
