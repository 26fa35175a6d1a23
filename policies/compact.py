"""A compiled bundle as small messages: what the compiling process hands over, quickly taken and shared by content.

A tenant is a row: its plain fields, and for all else the numbers of parts. Equal parts of many tenants are one object,
and a part that the bundle before had already is that one's very object. So ten thousand tenants of a few plans take
some hundreds of bytes each, and quotas see no change where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, assert_never, get_type_hints

import msgspec
from msgspec import Struct, structs

from policies.access import Access, Statement, prepare
from policies.bundle import Before, Bundle
from policies.document import ChangeDoc
from policies.guards import Guard, Guards, Joined
from policies.piecemeal import let_go
from policies.rules import GuardRules, Rule
from policies.tenant import From, KeyRule, Tenant
from policies.versions import PrefixCache
from policies.watching import Hold
from policies.yamlfile import Problem
from sidecar.core.model import Limits, ModelProfile, Quantity

__all__ = [
    "Ask",
    "End",
    "Hashes",
    "Pack",
    "Parts",
    "Refused",
    "Reply",
    "Request",
    "Rows",
    "Store",
    "Taking",
    "replies",
    "rows",
    "shared",
    "some",
]

ARCHIVE_BYTES: Final = 2**16
PER_MESSAGE: Final = 50  # of whatever a message holds many of; some 0.2 ms to read

T = TypeVar("T")
# The number of the field it is a value of, and the value as MessagePack. One object, which the collector does not know:
# ten thousand small tuples took it 5 ms.
Part = bytes
Row = list[Any]  # a tenant's fields in their order; of those that are parts, the part's number

_PLAIN: Final = frozenset({"name", "document", "plan", "active"})
_GUARDS: Final = "guards"  # what they are compiled of is handed over
_KEYS: Final = "keys"  # by name, each rule a part: a tenant may have a thousand of them
_FIELDS: Final = Tenant.__struct_fields__
_HINTS: Final[Mapping[str, Any]] = {
    **get_type_hints(Tenant),
    _KEYS: KeyRule,
    _GUARDS: tuple[tuple[Guard, ...], Hold | None] | None,
}
_ENCODE: Final = msgspec.msgpack.Encoder(order="deterministic")  # equal sets are equal bytes, in any process
_NUMBER: Final = {name: bytes([number]) for number, name in enumerate(_FIELDS)}
_DECODERS: Final = [None if name in _PLAIN else msgspec.msgpack.Decoder(_HINTS[name]) for name in _FIELDS]


# --- messages ------------------------------------------------------------------------------------------------------


class Ask(Struct, tag=True, frozen=True):
    """To the compiling process: the directory to compile, and the moment at which cases are asked (epoch seconds)."""

    directory: str
    at: float


class Refused(Struct, tag=True, frozen=True):
    """The bundle is bad, for these reasons."""

    problems: list[Problem]


class Head(Struct, tag=True, frozen=True):
    """The bundle's smaller things. ``gone``: tenants of the one before that are no more; ``changes``: in words."""

    digest: str
    regions: dict[str, str]
    classes: list[str] | None
    change: tuple[str, str] | None  # author, reference
    prefix_caches: dict[str, PrefixCache]
    mentions: list[str]
    rules: dict[str, Rule] | None
    edges: list[float]
    gone: list[str]
    dropped: list[str]  # files
    changes: str


class Hashes(Struct, tag=True, frozen=True):
    """Of files that are new or changed."""

    hashes: dict[str, bytes]


class Models(Struct, tag=True, frozen=True):
    """Some of the models, in order."""

    models: list[ModelProfile]


class Policies(Struct, tag=True, frozen=True):
    """Some of the Cedar policies, in order."""

    statements: list[Statement]


class Parts(Struct, tag=True, frozen=True):
    """Some of the parts; their numbers go on from the last one's."""

    parts: list[Part]


class Rows(Struct, tag=True, frozen=True):
    """Some tenants, new or changed (or, in what is asked, all)."""

    rows: list[Row]


class Archive(Struct, tag=True, frozen=True):
    """A piece of the bundle's archive."""

    data: bytes


class End(Struct, tag=True, frozen=True):
    """That was all."""


Reply = Refused | Head | Hashes | Models | Policies | Parts | Rows | Archive | End
Request = Ask | Hashes | Parts | Rows | End


# --- parts ---------------------------------------------------------------------------------------------------------


