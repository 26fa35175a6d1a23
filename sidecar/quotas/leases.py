"""Keeps a pod's leases in Redis, from a thread of its own: no admission ever waits for it (DESIGN §9)."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sidecar.core.model import Quantity
from sidecar.quotas.shared import LEASE_NS, SharedQuotas, Want

__all__ = ["ROUND_S", "Access", "LeaseKeeper", "Posture", "connect", "look"]

_LOG: Final = logging.getLogger("warden.leases")
ROUND_S: Final = 0.05  # seconds between two rounds
TIMEOUT_S: Final = 0.1  # for one answer of Redis
CONNECT_S: Final = 0.5  # for a connection to it, TLS included
ALIVE_S: Final = 0.5  # a pod that wants nothing says so often that it is there
POD_TTL_MS: Final = LEASE_NS // 1_000_000  # a pod that says nothing for so long is gone, and its slots are free again
GRACE_MS: Final = 2_000  # within which every pod that is there has told what it holds
PODS: Final = 100_000  # that share one Redis, at most: more than that it can't have counted
UNUSABLE: Final = -1  # granted, of a key that holds no lease
_NAMED: Final = 4096  # such keys that are told of, at most
_LOOK_S: Final = 5.0  # after which such a key that nobody asks for any more is looked at again
_BATCH: Final = 256  # leases a script call, so that none holds Redis up
_FAILURES: Final = 2  # in a row, until Redis counts as away
_RETRY_S: Final = (0.4, 1.2)  # while it is away; at random within, so that pods don't come back all at once
_RETURN_S: Final = GRACE_MS / 1000  # from its answer on every pod has asked by then: a retry and an answer's bound

# KEYS: clock, pods, then one a lease. ARGV: pod, its time to live (ms), then seven a lease: kind (t or c), capacity,
# units a ms, wanted, owed (of slots: in use), returned, shared (of slots: had). Answers: pods alive, then (granted, ms
# until it is full) a lease.
# A lease's missing key is a bucket that has been filling since the server was born: what a Redis that lost its memory
# had given out counts as spent, while a tenant that is new to an old one has its whole burst. What pods spent by fair
# share while they could not ask empties a bucket, and no more: each tells its part of what the bucket gained meanwhile.
# What they spent in advance is paid back whole: each may owe a bucket, so it sinks by as many as there are pods.
# The clock is Redis's own, as far as it goes on evenly: time that goes back stands still, and a leap forward is a new
# birth, because keys that a leap has let run out are lost memory too. So is a time in which nobody asked.
# A server that was just born knows of no slots: until every pod has told its own, each keeps what it had.
# A key that holds something else than a lease is told by granted -1 and left alone; the others of the call go on. What
# else is found at clock or pods goes: either is every pod's, and to be without it is a new birth.
SCRIPT: Final = """
local t = redis.call('TIME')
local wall = t[1] * 1000 + math.floor(t[2] / 1000)
local ttl = tonumber(ARGV[2])
local reborn = false
for i, kind in ipairs({'hash', 'zset'}) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= kind then
    redis.call('DEL', KEYS[i])
    reborn = true
  end
end
local clock = redis.call('HMGET', KEYS[1], 'born', 'wall', 'now')
for i = 1, 3 do
  clock[i] = string.match(clock[i] or '', '^%d+$') and tonumber(clock[i])
end
local born, now = wall, wall
if clock[1] and clock[2] and clock[3] then
  born, now = clock[1], clock[3]
  local step = wall - clock[2]
  now = now + math.max(0, math.min(step, ttl))
  reborn = reborn or step > ttl
end
if reborn then
  born = now
end
redis.call('HSET', KEYS[1], 'born', string.format('%.0f', born), 'wall', string.format('%.0f', wall),
           'now', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], 86400000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ttl)
