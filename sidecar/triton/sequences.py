"""Sequences' ids as Triton is given them: out of a live table, so that no two tenants' sequences can ever share one."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, Protocol, assert_never

from sidecar.core.model import Denial, Secret, Share
from sidecar.core.reasons import Reason
from sidecar.triton.knowledge import CorrelationId, Sequences

__all__ = ["Given", "SequenceTable", "SlotPool"]

PER_TENANT: Final = 4_096  # sequences of one tenant alive at once
TOTAL: Final = 65_536  # of all
GRACE_NS: Final = 60 * 10**9  # beyond the model's own idle time: a sequence that Triton still knows is known here too
IDLE_MAX_NS: Final = 86_400 * 10**9
# An id of 32 bits is not given out again for this long: a request of its old sequence may still stand in a queue, and
# would then join the new one. So longer than a call may take (bounds.call_timeout, 600 s unless configured).
RESTS_NS: Final = 900 * 10**9
_LATE_NS: Final = 60 * 10**9  # that a call's end may be late at Triton, where calls may take longer than that
RESTING_MAX: Final = 262_144  # of one model; a tenant has at most as many as are free, so half of them alone
_SWEEP_NS: Final = 10**9  # between two looks through all of them, however often there is no room
RULE: Final = "isolation.sequences"
_NO_SHARE: Final = Share()
_WIDE, _NARROW = 2**63 - 1, 2**31 - 1  # positive whether the model's type is signed or not


@dataclass(frozen=True, slots=True)
class Given:
    """What stands for a client's sequence id at Triton. ``epoch`` tells a sequence from the one it was restarted as.

    ``begun``: it was not alive before.
    """

    id: int | str
    epoch: int
    begun: bool = False


@dataclass(slots=True)
class _Entry:
    id: int | str
    epoch: int
    until: int  # monotonic ns
    known: bool = False  # Triton may know the id already, from a sequence before


@dataclass(slots=True)
class _Narrow:
    """The 32-bit ids of one model that may not be given out: alive, or resting."""

    taken: set[int] = field(default_factory=set)
    resting: deque[tuple[int, int, str]] = field(default_factory=deque)  # until when, which, whose it was
    counts: dict[str, int] = field(default_factory=dict)  # of those that rest, by tenant

    def rest(self, until_ns: int, given: int, tenant: str) -> None:
        self.resting.append((until_ns, given, tenant))
        self.counts[tenant] = self.counts.get(tenant, 0) + 1

    def wake(self, at_ns: int) -> None:
        while self.resting and self.resting[0][0] <= at_ns:
            _, given, tenant = self.resting.popleft()
            self.taken.discard(given)
            self.counts[tenant] -= 1
            if not self.counts[tenant]:
                del self.counts[tenant]

    def full(self, tenant: str) -> bool:
        """Whether ``tenant`` may be given no more: however many it begins, some are left for whoever has none."""
        return self.counts.get(tenant, 0) >= RESTING_MAX - len(self.resting)


class Asked(Protocol):
    """A pool's answer."""

    @property
    def ok(self) -> bool: ...


class SlotPool(Protocol):
    """``sidecar.quotas.pool.Pool``, as far as a model's sequence slots need it."""

    capacity: int
    held: dict[str, int]
    total: int

    def ask(self, tenant: str, units: int, share: Share, at_ns: int) -> Asked: ...

    def take(self, tenant: str, units: int) -> None: ...


_Place = tuple[str, str]  # tenant, model
_Where = tuple[str, int | str]  # model, client's id


def _running(entries: OrderedDict[int | str, _Entry], gone: int, most: int) -> int:
    """Sequences that Triton still knows: the longest idle stand first. Counted up to ``most``."""
    return sum(1 for _ in islice(takewhile(lambda each: each.until > gone, reversed(entries.values())), most))


def _idle_ns(kept: Sequences) -> int:
    return min(kept.idle_us * 1000, IDLE_MAX_NS)


