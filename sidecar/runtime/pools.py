"""Asks Triton's metrics, from a thread of its own, how full each engine is, and tells the pools."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import pyqwest

from sidecar.core.model import Instant, LivePool, ModelProfile
from sidecar.telemetry import logs
from sidecar.triton.believed import judge
from sidecar.triton.gauges import BYTES_MAX, Gauges, read_gauges

__all__ = ["MetricsPage", "PoolPoller", "Pools"]

_LOG: Final = logging.getLogger("warden.pools")
EVERY: Final = 1.0  # seconds between two looks, while anybody needs them
STALE: Final = 5.0  # seconds after which what was read last counts no more: then the bundle's own number does
TIMEOUT: Final = 2.0  # seconds for one answer, however it drips
_IDLE_LOOKS: Final = 2  # in a row: an engine may tell its count a moment late
_FAULT: Final = 200  # characters of one, as it is shown


class Pools(Protocol):
    """``sidecar.quotas.engines.Engines``, as far as this thread needs it."""

    def peak(self, engine: str) -> int:
        """Bytes: the most that calls had reserved of its KV cache since this was last asked."""
        ...

    def tell(self, live: Mapping[str, LivePool]) -> None: ...


class MetricsPage:
    """Triton's /metrics over HTTP, whole or not at all: bounded in size and in time."""

    def __init__(self, address: str, *, timeout: float = TIMEOUT) -> None:
        self._url = f"http://{address}/metrics"
        self._timeout = timeout
        self._client = pyqwest.SyncClient(
            pyqwest.SyncHTTPTransport(
                http_version=pyqwest.HTTPVersion.HTTP1, connect_timeout=timeout, timeout=timeout, proxy=(),
                enable_otel=False,
            )
        )  # fmt: skip

    def __call__(self) -> bytes | str:
        """The text; or, in words, why there is none."""
        parts: list[bytes] = []
        size = 0
        try:
            with self._client.stream("GET", self._url, timeout=self._timeout) as answer:
                if answer.status != 200:
                    return f"HTTP {answer.status}"
                for chunk in answer.content:
                    size += len(chunk)
                    if size > BYTES_MAX:
                        return f"more than {BYTES_MAX} bytes"
                    parts.append(bytes(chunk))
        except TimeoutError:
            return f"no whole answer within {self._timeout:g} s"
        except (OSError, pyqwest.ReadError, pyqwest.WriteError, pyqwest.RemoteProtocolError) as fault:
            return f"does not answer: {type(fault).__name__}"
        return b"".join(parts)


class PoolPoller:
    """``look`` is one round; ``start`` begins a thread of them. Any thread may read the rest."""

    def __init__(
        self,
        page: Callable[[], bytes | str],
        profiles: Callable[[], Mapping[str, ModelProfile]],
        pools: Pools,
        idle: Callable[[str, int], int],
        *,
        needed: Callable[[], bool],
        now: Callable[[], Instant],
        every: float = EVERY,
    ) -> None:
        """``profiles``: of the bundle in force. ``idle``: told that at that moment (mono ns) a model's engine had
        nothing under way. ``needed``: whether calls are waited for that Triton may be working on."""
        self._page, self._profiles, self._pools, self._idle = page, profiles, pools, idle
        self._needed, self._now, self._every = needed, now, every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warden-pools", daemon=True)
        self._read_ns: int | None = None
        self._peaks: dict[str, int] = {}  # as of the look before
        self._idle_since: dict[str, list[int]] = {}  # by engine: the looks in a row that found it idle, the newest last
        self._live: Mapping[str, LivePool] = {}
        self.faults: Mapping[str, str] = {}  # by engine: why the bundle's number counts

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * TIMEOUT)

    @property
    def live(self) -> Mapping[str, LivePool]:
        """By engine, what is believed of it now."""
        return self._live

    @property
    def age(self) -> float | None:
        """Seconds since the metrics were read; None: never, or nobody needs them."""
        return None if self._read_ns is None else max(0.0, (self._now().mono_ns - self._read_ns) / 1e9)

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            try:
                self.look()
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave its last reading standing for good
                _LOG.error("pools.crashed", exc_info=fault)
                self._fall_back(f"reading failed: {type(fault).__name__}")

    def look(self) -> None:
        """One round. Without a live pool and without a call that may run on, nothing is asked."""
        wanted = self._wanted()
        if not wanted and not self._needed():
            self._read_ns, self._idle_since = None, {}
            self._believe({}, {})
            return
        began = self._now()
        text = self._page()
        found = read_gauges(text) if isinstance(text, bytes) else text
        if isinstance(found, str):
            self._idle_since = {}
            self._fall_back(found)
            return
        self._read_ns = self._now().mono_ns
        self._tell_idle(found, began)
        live: dict[str, LivePool] = {}
        faults: dict[str, str] = {}
        for engine, profile in wanted.items():
            told = self._judged(engine, profile, found)
            if isinstance(told, str):
                faults[engine] = told[:_FAULT]
            else:
                live[engine] = told
        self._believe(live, faults)

    def _wanted(self) -> dict[str, ModelProfile]:
        """By engine, a model whose pool is to be as its metrics say."""
        return {
            profile.pool.engine or name: profile
            for name, profile in self._profiles().items()
            if profile.pool.live and profile.kv is not None
        }

    def _judged(self, engine: str, profile: ModelProfile, found: Gauges) -> LivePool | str:
        kv, stated = profile.kv, profile.pool.kv_bytes
        assert kv is not None
        assert stated is not None
        told = judge(found.engines.get(engine), kv, stated, found.gpu_total)
        # What ended a moment ago may be in the engine's count still, so the look before counts too.
        peak = self._pools.peak(engine)
        before, self._peaks[engine] = self._peaks.get(engine, 0), peak
        return told if isinstance(told, str) else told.beside(max(peak, before))

    def _tell_idle(self, found: Gauges, began: Instant) -> None:
        idle = {name for name, engine in found.engines.items() if engine.idle}
        self._idle_since = {name: [*self._idle_since.get(name, ()), began.mono_ns][-_IDLE_LOOKS:] for name in idle}
        for engine, looks in self._idle_since.items():
            if len(looks) == _IDLE_LOOKS:
                for model in self._before(engine):
                    self._idle(model, looks[0])

    def _before(self, engine: str) -> tuple[str, ...]:
        """The models in front of an engine, itself among them."""
        profiles = self._profiles()
        named = (name for name, profile in profiles.items() if (profile.pool.engine or name) == engine)
        return tuple(dict.fromkeys((engine, *named)))

    def _fall_back(self, why: str) -> None:
        """What was read last stands for a while, then the bundle's number does."""
        age = self.age
        if age is not None and age <= STALE and self._live:
            return
        self._believe({}, dict.fromkeys(self._wanted(), why[:_FAULT]))

    def _believe(self, live: Mapping[str, LivePool], faults: Mapping[str, str]) -> None:
        if faults != self.faults:
            for engine in faults.keys() - self.faults.keys():
                logs.event(_LOG, logging.WARNING, "pools.stated", model=engine, detail=faults[engine])
            for engine in self.faults.keys() - faults.keys():
                logs.event(_LOG, logging.INFO, "pools.live", model=engine)
        self._live, self.faults = live, faults
        self._pools.tell(live)