class Pack:
    """Numbers parts: one number for equal values. ``parts`` are those handed over before, by their numbers."""

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self._numbers: dict[Part, int] = {part: number for number, part in enumerate(parts)}
        self._seen: dict[str, dict[int, int]] = {name: {} for name in _FIELDS}  # number by id(); the tenants hold them
        self._fresh: list[tuple[Part, Any]] = []

    def row(self, tenant: Tenant) -> Row:
        return [self._field(name, getattr(tenant, name)) for name in _FIELDS]

    def fresh(self) -> list[tuple[Part, Any]]:
        """The parts that were numbered since this was asked last, and their values."""
        found, self._fresh = self._fresh, []
        return found

    def clear(self, pause: Callable[[], None]) -> None:
        let_go(pause, *self._seen.values(), self._numbers)

    def _field(self, name: str, value: Any) -> Any:
        if name in _PLAIN:
            return value
        if name == _KEYS:
            return None if value is None else [[key, self._number(name, rule)] for key, rule in value.items()]
        return self._number(name, value)

    def _number(self, name: str, value: Any) -> int:
        seen = self._seen[name]
        known = seen.get(id(value))
        if known is not None:
            return known
        told = (value.guards, value.hold) if name == _GUARDS and value is not None else value
        part = _NUMBER[name] + _ENCODE.encode(told)
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = len(self._numbers)
            self._fresh.append((part, value))
        seen[id(value)] = number
        return number


def _value(part: Part) -> Any:
    """Raises ``ValueError``, ``LookupError``."""
    decoder = _DECODERS[part[0]]
    if decoder is None:
        raise ValueError("a part of a field that has none")
    found = decoder.decode(memoryview(part)[1:])
    _settle(found)
    return Guards(*found) if part[:1] == _NUMBER[_GUARDS] and found is not None else found


_SETS: Final[dict[frozenset[Quantity], frozenset[Quantity]]] = {}  # at most one for each subset of seven


def _settle(value: Any) -> None:
    """Let equal sets be one: each is an object that the collector walks, and ten thousand tenants have two of them."""
    match value:
        case Limits():
            structs.force_setattr(value, "shadow", _SETS.setdefault(value.shadow, value.shadow))
            for _, each in value.models:
                _settle(each)
            _settle(value.per_key)
        case From() | KeyRule():
            _settle(value.limits)
        case tuple():
            for each in value:
                _settle(each)


class Store:
    """The parts as values, by their numbers; ``parts`` themselves too, where they are needed again."""

    def __init__(self, *, keeps_parts: bool = False) -> None:
        self.parts: list[Part] | None = [] if keeps_parts else None
        # In tuples of PER_MESSAGE, then the rest. The collector soon forgets a tuple of plain values; one list of all
        # it walked again and again, up to 6 ms.
        self._full: list[tuple[Any, ...]] = []
        self._rest: list[Any] = []

    def add(self, parts: Iterable[Part], values: Iterable[Any] | None = None) -> None:
        """``values``: the parts' own objects, where there are some already."""
        parts = list(parts)
        if self.parts is not None:
            self.parts += parts
        self._rest += map(_value, parts) if values is None else values
        while len(self._rest) >= PER_MESSAGE:
            self._full.append(tuple(self._rest[:PER_MESSAGE]))
            del self._rest[:PER_MESSAGE]

    def clear(self, pause: Callable[[], None]) -> None:
        while self._full:
            self._full.pop()
            pause()
        self._rest = []

    def tenant(self, row: Row) -> Tenant:
        """Raises ``IndexError`` for a part that was never handed over."""
        return Tenant(*(self._value(name, written) for name, written in zip(_FIELDS, row, strict=True)))

    def _value(self, name: str, written: Any) -> Any:
        if name in _PLAIN:
            return written
        if name == _KEYS:
            return None if written is None else {key: self._numbered(number) for key, number in written}
        return self._numbered(written)

    def _numbered(self, number: int) -> Any:
        if number < 0:
            raise IndexError("a part's number below zero")
        place, within = divmod(number, PER_MESSAGE)
        return self._rest[within] if place == len(self._full) else self._full[place][within]


# --- both ends -----------------------------------------------------------------------------------------------------


def some(things: Iterable[T]) -> Iterator[list[T]]:
    """``PER_MESSAGE`` at a time."""
    few: list[T] = []
    for thing in things:
        few.append(thing)
        if len(few) == PER_MESSAGE:
            yield few
            few = []
    if few:
        yield few


def rows(tenants: Iterable[Tenant], pack: Pack, store: Store | None = None) -> Iterator[Parts | Rows]:
    """Each row after the parts that it names. ``store`` is given the parts with the tenants' own values of them."""
    for few in some(tenants):
        found = [pack.row(tenant) for tenant in few]
        for fresh in some(pack.fresh()):
            parts = [part for part, _ in fresh]
            if store is not None:
                store.add(parts, [value for _, value in fresh])
            yield Parts(parts)
        yield Rows(found)


