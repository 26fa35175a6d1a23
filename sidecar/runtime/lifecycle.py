"""One running sidecar, whichever wire carries it: background threads, readiness, admin server, the way in and out."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from importlib.metadata import version
from typing import Final

from audit.journal import State, close_all
from audit.recovery import ENGINE_IDLE
from sidecar.core.governor import Mode, Recorded
from sidecar.core.model import Denial, ParameterValue
from sidecar.quotas.shared import SharedQuotas
from sidecar.runtime import clock, selfcheck, tls
from sidecar.runtime.ask import TritonDesk
from sidecar.runtime.compose import Rooms, StartError, build, id_key, unkept
from sidecar.runtime.drain import Drain
from sidecar.runtime.inforce import Announcer
from sidecar.runtime.journals import JournalDesk
from sidecar.runtime.learn import Learner
from sidecar.runtime.ledger import Terms, rebuild
from sidecar.runtime.listening import Listening
from sidecar.runtime.noted import Noted
from sidecar.runtime.pools import MetricsPage, PoolPoller
from sidecar.runtime.probe import UpstreamProbe
from sidecar.runtime.selfcheck import SelfCheck
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipper import Shipper
from sidecar.runtime.succession import succeed
from sidecar.runtime.watch import PolicyWatch
from sidecar.telemetry import logs, readings
from sidecar.telemetry.exposition import AddressUnavailable, AdminServer, Check
from sidecar.telemetry.instruments import registry
from sidecar.telemetry.shipfile import ShipFile, watch_ship
from sidecar.transports.budget import Budget
from sidecar.transports.context import Bounds, Services
from sidecar.transports.waiting import WaitingRoom
from sidecar.triton.selfcheck import Seen

_LOG: Final = logging.getLogger("warden.lifecycle")
# Seconds between two sweeps. What one finds too young to journal is journaled by the next: after OUTPUT_LAG_NS and one
# period, so that of the 100 ms of DESIGN rule 6 a quarter is left for a machine that lets the thread wait.
SWEEP: Final = 0.025
TELL: Final = 0.05  # seconds between two looks at what is told of the journal: its state, its pressure, what was mended
DIGESTS: Final = 10.0  # seconds between two looks at the models' files: each costs a stat for each file
SWITCH: Final = 0.001  # seconds
RELOAD: Final = 1.0  # seconds between two looks at the bundle's directory


class Sidecar:
    """Built once per process; ``services`` and ``live`` are what a wire is given."""

    def __init__(
        self,
        settings: Settings,
        ship: tuple[tuple[str, ...], Mapping[str, str]],
        python: str = sys.executable,
        *,
        listens: Iterable[str] = (),
    ) -> None:
        """``ship``: the command line and environment of `warden ship`; ``python``: what compiles a changed bundle;
        ``listens``: addresses that must take connections before it is ready.

        Raises ``StartError``.
        """
        self.settings = settings
        self._listening = Listening(listens)
        self.rooms: Rooms = build(settings)
        self.live = self.rooms.live
        self._journals = JournalDesk(self.rooms.journals, self.rooms.recorder, self.rooms.instruments)
        self._announcer = Announcer(self.rooms.recorder.tell, self.rooms.instruments.unrecorded)
        self._policy = PolicyWatch(
            settings, self.rooms.policies, self.rooms.instruments, self._announcer, (python, ship[1])
        )
        self.budget = Budget(settings.bounds.buffer_bytes)
        self._waiting = WaitingRoom()
        self.rooms.governor.on_room = self._waiting.wake
        if self.rooms.leases is not None:
            self.rooms.leases.on_room = self._waiting.wake
        self._probe = UpstreamProbe(settings.triton.grpc, self.rooms.restricted)
        self._selfcheck = self._self_check()
        directory = settings.audit.journal.directory
        self._noted = Noted(directory, self._announcer, version("triton-warden"), id_key(settings), time.monotonic)
        self._learner = Learner(
            TritonDesk(settings.triton.grpc, self.rooms.restricted), self.rooms.models, learnt=self._noted.learnt
        )
        self._pools = PoolPoller(
            MetricsPage(settings.triton.metrics), lambda: self.rooms.policies.current().bundle.models,
            self.rooms.quotas.engines, self._engine_idle,
            needed=lambda: self.rooms.governor.running_on > 0, now=clock.now,
        )  # fmt: skip
        self._shipper = Shipper(*ship)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=(SWEEP, self._sweep), name="warden-sweep", daemon=True),
            threading.Thread(target=self._every, args=(TELL, self._journals.tell), name="warden-tell", daemon=True),
            threading.Thread(target=self._every, args=(RELOAD, self._look), name="warden-bundle", daemon=True),
            threading.Thread(target=self._look_at_models, name="warden-digests", daemon=True),
        ]
        self.drain = Drain(self.rooms.governor, self.live, settings.bounds.grace)
        self._admin = AdminServer(
            settings.listen.admin, registry(self.rooms.instruments), _live_checks, self._ready_checks
        )
        self.services = self._services()
        self._watch_metrics()

    def _look(self) -> None:
        self._noted.retry()
        self._policy.look()

    def _self_check(self) -> SelfCheck:
        rooms, settings = self.rooms, self.settings
        desk = TritonDesk(settings.triton.grpc, rooms.restricted)

        def gather() -> Seen | None:
            caches = rooms.policies.current().bundle.prefix_caches
            return selfcheck.look(desk, settings, rooms.models.current, rooms.digests, caches)

        return SelfCheck(gather, lambda: selfcheck.stated(rooms.policies.current().bundle, settings))

    def _services(self) -> Services:
        rooms, bounds = self.rooms, self.settings.bounds
        return Services(
            governor=rooms.governor,
            now=clock.now,
            ids=rooms.ids,
            bounds=Bounds(
                message_bytes=min(bounds.message_bytes, self.budget.share),  # one that never fits is too large
                stream_bytes=bounds.stream_bytes,
                calls_per_stream=bounds.calls_per_stream,
                blocked_write=bounds.blocked_write,
                call_timeout=bounds.call_timeout,
            ),
            budget=self.budget,
            durable=self._durable,
            ready=self.is_ready,
            crashed=self._crashed,
            cut_off=self._cut_off,
            models=rooms.models,
            waiting=self._waiting,
        )

    def _durable(self, recorded: Recorded) -> Future[Denial | None] | None:
        """What a strict call waits for. In mode observe none does, as none is refused for it: what could not be made
        durable, or not copied, is counted as what could not be written is.
        """
        answer = self.rooms.recorder.durable(recorded)
        if answer is None or self.rooms.governor.mode is Mode.ENFORCE:
            return answer
        answer.add_done_callback(self._count_unsafe)
        return None

    def _count_unsafe(self, answer: Future[Denial | None]) -> None:
        denial = answer.result()
        if denial is not None:
            self.rooms.instruments.unrecorded(denial)

    # --- in and out ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the journal, record what is in force, and start everything. Raises ``StartError``."""
        rooms = self.rooms
        profile = rooms.policies.current().profile
        recovered = rooms.recorder.recovered(lambda model: profile(model).stops_ns)
        if recovered is not None:
            raise StartError(f"audit.journal: {recovered.internal}")
        self._book_again()
        try:
            self._admin.start()
        except AddressUnavailable as fault:
            raise StartError(str(fault)) from fault
        self._noted.begin(self.settings)
        self._policy.begin()
        for thread in self._threads:
            thread.start()
        unusable = rooms.keys.restore()
        if unusable is not None:
            logs.event(_LOG, logging.WARNING, "identity.snapshot_unusable", detail=unusable)
        rooms.keys.start()
        issuers = [each.issuer for each in self.settings.identity.issuers]
        rooms.jwks_refresher.refreshed = lambda: self._noted.trusted(
            {issuer: source.names for issuer, source in zip(issuers, rooms.jwks, strict=True)}
        )
        rooms.jwks_refresher.start()
        if rooms.leases is not None:
            rooms.leases.predecessors = succeed(self.settings.audit.journal.directory, rooms.leases.pod)
            rooms.leases.start()
        self._probe.start()
        self._learner.start()
        self._selfcheck.start()
        self._pools.start()
        self._shipper.start()
        # How long a thread may keep the interpreter from a call that waits for it; Python's own 5 ms would be a pause.
        sys.setswitchinterval(SWITCH)
        # What was made so far stays: without this, one full collection walks it all, a pause of 60 ms (make bench).
        gc.collect()
        gc.freeze()
        sidecar = self.settings.sidecar
        for event, words in unkept(self.settings, rooms.policies.current().bundle.tenants):
            logs.event(_LOG, logging.WARNING, event, detail=words)
        for bound in self.settings.listeners:
            logs.event(
                _LOG, logging.WARNING, "listener.bound", address=bound.address, tenant=bound.principal.tenant,
                name=bound.principal.name, detail="who reaches it is let in without a credential",
            )  # fmt: skip
        logs.event(
            _LOG, logging.INFO, "sidecar.started", sidecar=sidecar.name, region=sidecar.region, mode=self.settings.mode,
            bundle=rooms.policies.current().digest, address=self.settings.listen.grpc,
        )  # fmt: skip

    def _book_again(self) -> None:
        """What this sidecar had given out before it ended: nobody gains from that end, even if it was theirs."""
        rooms, at = self.rooms, clock.now()
        policy = rooms.policies.current()

        def terms(tenant: str, model: str, key_name: str) -> Terms | None:
            found = policy.limits(tenant, model, key_name, at.wall)
            return None if found is None else Terms(*found, policy.profile(model))

        past = [call for journal in rooms.journals.values() for call in journal.recovery.past]
        booked = rebuild(past, terms, rooms.quotas, rooms.governor.hold, at, rates=rooms.leases is None)
        if booked.charged:
            detail = f"{booked.charged} calls count again; Triton may be working on {booked.held} of them"
            logs.event(_LOG, logging.INFO, "quotas.rebuilt", count=booked.charged, detail=detail)

    def _engine_idle(self, model: str, seen_ns: int) -> int:
        """Triton was seen at work on nothing of ``model``. Journaled where that ended holds, for the next start."""
        at = clock.now()
        over = self.rooms.governor.idle_at_triton(model, seen_ns, at)
        if over:
            detail: dict[str, ParameterValue] = {
                "model": model,
                "calls": over,
                "at_ns": at.wall_ns - (at.mono_ns - seen_ns),
            }
            for store in self.rooms.journals:  # whichever holds the calls: each is recovered by itself
                self._announcer.write(ENGINE_IDLE, detail, store=store)
        return over

    def stop(self) -> None:
        """After the drain: journal what is left, end the shipper once it has had its chance, close."""
        self._stopping.set()
        self._guarded(self._journals.tell)
        self._guarded(self._sweep)  # the last chance of what the journal is owed
        self._policy.end()
        self._noted.retry()
        self.rooms.recorder.fold(clock.now(), last=True)
        self._announcer.write("sidecar_stopped", {})
        self._admin.stop()
        self.rooms.keys.stop()
        if self.rooms.leases is not None:
            self.rooms.leases.stop()
        self._learner.stop()
        self._selfcheck.stop()
        self._pools.stop()
        self._shipper.stop()
        for fault in close_all(self.rooms.journals.values()):
            logs.event(_LOG, logging.ERROR, "journal.unsynced", detail=fault.detail)
        logs.event(_LOG, logging.INFO, "sidecar.stopped", sidecar=self.settings.sidecar.name)

    # --- background ------------------------------------------------------------------------------------------------

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        """Until the sidecar stops, so often from one turn's begin to the next's, with a pause after one that took long.

        A fault of one turn is counted and logged, and the next comes all the same.
        """
        pause = seconds
        while not self._stopping.wait(pause):
            began = time.monotonic()
            self._guarded(work)
            pause = max(seconds - (time.monotonic() - began), seconds / 5)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as fault:  # noqa: BLE001 — without its sweep the journal would fall behind, unnoticed
            self._crashed(threading.current_thread().name, fault)

    def _look_at_models(self) -> None:
        """Hash the models' files: at once, then whenever they have changed."""
        if self.settings.triton.model_repository:
            self._guarded(self.rooms.digests.look)
            self._every(DIGESTS, self.rooms.digests.look)

    def _sweep(self) -> None:
        self.rooms.governor.sweep(clock.now())

    # --- what others ask -------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        return (
            self._probe.ready
            and self._learner.asked
            and self.rooms.journal.state is State.OK
            and self._policy.certain
            and not self.drain.began.is_set()
        )

    def _ready_checks(self) -> Mapping[str, Check]:
        rooms, closed = self.rooms, self._listening.missing()
        policy = rooms.policies.current()
        checks = {
            "listening": Check(not closed, f"not yet: {closed}" if closed else "every port"),
            "upstream": Check(self._probe.ready, self._probe.detail),
            # A Triton that won't say what its models are is served all the same, but for what can't be decided then.
            "models": Check(self._learner.asked, self._learner.detail),
            **self._journals.checks(),
            "draining": Check(not self.drain.began.is_set(), ""),
            **self._policy.checks(),
            # Told, never deciding: a database or an issuer that is away must not take every pod out of service.
            "mode": Check(ok=True, detail=self.settings.mode),
            "self-check": Check(ok=True, detail=self._selfcheck.summary),
        }
        for finding in self._selfcheck.findings or ():
            checks[f"self-check {finding.name}"] = Check(ok=True, detail=f"{finding.severity}: {finding.detail}")
        for engine, live in self._pools.live.items():
            beside = f", {live.foreign} of them nobody's that calls here" if live.foreign else ""
            checks[f"pool {engine}"] = Check(ok=True, detail=f"live: {live.used} of {live.capacity} bytes{beside}")
        for engine, why in self._pools.faults.items():
            checks[f"pool {engine}"] = Check(ok=True, detail=f"as the bundle states it: {why}")
        for listener in self.settings.listeners:
            who = listener.principal
            speaks = f"without a credential, as {who.tenant}/{who.name} ({', '.join(who.roles)})"
            served = "" if policy.serves(who.tenant) else "; refused: the bundle has no such active tenant"
            checks[f"listener {listener.address}"] = Check(ok=True, detail=speaks + served)
        if self.settings.listen.tls is not None:
            wrong = tls.faults(self.settings.listen.tls)  # what was rotated in since; it may be served all the same
            checks["tls"] = Check(ok=True, detail=wrong[0] if wrong else "current")
        if rooms.leases is not None:
            checks["redis"] = Check(ok=True, detail=rooms.leases.summary)
        status = rooms.keys.status
        if rooms.ring is not None:
            checks["keys"] = Check(ok=True, detail=_known(f"{status.keys} keys", status.fault))
        checks["revocations"] = Check(ok=True, detail=_known(f"{status.denied} entries", status.fault))
        if status.forgotten:
            detail = (
                f"{status.forgotten} ends of keys and tokens that the database has no more are kept: revoke them again"
            )
            checks["restored database"] = Check(ok=True, detail=detail)
        for section, source in zip(self.settings.identity.issuers, rooms.jwks, strict=True):
            checks[f"jwks {section.issuer}"] = Check(ok=True, detail=source.condition.fault or "current")
        return checks

    def _crashed(self, call_id: str, fault: BaseException) -> None:
        self.rooms.instruments.count("warden_internal_errors_total")
        _LOG.error("call.crashed", exc_info=fault, extra={"warden": {"call_id": call_id}})

    def _cut_off(self, why: str) -> None:
        self.rooms.instruments.count("warden_clients_cut_off_total")
        logs.event(_LOG, logging.WARNING, "client.cut_off", reason=why)

    def _watch_metrics(self) -> None:
        rooms, settings = self.rooms, self.settings
        sidecar = settings.sidecar
        watch = rooms.instruments.watch
        self._journals.watch()
        watch("warden_quota_held_bytes", lambda: readings.held(rooms.quotas.tenants(), rooms.quotas.held))
        watch("warden_pool_used_ratio", lambda: readings.used(rooms.quotas.engines.held()))
        watch("warden_pool_live", lambda: readings.live(self._pools.live, self._pools.faults))
        watch("warden_pool_drift_ratio", lambda: readings.drift(self._pools.live, rooms.quotas.engines.kv_held))
        watch("warden_upstream_metrics_age_seconds", lambda: self._pools.age)
        watch("warden_running_on_calls", lambda: float(rooms.governor.running_on))
        watch("warden_waiting_calls", lambda: float(len(self._waiting)))
        if isinstance(rooms.quotas, SharedQuotas) and rooms.leases is not None:
            shared, leases = rooms.quotas, rooms.leases
            watch("warden_quota_redis_up", lambda: float(not shared.away and not leases.unusable))
            watch("warden_quota_missed_pods", lambda: float(shared.lost))
        watch("warden_keys_age_seconds", lambda: rooms.ring.age(time.time()) if rooms.ring else None)
        watch("warden_jwks_age_seconds", self._jwks_age)
        watch("warden_bundle_age_seconds", lambda: self._policy.age)
        watch("warden_bundle_refused", lambda: float(self._policy.refusing))
        watch("warden_location_certain", lambda: float(self._policy.certain))
        watch("warden_bundle_info", lambda: readings.info(rooms.policies.current().digest))
        watch("warden_upstream_up", lambda: float(self._probe.ready))
        watch("warden_models_unlearnt", lambda: float(len(rooms.models.current.unlearnt)))
        watch("warden_selfcheck_finding", self._selfcheck.reading)
        watch("warden_models_age_seconds", lambda: self._learner.age)
        watch("warden_buffer_bytes", lambda: float(self.budget.used))
        watch("warden_buffer_limit_bytes", lambda: float(self.budget.limit))
        watch("warden_bound_listeners", lambda: float(len(settings.listeners)))
        watch("warden_draining", lambda: float(self.drain.began.is_set()))
        info = readings.info(version("triton-warden"), sidecar.name, sidecar.region, settings.mode)
        watch("warden_build_info", lambda: info)
        file = ShipFile(settings.audit.journal.directory / "ship.json", time.time)
        watch_ship(rooms.instruments, file, self.settings.audit.jurisdictions)

    def _jwks_age(self) -> float | None:
        confirmed = [at for source in self.rooms.jwks if (at := source.condition.confirmed_at) is not None]
        return time.time() - min(confirmed) if confirmed else None


def _live_checks() -> Mapping[str, Check]:
    return {"process": Check(ok=True, detail=f"pid {os.getpid()}")}


def _known(what: str, fault: str) -> str:
    """What is known, if anything, and what is wrong with it."""
    return "; ".join(filter(None, [what if what[0] != "0" or not fault else "", fault]))
