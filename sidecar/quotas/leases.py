"""Keeps a pod's leases in Redis, from a thread of its own: no admission ever waits for it (DESIGN §9)."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from sidecar.core.model import Quantity
from sidecar.quotas.reach import ANSWER_S, Run, why
from sidecar.quotas.script import GRACE_MS, POD_TTL_MS
from sidecar.quotas.shared import SharedQuotas, Want

__all__ = ["ALONE_S", "ROUND_S", "LeaseKeeper", "Posture"]

_LOG: Final = logging.getLogger("warden.leases")
ROUND_S: Final = 0.05  # seconds between two rounds
ALIVE_S: Final = 0.5  # a pod that wants nothing says so often that it is there
PODS: Final = 100_000  # that share one Redis, at most: more than that it can't have counted
UNUSABLE: Final = -1  # granted, of a key that holds no lease
_NAMED: Final = 4096  # such keys that are told of, at most
_LOOK_S: Final = 5.0  # after which such a key that nobody asks for any more is looked at again
_BATCH: Final = 256  # leases a script call, so that none holds Redis up
_FAILURES: Final = 2  # in a row, until Redis counts as away
_RETRY_S: Final = (0.4, 1.2)  # while it is away; at random within, so that pods don't come back all at once
_RETURN_S: Final = GRACE_MS / 1000  # from its answer on every pod has asked by then: a retry and an answer's bound
_LEAVE_S: Final = 1.0  # for giving back what is held at the end
ALONE_S: Final = 600.0  # for so long a pod goes on with its part of each limit, unless told otherwise


class Posture(StrEnum):
    """What a pod does once its last lease is spent while Redis is away."""

    FAIR_SHARE = "fair_share"  # goes on with its part of each limit, by the pods there were, for so long as it may
    REFUSE = "refuse"


def _nobody_hears(_key: str, _usable: bool) -> None:  # noqa: FBT001 — a callback
    """Nobody has asked to be told of keys."""


def _nobody_waits() -> None:
    """No wire has asked to be told yet."""


def _some(keys: frozenset[str]) -> str:
    """The first few."""
    return ", ".join(sorted(keys)[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _sound(answer: list[int], wants: Sequence[Want]) -> list[int]:
    """An answer as the script gives one. Raises ``ValueError``: what was never asked for is no lease."""
    if len(answer) != 2 + 2 * len(wants):
        raise ValueError(f"Redis told {len(answer)} numbers, not {2 + 2 * len(wants)}")
    if not 0 <= answer[1] < answer[0] <= PODS:
        raise ValueError(f"Redis told of {answer[0]} pods, {answer[1]} of them not heard of")
    for want, granted, wait_ms in zip(wants, answer[2::2], answer[3::2], strict=True):
        if (granted != UNUSABLE and not 0 <= granted <= want.units) or wait_ms < 0:
            raise ValueError(f"Redis granted {granted} of {want.units}, full in {wait_ms} ms")
    return answer


class LeaseKeeper:
    """One a process. ``prefix`` names the region: a limit is never shared across jurisdictions.

    ``alone_s``: how long it may go on with its part of each limit without an answer; for so long the others leave it
    that part. ``predecessors``: the pods whose place it takes, which may have ended without taking their leave.
    ``between`` draws at random. ``told`` is called with why Redis is away, and with "" once it is back;
    ``key_told`` with each key that holds something else than a lease, and once it no longer does.
    """

    def __init__(
        self, quotas: SharedQuotas, run: Run, *, pod: str, prefix: str, posture: Posture,
        monotonic: Callable[[], float], between: Callable[[float, float], float],
        told: Callable[[str], None] = lambda _why: None, key_told: Callable[[str, bool], None] = _nobody_hears,
        alone_s: float = ALONE_S,
    ) -> None:  # fmt: skip
        self._quotas, self._run, self._posture, self._told = quotas, run, posture, told
        self._key_told = key_told
        self._alone_s = alone_s if posture is Posture.FAIR_SHARE else 0.0
        self.pod, self.predecessors = pod, tuple[str, ...]()
        self._monotonic, self._between = monotonic, between
        self._prefix = f"{{warden:{prefix}}}"  # one hash tag: a script's keys are in one slot of a cluster
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="warden-leases", daemon=True)
        self._failures = 0
        self._retry_at = self._all_back_at = 0.0
        self._asked_at = float("-inf")
        self._answered_at: float | None = None  # or when it began
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
            lost = self._quotas.lost
            held_back = f"; {lost} of them not heard of, whose part is held back" if lost else ""
            return f"{self._quotas.pods} pods share{held_back}{unusable}"
        goes_on = "goes on with its part of each limit" if self._quotas.has_part else "refuses"
        return f"away; {goes_on}: {self.fault}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is held goes back, and the others need hold nothing back for it: Redis permitting, within seconds."""
        self._stopping.set()
        self._thread.join(2 * ANSWER_S)
        if not self._thread.is_alive() and not self._quotas.away:  # or it would say that it is there after its goodbye
            self._leave()

    def _leave(self) -> None:
        until, wants = self._monotonic() + _LEAVE_S, self._quotas.farewell()
        try:
            for start in range(0, len(wants), _BATCH):
                if self._monotonic() >= until:
                    break
                self._run(*self._question(wants[start : start + _BATCH]))
            self._run(*self._goodbye(self.pod))
        except Exception as fault:  # noqa: BLE001 — then it counts as one that may go on alone
            _LOG.warning("leases.left_without_leave", extra={"detail": why(fault)})

    def _goodbye(self, pod: str) -> tuple[list[str], list[str]]:
        return [f"{self._prefix}:clock", f"{self._prefix}:pods"], [pod, "0", self._alone_ms]

    @property
    def _alone_ms(self) -> str:
        return str(int(self._alone_s * 1000))

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
        if self._answered_at is None:
            self._answered_at = now
        if quotas.away and now - self._answered_at >= self._alone_s:
            quotas.goes_on = False
        if (quotas.away and quotas.goes_on) or quotas.returning:
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
            if self._stopping.is_set():
                quotas.unanswered(wants[start:])
                return
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

    def _question(self, wants: list[Want]) -> tuple[list[str], list[str]]:
        keys = [f"{self._prefix}:clock", f"{self._prefix}:pods"]
        arguments = [self.pod, str(POD_TTL_MS), self._alone_ms]
        for want in wants:
            slots = want.kind is Quantity.CONCURRENCY
            keys.append(self._key(want))
            arguments += ["c" if slots else "t", str(want.capacity), repr(want.per_second / 1000)]
            arguments += [str(want.units), str(want.owed), str(want.returns), str(want.shared)]
        return keys, arguments

    def _ask(self, wants: list[Want], now: float) -> bool:
        keys, arguments = self._question(wants)
        try:
            self.round_trips += 1
            answer = _sound(self._run(keys, arguments), wants)
            while self.predecessors:
                self._run(*self._goodbye(self.predecessors[-1]))
                self.predecessors = self.predecessors[:-1]
        except Exception as fault:  # noqa: BLE001 — whatever it is, Redis did not answer
            self._away(wants, now, why(fault))
            return False
        self._failures, self.fault, self._answered_at = 0, "", now
        if self._quotas.away:
            self._quotas.back()
            self._all_back_at = now + _RETURN_S
            self._told("")
        self._quotas.answered(answer[0], answer[1], int(now * 1e9))
        for key, want, granted, wait_ms in zip(keys[2:], wants, answer[2::2], answer[3::2], strict=True):
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
