"""sidecar.telemetry.export: offering never waits; what is lost is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from sidecar.telemetry import export
from sidecar.telemetry.export import SpanCounts, SpanPump, exporter_for
from tests.support.store import wait_until

SPAN = ReadableSpan("s")


class FakeCollector(SpanExporter):
    """Answers as told; ``hold`` keeps it busy."""

    def __init__(self, *answers: SpanExportResult | Exception) -> None:
        self.answers = list(answers)
        self.batches: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.go.wait(10)
        self.batches.append(len(spans))
        answer = self.answers.pop(0) if self.answers else SpanExportResult.SUCCESS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.go.set()


def test_spans_are_sent_in_batches() -> None:
    collector = FakeCollector()
    pump = SpanPump(collector)
    for _ in range(export.BATCH + 10):
        pump.offer(SPAN)
    wait_until(lambda: pump.counts.exported == export.BATCH + 10)
    pump.close(5)
    assert max(collector.batches) <= export.BATCH
    assert pump.counts == SpanCounts(exported=export.BATCH + 10)


def test_a_failure_is_tried_again_and_given_up_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "BACKOFF", 0.01)
    failing = FakeCollector(SpanExportResult.FAILURE, RuntimeError("collector"))
    pump = SpanPump(failing)
    pump.offer(SPAN)
    wait_until(lambda: pump.counts.exported == 1)
    assert len(failing.batches) == export.ATTEMPTS
    pump.close(5)
    hopeless = FakeCollector(*[SpanExportResult.FAILURE] * export.ATTEMPTS)
    pump = SpanPump(hopeless)
    pump.offer(SPAN)
    wait_until(lambda: pump.counts.failed == 1)
    pump.close(5)
    assert pump.counts == SpanCounts(failed=1)


def test_a_full_queue_drops_and_counts() -> None:
    collector = FakeCollector()
    collector.go.clear()
    pump = SpanPump(collector)
    pump.offer(SPAN)
    collector.entered.wait(10)  # it now holds one batch and sends nothing
    for _ in range(export.QUEUE + 5):
        pump.offer(SPAN)
    assert pump.counts.dropped == 5
    collector.go.set()
    wait_until(lambda: pump.counts.exported == export.QUEUE + 1)
    pump.close(5)


def test_closing_sends_what_is_queued() -> None:
    collector = FakeCollector()
    pump = SpanPump(collector)
    for _ in range(100):
        pump.offer(SPAN)
    pump.close(5)
    assert pump.counts == SpanCounts(exported=100)


def test_endpoints() -> None:
    assert exporter_for("http://127.0.0.1:1", "http")._endpoint == "http://127.0.0.1:1/v1/traces"  # type: ignore[attr-defined]  # the SDK's own field
    assert exporter_for("http://127.0.0.1:1/otlp", "http")._endpoint == "http://127.0.0.1:1/otlp"  # type: ignore[attr-defined]
    grpc = exporter_for("http://127.0.0.1:1", "grpc")
    assert grpc._insecure is True  # type: ignore[attr-defined]
    grpc.shutdown()
