"""Sends spans to an OTLP collector from its own thread: bounded, with deadlines, and it counts what it loses."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["SpanCounts", "SpanPump", "exporter_for"]

QUEUE: Final = 8192  # spans waiting; more are dropped and counted
BATCH: Final = 512
LINGER: Final = 0.5  # seconds to wait for a batch to fill
ATTEMPTS: Final = 3
DEADLINE: Final = 5.0  # seconds of one attempt
BACKOFF: Final = 1.0  # seconds before the second attempt, doubled before the third


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """Since the start: sent, given up after ``ATTEMPTS``, and never tried because the queue was full."""

    exported: int = 0
    failed: int = 0
    dropped: int = 0


def exporter_for(endpoint: str, protocol: Literal["grpc", "http"]) -> SpanExporter:
    """``endpoint`` is a URL; for HTTP without a path the standard ``/v1/traces`` is meant."""
    # The exporters log every failed attempt; ours are counted and shown instead.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    if protocol == "http":
        bare = urlsplit(endpoint).path in ("", "/")
        return HttpExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if bare else endpoint, timeout=DEADLINE)
    return GrpcExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=DEADLINE)


class SpanPump:
    """``offer`` never waits. One thread sends batches; ``close`` gives it a bounded time to finish."""

    def __init__(self, exporter: SpanExporter, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._exporter = exporter
        self._monotonic = monotonic
        self._queue: queue.Queue[ReadableSpan] = queue.Queue(QUEUE)
        self._closing = threading.Event()
        self._exported = self._failed = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> SpanCounts:
        return SpanCounts(self._exported, self._failed, self._dropped)

    def offer(self, span: ReadableSpan) -> None:
        try:
            self._queue.put_nowait(span)
        except queue.Full:
            self._dropped += 1

    def close(self, timeout: float) -> None:
        """Send what is queued, for at most ``timeout`` seconds; what is left counts as dropped."""
        self._closing.set()
        self._thread.join(timeout)
        self._dropped += self._queue.qsize()
        self._exporter.shutdown()

    def _run(self) -> None:
        while True:
            batch = self._gather()
            if batch:
                self._send(batch)
            elif self._closing.is_set():
                return

    def _gather(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        until = self._monotonic() + LINGER
        while len(batch) < BATCH:
            left = until - self._monotonic()
            try:
                if self._closing.is_set() or left <= 0:
                    batch.append(self._queue.get_nowait())
                else:
                    batch.append(self._queue.get(timeout=left))
            except queue.Empty:
                break
        return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        for attempt in range(ATTEMPTS):
            if self._try(batch):
                self._exported += len(batch)
                return
            if attempt + 1 < ATTEMPTS and self._closing.wait(BACKOFF * 2**attempt):
                break
        self._failed += len(batch)

    def _try(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 — whatever an exporter raises, spans are not worth the records' process
            return False
