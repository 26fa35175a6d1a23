"""Keeps a pod's leases in Redis, from a thread of its own: no admission ever waits for it (DESIGN §9)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

from sidecar.core.model import Quantity
from sidecar.quotas.shared import SharedQuotas, Want

__all__ = ["ROUND_S", "LeaseKeeper", "Posture", "connect"]

_LOG: Final = logging.getLogger("warden.leases")
ROUND_S: Final = 0.05  # seconds between two rounds
TIMEOUT_S: Final = 0.1  # for one answer of Redis
POD_TTL_MS: Final = 5_000  # a pod that says nothing for so long is gone, and its slots are free again
_BATCH: Final = 256  # leases a script call, so that none holds Redis up
_FAILURES: Final = 2  # in a row, until Redis counts as away
_RETRY_S: Final = (0.5, 1.5)  # while it is away; at random within, so that pods don't come back all at once

# KEYS: born, pods, then one a lease. ARGV: pod, its time to live (ms), then seven a lease: kind (t or c), capacity,
# units a ms, wanted, owed, returned, shared. Answers: pods alive, then (granted, ms until one unit) a lease.
# A lease's missing key is a bucket that has been filling since the server was born: what a Redis that lost its memory
# had given out counts as spent, while a tenant that is new to an old one has its whole burst. What pods spent by fair
# share while they could not ask empties a bucket, and no more: each tells its part of what the bucket gained meanwhile.
# The clock is Redis's own.
SCRIPT: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local born = redis.call('GET', KEYS[1])
if not born then
  redis.call('SET', KEYS[1], now)
  born = now
end
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[2]))
redis.call('PEXPIRE', KEYS[2], tonumber(ARGV[2]) * 2)
local answer = {redis.call('ZCARD', KEYS[2])}
for i = 3, #KEYS do
  local a = 3 + (i - 3) * 7
  local capacity, rate = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local want, owed, back = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  local shared = tonumber(ARGV[a + 6])
  local granted, wait = 0, 0
  if ARGV[a] == 'c' then
    local others = 0
    local all = redis.call('HGETALL', KEYS[i])
    for j = 1, #all, 2 do
      local n, till = string.match(all[j + 1], '(%d+):(%d+)')
      if tonumber(till) <= now then
        redis.call('HDEL', KEYS[i], all[j])
      elseif all[j] ~= ARGV[1] then
        others = others + tonumber(n)
      end
    end
    granted = math.max(0, math.min(want, capacity - others))
    if granted > 0 then
      redis.call('HSET', KEYS[i], ARGV[1], granted .. ':' .. string.format('%.0f', now + tonumber(ARGV[2])))
      redis.call('PEXPIRE', KEYS[i], tonumber(ARGV[2]) * 2)
    else
      redis.call('HDEL', KEYS[i], ARGV[1])
    end
  else
    local level, since = 0, tonumber(born)
    local kept = redis.call('GET', KEYS[i])
    if kept then
      local l, s = string.match(kept, '([^:]+):([^:]+)')
      level, since = tonumber(l), tonumber(s)
    end
    level = math.min(capacity, level + math.max(0, now - since) * rate + back)
    if shared > 0 then
      level = math.max(math.min(level, 0), level - shared)
    end
    level = math.max(-capacity, level - owed)
    granted = math.max(0, math.min(want, math.floor(level)))
    level = level - granted
    if level < 1 and rate > 0 then
      wait = math.ceil((1 - level) / rate)
    end
    redis.call('SET', KEYS[i], string.format('%.6f:%.0f', level, now))
    if rate > 0 then
      redis.call('PEXPIRE', KEYS[i], math.max(1000, math.ceil(2 * capacity / rate) + 1000))
    end
  end
  answer[#answer + 1] = granted
  answer[#answer + 1] = wait
end
return answer
"""


class Posture(StrEnum):
    """What a pod does once its last lease is spent while Redis is away."""

    FAIR_SHARE = "fair_share"  # goes on with its part of each limit, by the pods that were alive
    REFUSE = "refuse"


Run = Callable[[Sequence[str], Sequence[str]], list[int]]
"""Runs the script: keys and arguments in, its answer out; raises where Redis is away."""


def connect(url: str) -> Run:
    """Raises ``ImportError`` without the extra ``redis``, ``ValueError`` for a URL that isn't one."""
    import redis  # noqa: PLC0415 — an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    client: Any = redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )  # fmt: skip
    script = client.register_script(SCRIPT)

    def run(keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        return [int(each) for each in script(keys=list(keys), args=list(arguments))]

    return run


class LeaseKeeper:
    """One a process. ``prefix`` names the region: a limit is never shared across jurisdictions.

    ``between`` draws at random. ``told`` is called with why Redis is away, and with "" once it is back.
    """

    def __init__(
        self, quotas: SharedQuotas, run: Run, *, pod: str, prefix: str, posture: Posture,
        monotonic: Callable[[], float], between: Callable[[float, float], float],
        told: Callable[[str], None] = lambda _why: None,
    ) -> None:  # fmt: skip
        self._quotas, self._run, self._pod, self._posture, self._told = quotas, run, pod, posture, told
        self._monotonic, self._between = monotonic, between
        self._prefix = f"{{warden:{prefix}}}"  # one hash tag: a script's keys are in one slot of a cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="warden-leases", daemon=True)
        self._failures = 0
        self._retry_at = 0.0
        self.round_trips = 0

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
        if quotas.away and now < self._retry_at:
            if self._posture is Posture.FAIR_SHARE:
                quotas.fair_share(seconds)
            return
        wants = quotas.wants()
        for start in range(0, max(1, len(wants)), _BATCH):
            if not self._ask(wants[start : start + _BATCH], now):
                quotas.unanswered(wants[start + _BATCH :])
                return

    def _ask(self, wants: list[Want], now: float) -> bool:
        keys = [f"{self._prefix}:born", f"{self._prefix}:pods"]
        arguments = [self._pod, str(POD_TTL_MS)]
        for want in wants:
            slots = want.kind is Quantity.CONCURRENCY
            keys.append(f"{self._prefix}:{want.kind.value}:{want.tenant}")
            arguments += ["c" if slots else "t", str(want.capacity), repr(want.per_second / 1000)]
            arguments += [str(want.units), str(want.owed), str(want.returns), str(want.shared)]
        try:
            self.round_trips += 1
            answer = self._run(keys, arguments)
        except Exception as fault:  # noqa: BLE001 — whatever it is, Redis did not answer
            self._away(wants, now, f"{type(fault).__name__}: {fault}")
            return False
        self._failures = 0
        if self._quotas.away:
            self._quotas.away = False
            self._told("")
        self._quotas.pods = max(1, answer[0])
        for number, want in enumerate(wants):
            granted, wait_ms = answer[1 + 2 * number], answer[2 + 2 * number]
            self._quotas.granted(want, granted, wait_ms / 1000)
        return True

    def _away(self, wants: list[Want], now: float, why: str) -> None:
        self._quotas.unanswered(wants)
        self._failures += 1
        if self._failures < _FAILURES:
            return
        self._retry_at = now + self._between(*_RETRY_S)
        if not self._quotas.away:
            self._quotas.away = True
            self._told(why)
