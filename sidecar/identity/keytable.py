"""All API keys by id, in so many small tables that none takes long to copy, to grow or to let go of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Final, TypeVar, overload

if TYPE_CHECKING:
    from sidecar.identity.keyrow import KeyRow

# A dictionary is copied, resized and freed in one go, during which no other thread has the interpreter: 4 ms of 100,000
# keys. In so many parts each go is of 400 keys, about 10 µs.
PARTS: Final = 256
_MASK: Final = PARTS - 1
_PIECE: Final = 100  # keys put in their places between two pauses; at worst each in another part: about 1 ms
_AT_ONCE: Final = 16  # parts let go of between two pauses, where the last of 100,000 keys go with them: about 0.3 ms
Pause = Callable[[], object]
"""Called between two pieces; lets other threads have the interpreter."""
_T = TypeVar("_T")


class KeyTable(Mapping[str, "KeyRow"]):
    """Never changed once it is made: ``updated`` makes another, which shares all parts that stayed as they were."""

    __slots__ = ("_parts",)

    def __init__(self, rows: Iterable[KeyRow] = ()) -> None:
        parts: list[dict[str, KeyRow]] = [{} for _ in range(PARTS)]
        for row in rows:
            parts[hash(row.id) & _MASK][row.id] = row
        self._parts = parts

    @overload
    def get(self, key_id: str, default: None = None, /) -> KeyRow | None: ...
    @overload
    def get(self, key_id: str, default: KeyRow, /) -> KeyRow: ...
    @overload
    def get(self, key_id: str, default: _T, /) -> KeyRow | _T: ...
    def get(self, key_id: str, default: object = None, /) -> object:
        return self._parts[hash(key_id) & _MASK].get(key_id, default)

    def __getitem__(self, key_id: str) -> KeyRow:
        return self._parts[hash(key_id) & _MASK][key_id]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            yield from part

    def values(self) -> ValuesView[KeyRow]:
        """Every key, in no order; part by part, not one look-up a key."""
        return _Values(self)

    @property
    def parts(self) -> Sequence[Mapping[str, KeyRow]]:
        return self._parts

    def updated(self, changed: Iterable[KeyRow], pause: Pause) -> KeyTable:
        """A table with these keys in place of those of their ids; ``pause`` is called between pieces."""
        made = KeyTable()
        parts, copied = list(self._parts), set[int]()
        for done, row in enumerate(changed, 1):
            number = hash(row.id) & _MASK
            if number not in copied:
                parts[number] = dict(parts[number])
                copied.add(number)
            parts[number][row.id] = row
            if not done % _PIECE:
                pause()
        made._parts = parts
        return made


class _Values(ValuesView["KeyRow"]):
    def __init__(self, table: KeyTable) -> None:
        super().__init__(table)
        self._parts = table.parts

    def __iter__(self) -> Iterator[KeyRow]:
        for part in self._parts:
            yield from part.values()


class Going:
    """A table on its way out. Whoever holds the last reference frees every key: so that holder does it in pieces."""

    def __init__(self, table: KeyTable) -> None:
        self._parts = list(table.parts)

    def let_go(self, pause: Pause) -> None:
        """Call once nothing else holds the table."""
        while self._parts:
            del self._parts[-_AT_ONCE:]
            pause()