class SequenceTable:
    """All live sequences of this sidecar. Times are monotonic ns. Safe from several threads; one short lock."""

    def __init__(
        self,
        key: Secret,
        *,
        call_timeout: float = 0.0,
        per_tenant: int = PER_TENANT,
        total: int = TOTAL,
        pool: Callable[[], SlotPool] | None = None,
    ) -> None:
        """``key``: 32 random bytes of this process, so that ids can't be guessed and differ from the last process's.

        ``call_timeout``: the longest a call may take, in seconds. ``pool`` makes one for a model's slots, which tenants
        then share by their plans; without it the only rule is that none has more than half.
        """
        self._key = key.reveal()
        self._rests_ns = max(RESTS_NS, int(call_timeout * 1e9) + _LATE_NS)
        self._per_tenant, self._total = per_tenant, total
        self._lock = threading.Lock()
        self._places: dict[_Place, OrderedDict[int | str, _Entry]] = {}  # the longest idle first
        self._counts: dict[str, int] = {}
        self._failed: dict[
            str, OrderedDict[_Where, None]
        ] = {}  # by tenant: whose START or END failed, the oldest first
        self._narrow: dict[str, _Narrow] = {}
        self._pool, self._pools = pool, dict[str, SlotPool]()
        self._tenants: dict[str, set[str]] = {}  # by model: who has sequences there
        self._size = 0
        self._serial = 0
        self._swept_ns = 0  # when all were last looked through

    def __len__(self) -> int:
        return self._size

    def enter(
        self,
        tenant: str,
        model: str,
        kept: Sequences,
        client: int | str,
        at_ns: int,
        *,
        start: bool,
        share: Share = _NO_SHARE,
    ) -> Given | Denial:
        """The id of a request's sequence. ``start`` begins it, or begins it anew where it is alive.

        A request of a sequence that isn't alive is refused in Triton's own words.
        """
        with self._lock:
            place = (tenant, model)
            entry = self._alive(place, client, at_ns)
            crowding = self._crowding(place, client, kept, share, at_ns) if start else None
            if isinstance(crowding, Denial):
                return crowding
            begun = entry is None
            if entry is None:
                if not start:
                    text = "must specify the START flag on the first request of the sequence"
                    return Denial(Reason.REQUEST_MALFORMED, f"parameter sequence_id: {client!a}: {text}", rule=RULE)
                found = crowding or self._begin(place, kept.ids, at_ns)
                if isinstance(found, Denial):
                    return found
                entry = found
                self._places.setdefault(place, OrderedDict())[client] = entry
                self._tenants.setdefault(model, set()).add(tenant)
                self._counts[tenant] = self._counts.get(tenant, 0) + 1
                self._size += 1
            else:
                self._recall(tenant, (model, client))
                if start:
                    entry.epoch = self._next()
            entry.until = at_ns + _idle_ns(kept) + GRACE_NS
            self._places[place].move_to_end(client)
            return Given(entry.id, entry.epoch, begun)

    def forgo(self, tenant: str, model: str, client: int | str, epoch: int, at_ns: int) -> None:
        """What would have begun a sequence was refused after all, so its id may be anybody's at once."""
        with self._lock:
            entry = self._entry((tenant, model), client)
            if entry is None or entry.epoch != epoch:
                return
            if entry.known:
                self._drop((tenant, model), client, at_ns)
                return
            self._remove((tenant, model), client)
            if isinstance(entry.id, int) and model in self._narrow:
                self._narrow[model].taken.discard(entry.id)

    def leave(
        self, tenant: str, model: str, client: int | str, epoch: int, at_ns: int, *, failed: bool = False
    ) -> None:
        """A sequence's last request was answered; nothing where it was begun anew since.

        ``failed``: with an error, or its first one was. Triton has ended (begun) the sequence if it came to the model,
        and not if it was refused before (it may then be sent again), and doesn't say which. So the sequence stays, but
        makes room for the next.
        """
        with self._lock:
            entry = self._entry((tenant, model), client)
            if entry is None or entry.epoch != epoch:
                return
            if failed:
                self._failed.setdefault(tenant, OrderedDict())[model, client] = None
            else:
                self._drop((tenant, model), client, at_ns)

    # --- under the lock --------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _alive(self, place: _Place, client: int | str, at_ns: int) -> _Entry | None:
        entry = self._entry(place, client)
        if entry is not None and entry.until <= at_ns:
            self._drop(place, client, at_ns)
            return None
        return entry

    def _entry(self, place: _Place, client: int | str) -> _Entry | None:
        entries = self._places.get(place)
        return None if entries is None else entries.get(client)

    def _drop(self, place: _Place, client: int | str, at_ns: int) -> None:
        tenant, model = place
        entry = self._remove(place, client)
        narrow = self._narrow.get(model)
        if narrow is not None and isinstance(entry.id, int) and entry.id in narrow.taken:
            narrow.rest(at_ns + self._rests_ns, entry.id, tenant)

    def _remove(self, place: _Place, client: int | str) -> _Entry:
        tenant, model = place
        self._recall(tenant, (model, client))
        entry = self._places[place].pop(client)
        if not self._places[place]:
            del self._places[place]
            self._tenants[model].discard(tenant)
            if not self._tenants[model]:
                del self._tenants[model]
        self._size -= 1
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        return entry

    def _crowding(
        self, place: _Place, client: int | str, kept: Sequences, share: Share, at_ns: int
    ) -> _Entry | Denial | None:
        """Why one more of this tenant's would take from the others: it has half of the model's slots, or all are taken
        and others are before it.

        Those that have said nothing for the model's idle time have none any more, though they are remembered longer.
        One whose first or last request failed may have one still. The new sequence is that one then, begun anew: so it
        takes no other.
        """
        half, entries = kept.slots // 2, self._places.get(place, OrderedDict())
        if not half:
            return None
        gone = at_ns + GRACE_NS  # for Triton: it knows of no grace
        own = entries.get(client)
        has_one = own is not None and own.until > gone
        if _running(entries, gone, half + 1) - has_one >= half:
            text = f"{half} sequences at once, half of those that the model runs"
        elif has_one or self._let_in(place, kept.slots, share, at_ns):
            return None
        else:
            text = "the model runs as many sequences as it can"
        tenant, model = place
        spare = next((name for where, name in self._failed.get(tenant, ()) if where == model), None)
        if spare is not None and client not in entries:
            return _Entry(self._remove(place, spare).id, self._next(), 0, known=True)
        return Denial(Reason.CONCURRENCY, text, 1.0, rule=RULE)

    def _let_in(self, place: _Place, slots: int, share: Share, at_ns: int) -> bool:
        """Whether the tenant may take one slot more, by its plan's share and whoever was refused before it."""
        tenant, model = place
        if self._pool is None:
            return True
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = self._pool()
        gone = at_ns + GRACE_NS
        counts = ((each, _running(self._places[each, model], gone, slots)) for each in self._tenants.get(model, ()))
        pool.capacity, pool.held = slots, {each: count for each, count in counts if count}
        pool.total = sum(pool.held.values())
        if not pool.ask(tenant, 1, share, at_ns).ok:
            return False
        pool.take(tenant, 1)  # its claim, if it had one, is met
        return True

    def _begin(self, place: _Place, ids: CorrelationId, at_ns: int) -> _Entry | Denial:
        tenant, _ = place
        self._make_room(tenant, at_ns)
        if self._counts.get(tenant, 0) >= self._per_tenant:
            return Denial(Reason.CONCURRENCY, f"{self._per_tenant} sequences at once", 1.0, rule=RULE)
        if self._size >= self._total:
            return Denial(Reason.CONCURRENCY, "the sidecar keeps no more sequences", 1.0, rule=RULE)
        epoch = self._next()
        match ids:
            case CorrelationId.WIDE:
                return _Entry(self._drawn(epoch, 0, _WIDE), epoch, 0)
            case CorrelationId.TEXT:
                return _Entry(self._digest(epoch, 0).hex(), epoch, 0)
            case CorrelationId.NARROW:
                return self._begin_narrow(place, epoch, at_ns)
            case CorrelationId.MIXED:
                raise AssertionError("isolation refuses these before")
            case unreachable:
                assert_never(unreachable)

    def _make_room(self, tenant: str, at_ns: int) -> None:
        """Where there is none: by what was idle too long, else by a failed one (the tenant's own first)."""
        if self._counts.get(tenant, 0) >= self._per_tenant:
            self._expire([each for each in self._places if each[0] == tenant], at_ns)
        if self._size >= self._total and at_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = at_ns
            self._expire(list(self._places), at_ns)
        own = self._counts.get(tenant, 0) >= self._per_tenant
        if own or self._size >= self._total:
            whose = tenant if own or tenant in self._failed else next(iter(self._failed), "")
            if whose in self._failed:
                model, client = next(iter(self._failed[whose]))
                self._drop((whose, model), client, at_ns)

    def _recall(self, tenant: str, where: _Where) -> None:
        """It goes on, or is gone: no more one of those whose START or END failed."""
        failed = self._failed.get(tenant)
        if failed is not None and where in failed:
            del failed[where]
            if not failed:
                del self._failed[tenant]

    def _begin_narrow(self, place: _Place, epoch: int, at_ns: int) -> _Entry | Denial:
        tenant, model = place
        narrow = self._narrow.setdefault(model, _Narrow())
        narrow.wake(at_ns)
        if narrow.full(tenant):
            wait = (narrow.resting[0][0] - at_ns) / 1e9
            return Denial(Reason.CONCURRENCY, "too many new sequences for ids of 32 bits", wait, rule=RULE)
        tries = 0
        # At most 2^19 of 2^31 are taken: two tries in a row both fail once in 16 million.
        while (drawn := self._drawn(epoch, tries, _NARROW)) in narrow.taken:
            tries += 1
        narrow.taken.add(drawn)
        return _Entry(drawn, epoch, 0)

    def _drawn(self, epoch: int, tries: int, most: int) -> int:
        """A number from 1 to ``most`` that nobody else can foresee."""
        return int.from_bytes(self._digest(epoch, tries)[:16], "big") % most + 1

    def _digest(self, epoch: int, tries: int) -> bytes:
        """64 bytes. As hex they are 128 characters, as long as an id of text may be, which is how long each should be:
        of a shorter one Triton 2.51 hands the Python backend its whole buffer, which is refused, or ends the model."""
        return hashlib.blake2b(b"%d %d" % (epoch, tries), key=self._key).digest()

    def _expire(self, places: list[_Place], at_ns: int) -> None:
        """Drop what has been idle too long; of one place all idle as long, so the longest idle are all there are."""
        for place in places:
            while (entries := self._places.get(place)) and next(iter(entries.values())).until <= at_ns:
                self._drop(place, next(iter(entries)), at_ns)