redis.call('PEXPIRE', KEYS[2], ttl * 2)
local answer = {redis.call('ZCARD', KEYS[2])}
for i = 3, #KEYS do
  local a = 3 + (i - 3) * 7
  local capacity, rate = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local want, owed, back = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local shared = tonumber(ARGV[a + 6])
  local granted, wait = 0, 0
  if ARGV[a] == 'c' then
    local others = 0
    local all = redis.pcall('HGETALL', KEYS[i])
    local sound = not all.err
    for j = 1, #all, 2 do
      local n, till = string.match(all[j + 1], '^(%d+):(%d+)$')
      if not n then
        sound = false
      elseif tonumber(till) <= now then
        redis.call('HDEL', KEYS[i], all[j])
      elseif all[j] ~= ARGV[1] then
        others = others + tonumber(n)
      end
    end
    granted = math.max(0, math.min(want, capacity - others))
    if now - born < GRACE then
      granted = math.min(granted, math.max(owed, shared))
    end
    local kept = math.max(granted, owed)
    if not sound then
      granted = -1
    elseif kept > 0 then
      redis.call('HSET', KEYS[i], ARGV[1], kept .. ':' .. string.format('%.0f', now + ttl))
      redis.call('PEXPIRE', KEYS[i], ttl * 2)
    else
      redis.call('HDEL', KEYS[i], ARGV[1])
    end
  else
    local level, since = 0, born
    local kept = redis.pcall('GET', KEYS[i])
    if kept then
      local l, s = nil, nil
      if type(kept) == 'string' then
        l, s = string.match(kept, '^(-?%d+%.?%d*):(%d+)$')
      end
      level, since = tonumber(l or ''), tonumber(s or '')
    end
    if not level then
      granted = -1
    else
      level = math.min(capacity, level + math.max(0, now - since) * rate + back)
      if shared > 0 then
        level = math.max(math.min(level, 0), level - shared)
      end
      level = math.max(-capacity * answer[1], level - owed)
      granted = math.max(0, math.min(want, math.floor(level)))
      level = level - granted
      if rate > 0 then
        wait = math.ceil((capacity - level) / rate)
      end
      redis.call('SET', KEYS[i], string.format('%.6f:%.0f', level, now))
      if rate > 0 then
        redis.call('PEXPIRE', KEYS[i], math.ceil(2 * (capacity - level) / rate) + 1000)
      end
    end
  end
  answer[#answer + 1] = granted
  answer[#answer + 1] = wait
end
return answer
""".replace("GRACE", str(GRACE_MS))


class Posture(StrEnum):
    """What a pod does once its last lease is spent while Redis is away."""

    FAIR_SHARE = "fair_share"  # goes on with its part of each limit, by the pods that were alive
    REFUSE = "refuse"


Run = Callable[[Sequence[str], Sequence[str]], list[int]]
"""Runs the script: keys and arguments in, its answer out; raises where Redis is away."""


@dataclass(frozen=True, slots=True)
class Access:
    """How Redis is reached. The files are read again for each connection, so that what they hold can be rotated."""

    url: str = field(repr=False)  # may hold a password
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


def connect(access: Access) -> Run:
    """Raises ``ImportError`` without the extra ``redis``, ``ValueError`` for what can't be used.

    An answer takes ``TIMEOUT_S`` at most, whatever it hangs on: a name that can't be resolved knows no other bound.
    """
    script = _client(access).register_script(SCRIPT)  # sent again where the server has forgotten it (NOSCRIPT)

    def run(keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        return [int(each) for each in script(keys=list(keys), args=list(arguments))]

    return Timely(run)


def _client(access: Access) -> Any:
    import redis  # noqa: PLC0415 — an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.credentials import CredentialProvider  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    class FromFile(CredentialProvider):  # type: ignore[misc,unused-ignore]  # untyped without the extra
        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            assert access.password_file is not None
            password = access.password_file.read_text().strip()
            return (access.username, password) if access.username else (password,)

    more: dict[str, Any] = {}
    if access.password_file is not None:
        access.password_file.read_bytes()  # an OSError now, not at the first round
        more["credential_provider"] = FromFile()
    files = {"ssl_ca_certs": access.ca_file, "ssl_certfile": access.cert_file, "ssl_keyfile": access.key_file}
    given = {name: str(path) for name, path in files.items() if path is not None}
    if given and not access.url.startswith("rediss://"):
        raise ValueError("certificates are for rediss:// alone")
    for path in given.values():
        Path(path).read_bytes()
    return redis.Redis.from_url(
        access.url, socket_timeout=TIMEOUT_S, socket_connect_timeout=CONNECT_S, retry=Retry(NoBackoff(), 0),
        health_check_interval=0, **given, **more,
    )  # fmt: skip


def look(access: Access, prefix: str) -> str:
    """What is amiss with the Redis that would hold leases, "" for nothing: it runs the script, on keys of its own.

    Raises as ``connect`` does. One that evicts keys is told too: a lease that was evicted is handed out again.
    """
    keys = [f"{{warden:{prefix}}}:check:{name}" for name in ("clock", "pods")]
    client = _client(access)
    try:
        client.register_script(SCRIPT)(keys=keys, args=["check", str(POD_TTL_MS)])
        client.delete(*keys)
        policy = str(client.info("memory").get("maxmemory_policy", "noeviction"))
    except Exception as fault:  # noqa: BLE001 — whatever it says, that is what is amiss
        return why(fault)
    finally:
        client.close()
    return "" if policy == "noeviction" else f"maxmemory-policy {policy}: it may evict leases; set noeviction"


def why(fault: BaseException) -> str:
    """Redis's own words, or those of what stands before it."""
    return f"{type(fault).__name__}: {fault}"


class Timely:
    """Runs one thing at a time on a thread of its own, and waits for it no longer than an answer may take."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: queue.SimpleQueue[tuple[Sequence[str], Sequence[str], Future[list[int]]]] = queue.SimpleQueue()
        self._last: Future[list[int]] | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        if self._last is not None and not self._last.done():
            raise TimeoutError("Redis has still not answered what it was asked before")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="warden-redis", daemon=True)
            self._thread.start()
        self._last = Future()
        self._asked.put((keys, arguments, self._last))
        return self._last.result(CONNECT_S + 2 * TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            keys, arguments, answer = self._asked.get()
            try:
                answer.set_result(self._run(keys, arguments))
            except BaseException as fault:  # noqa: BLE001 — told to whoever asked
                answer.set_exception(fault)


def _nobody_hears(_key: str, _usable: bool) -> None:  # noqa: FBT001 — a callback
    """Nobody has asked to be told of keys."""


def _nobody_waits() -> None:
    """No wire has asked to be told yet."""


def _some(keys: frozenset[str]) -> str:
    """The first few."""
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _sound(answer: list[int], wants: Sequence[Want]) -> list[int]:
    """An answer as the script gives one. Raises ``ValueError``: what was never asked for is no lease."""
    if len(answer) != 1 + 2 * len(wants):
        raise ValueError(f"Redis told {len(answer)} numbers, not {1 + 2 * len(wants)}")
    if not 1 <= answer[0] <= PODS:
        raise ValueError(f"Redis told of {answer[0]} pods")
    for want, granted, wait_ms in zip(wants, answer[1::2], answer[2::2], strict=True):
        if (granted != UNUSABLE and not 0 <= granted <= want.units) or wait_ms < 0:
            raise ValueError(f"Redis granted {granted} of {want.units}, full in {wait_ms} ms")
    return answer


class LeaseKeeper:
    """One a process. ``prefix`` names the region: a limit is never shared across jurisdictions.

    ``between`` draws at random. ``told`` is called with why Redis is away, and with "" once it is back;
    ``key_told`` with each key that holds something else than a lease, and once it no longer does.
    """

    def __init__(
        self, quotas: SharedQuotas, run: Run, *, pod: str, prefix: str, posture: Posture,
        monotonic: Callable[[], float], between: Callable[[float, float], float],
        told: Callable[[str], None] = lambda _why: None, key_told: Callable[[str, bool], None] = _nobody_hears,
    ) -> None:  # fmt: skip
        self._quotas, self._run, self._pod, self._posture, self._told = quotas, run, pod, posture, told
        self._key_told = key_told
        self._monotonic, self._between = monotonic, between
        self._prefix = f"{{warden:{prefix}}}"  # one hash tag: a script's keys are in one slot of a cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="warden-leases", daemon=True)
        self._failures = 0
        self._retry_at = self._all_back_at = 0.0
        self._asked_at = float("-inf")
        self.fault = ""  # why Redis does not answer, "" while it does
        self._broken: dict[str, tuple[Want, float]] = {}  # by those keys: what asks for nothing, and when it was asked
        self.unusable: frozenset[str] = frozenset()  # keys that hold something else: whose leases they are have nothing
        self.round_trips = 0
        self.on_room: Callable[[], None] = _nobody_waits  # called whenever a lease has grown

    @property
    def summary(self) -> str:
        """How it stands with Redis, for whoever operates it."""
        if self._quotas.returning:
            return "answers again; goes on with its part of each limit until every pod knows"
        if not self._quotas.away:
            if self.fault or not self.round_trips:
                return self.fault or "not asked yet"
            unusable = f"; not leases, so counted as spent: {_some(self.unusable)}" if self.unusable else ""
            return f"{self._quotas.pods} pods share{unusable}"
        goes_on = "goes on with its part of each limit" if self._posture is Posture.FAIR_SHARE else "refuses"
        return f"away; {goes_on}: {self.fault}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S * 4)

    def _keep(self) -> None:
        last = self._monotonic()
        while not self._stopping.wait(ROUND_S):
            now = self._monotonic()
            try:
                self.round(now, now - last)
            except Exception:  # noqa: BLE001 — a thread that died would leave every lease to run out
                _LOG.exception("leases.failed")
            last = now

    def round(self, now: float, seconds: float) -> None:
        """One round at ``now`` (monotonic seconds), ``seconds`` after the last."""
        quotas = self._quotas
        quotas.returning = quotas.returning and now < self._all_back_at
        if (quotas.away or quotas.returning) and self._posture is Posture.FAIR_SHARE:
            quotas.fair_share(seconds)
            self.on_room()
        # Nothing is at stake in a question without wants.
        if quotas.away and (now < self._retry_at or not self._ask([], now)):
            return
        wants = quotas.wants()
        if self._broken:
            wants += self._again(wants, now)
        if not wants and self._failures == 0 and now - self._asked_at < ALIVE_S:
            return
        self._asked_at = now
        for start in range(0, max(1, len(wants)), _BATCH):
            if not self._ask(wants[start : start + _BATCH], now):
                quotas.unanswered(wants[start + _BATCH :])
                return

    def _key(self, want: Want) -> str:
        return f"{self._prefix}:{want.kind.value}:{want.whom}"

    def _again(self, wants: list[Want], now: float) -> list[Want]:
        """Of keys that held no lease when they were asked for last: whether they do by now."""
        asked = set(map(self._key, wants))
        due = (want for key, (want, at) in self._broken.items() if now - at >= _LOOK_S and key not in asked)
        return list(itertools.islice(due, _BATCH))

    def _ask(self, wants: list[Want], now: float) -> bool:
        keys = [f"{self._prefix}:clock", f"{self._prefix}:pods"]
        arguments = [self._pod, str(POD_TTL_MS)]
        for want in wants:
            slots = want.kind is Quantity.CONCURRENCY
            keys.append(self._key(want))
            arguments += ["c" if slots else "t", str(want.capacity), repr(want.per_second / 1000)]
            arguments += [str(want.units), str(want.owed), str(want.returns), str(want.shared)]
        try:
            self.round_trips += 1
            answer = _sound(self._run(keys, arguments), wants)
        except Exception as fault:  # noqa: BLE001 — whatever it is, Redis did not answer
            self._away(wants, now, why(fault))
            return False
        self._failures, self.fault = 0, ""
        if self._quotas.away:
            self._quotas.back()
            self._all_back_at = now + _RETURN_S
            self._told("")
        self._quotas.answered(answer[0], int(now * 1e9))
        for key, want, granted, wait_ms in zip(keys[2:], wants, answer[1::2], answer[2::2], strict=True):
            if granted == UNUSABLE:
                self._quotas.spent(want)
            else:
                self._quotas.granted(want, granted, wait_ms / 1000)
            self._held(key, want, now, usable=granted != UNUSABLE)
        if wants:
            self.on_room()
        return True

    def _held(self, key: str, want: Want, now: float, *, usable: bool) -> None:
        """What that key was found to hold: a lease, or something else."""
        known = key in self._broken
        if usable:
            self._broken.pop(key, None)
        elif known or len(self._broken) < _NAMED:
            self._broken[key] = replace(want, units=0, owed=0, returns=0, shared=0), now
        if known != (key in self._broken):
            self.unusable = frozenset(self._broken)
            self._key_told(key, usable)

    def _away(self, wants: list[Want], now: float, fault: str) -> None:
        self._quotas.unanswered(wants)
        self._failures += 1
        self.fault = fault
        if self._failures < _FAILURES:
            return
        self._retry_at = now + self._between(*_RETRY_S)
        if not self._quotas.away:
            self._quotas.gone()
            self._told(fault)