def replies(bundle: Bundle, before: Before, store: Store, changes: str) -> Iterator[Reply]:
    """What is new in ``bundle`` since ``before``, whose parts ``store`` keeps."""
    assert store.parts is not None
    change = None if bundle.change is None else (bundle.change.author, bundle.change.reference)
    yield Head(
        digest=bundle.digest,
        regions=dict(bundle.regions),
        classes=None if bundle.classes is None else list(bundle.classes),
        change=change,
        prefix_caches=dict(bundle.prefix_caches),
        mentions=sorted(bundle.access.mentions),
        rules=None if bundle.rules is None else dict(bundle.rules.rules),
        edges=list(bundle.edges),
        gone=[name for name in before.tenants if name not in bundle.tenants],
        dropped=[name for name in before.hashes if name not in bundle.hashes],
        changes=changes,
    )
    changed = ((name, hash_) for name, hash_ in bundle.hashes.items() if before.hashes.get(name) != hash_)
    yield from (Hashes(dict(few)) for few in some(changed))
    yield from (Models(few) for few in some(bundle.models.values()))
    yield from (Policies(few) for few in some(bundle.access.statements.values()))
    known = before.tenants
    yield from rows(
        (each for name, each in bundle.tenants.items() if known.get(name) is not each), Pack(store.parts or ())
    )
    archive = memoryview(bundle.archive)
    yield from (Archive(bytes(archive[at : at + ARCHIVE_BYTES])) for at in range(0, len(archive), ARCHIVE_BYTES))
    yield End()


class Taking:
    """Puts a bundle together again from ``replies``, what has not changed being of ``before``."""

    def __init__(self, before: Bundle, store: Store) -> None:
        self._before, self._store = before, store
        self._head: Head | None = None
        self._hashes: dict[str, bytes] = {}
        self._models: dict[str, ModelProfile] = {}
        self._statements: dict[str, Statement] = {}
        self._tenants: dict[str, Tenant] = {}
        self._archive: list[bytes] = []

    @property
    def changes(self) -> str:
        return "" if self._head is None else self._head.changes

    def take(self, reply: Reply) -> None:
        """Raises ``ValueError`` where it can't be what was asked for."""
        match reply:
            case Head():
                self._head = reply
            case Hashes():
                self._hashes |= reply.hashes
            case Models():
                self._models |= {model.name: model for model in reply.models}
            case Policies():
                self._statements |= {each.id: each for each in reply.statements}
            case Parts():
                self._store.add(reply.parts)
            case Rows():
                self._tenants |= {tenant.name: tenant for tenant in map(self._store.tenant, reply.rows)}
            case Archive():
                self._archive.append(reply.data)
            case Refused() | End():
                raise ValueError("an end in the middle")
            case _:
                assert_never(reply)

    def whole(self) -> Bundle:
        """Raises ``ValueError`` where something is missing."""
        head, before = self._head, self._before
        if head is None:
            raise ValueError("a bundle without its head")
        return Bundle(
            digest=head.digest,
            hashes=_updated(before.hashes, head.dropped, self._hashes),
            archive=b"".join(self._archive),
            regions=head.regions,
            models=before.models if self._models == before.models else self._models,
            tenants=_updated(before.tenants, head.gone, self._tenants),
            access=self._access(frozenset(head.mentions)),
            cases=(),
            classes=None if head.classes is None else tuple(head.classes),
            change=None if head.change is None else ChangeDoc(author=head.change[0], reference=head.change[1]),
            prefix_caches=head.prefix_caches,
            rules=None if head.rules is None else Joined(GuardRules(head.rules)),
            edges=tuple(head.edges),
        )

    def _access(self, mentions: frozenset[str]) -> Access:
        before = self._before.access
        same = [*before.statements.items()] == [*self._statements.items()]
        return before if same else prepare(self._statements, mentions)


def _updated(before: Mapping[str, T], gone: Iterable[str], new: Mapping[str, T]) -> dict[str, T]:
    """Item by item: a whole dictionary is copied in one go, during which nobody else runs."""
    left = set(gone)
    return {name: value for each in (before, new) for name, value in each.items() if each is new or name not in left}


def shared(bundle: Bundle) -> Bundle:
    """The same, but that equal parts of its tenants are one object."""
    pack, store = Pack(), Store()
    tenants: dict[str, Tenant] = {}
    for message in rows(bundle.tenants.values(), pack, store):
        if isinstance(message, Rows):
            tenants |= {tenant.name: tenant for tenant in map(store.tenant, message.rows)}
    return replace(bundle, tenants=tenants)
