"""What a log's leaf covers: every column of a record as it can be read back, sealed ones by their SHA-256.

A leaf is ``warden/call/v1`` or ``warden/event/v1``, a NUL, and a MessagePack array of [name, value] pairs in the order
of ``audit.rows``, without those that are null, and without empty texts, zeros and false where a column can't be null.
Times are µs since the UNIX epoch; JSON is its text with sorted keys and no spaces. So a column that is added later
changes no older leaf.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import compress
from typing import Any, Final

import msgspec

__all__ = ["LeafShape", "canonical_json", "leaf_data"]

NULLABLE: Final = frozenset({"ttft_ns", "retention_days", "model_digest", "position", "sequence", "sidecar", "log"})
JSON: Final = {
    "call": frozenset({"tensors", "redacted", "decision", "findings", "payloads"}),
    "event": frozenset({"detail"}),
}
_EMPTY: Final = ("{}", "[]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_ENCODER: Final = msgspec.msgpack.Encoder()
_sha256: Final = hashlib.sha256
_AS_THEY_ARE: Final = frozenset({str, int, bool})
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def leaf_data(kind: str, pairs: Iterable[tuple[str, Any]]) -> bytes:
    """``kind`` is ``call`` or ``event``. Columns whose names end in ``_sealed`` count by their SHA-256."""
    json_columns = JSON[kind]
    told: list[tuple[str, Any]] = []
    for name, value in pairs:
        if name in json_columns:
            text = value if isinstance(value, str) else canonical_json(value)
            if text not in _EMPTY:
                told.append((name, text))
        elif value or (value is not None and (name in NULLABLE or name.endswith("_sealed"))):
            told.append((name, value if type(value) in _AS_THEY_ARE else _plain(name, value)))
    return b"warden/%b/v1\x00" % kind.encode() + _ENCODER.encode(told)


class LeafShape:
    """``leaf_data`` for rows of one kind and column order, a third of its time: the columns are sorted out once."""

    def __init__(self, kind: str, names: Sequence[str]) -> None:
        def places(wanted: Callable[[str], bool]) -> tuple[int, ...]:
            return tuple(place for place, name in enumerate(names) if wanted(name))

        self._head, self._names = b"warden/%b/v1\x00" % kind.encode(), tuple(names)
        self._json = places(lambda name: name in JSON[kind])
        self._sealed = places(lambda name: name.endswith("_sealed"))
        self._times = places(lambda name: name == "at" or name.endswith("_at"))
        self._kept = places(lambda name: name in NULLABLE) + self._times  # also where they are 0 or empty

    def data(self, values: Sequence[Any]) -> bytes:
        """``values`` in the order of the names."""
        told = list(values)
        for place in self._json:
            text = told[place]
            if not isinstance(text, str):
                text = "" if text is None else canonical_json(text)  # None: sealed before there was such a column
            told[place] = "" if text in _EMPTY else text
        for place in self._sealed:
            if told[place] is not None:
                told[place] = _sha256(told[place]).digest()
        for place in self._times:
            if told[place] is not None:
                told[place] = (told[place] - _EPOCH) // _MICROSECOND
        wanted = told.copy()
        for place in self._kept:
            wanted[place] = told[place] is not None
        return self._head + _ENCODER.encode(list(compress(zip(self._names, told, strict=True), wanted)))


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, bytes | memoryview):
        return hashlib.sha256(value).digest() if name.endswith("_sealed") else bytes(value)
    assert isinstance(value, datetime), name
    return (value - _EPOCH) // _MICROSECOND


def canonical_json(value: Any) -> str:
    """A parsed JSON value as one text, whatever its keys' order or its numbers' spelling was."""
    return _JSON.encode(_canonical(value))


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # Postgres keeps 1e2 and 100.0 as numerics, whose text differs from ours
    if isinstance(value, dict):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return value
