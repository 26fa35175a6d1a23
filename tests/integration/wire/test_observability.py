"""One trace from client through sidecar to Triton, and metrics as their catalogue says."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from typing import Any

import pytest

from sidecar.telemetry.catalogue import CATALOGUE, Kind
from tests.support.sidecar import Bare, Launch, Sidecar, echo, hold, slow
from tests.support.stack import eventually

pytestmark = pytest.mark.integration


def spans_of(sidecar: Sidecar, trace: str, *, least: int) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]]:
        found = [span for span in sidecar.parts.otlp.spans() if span["trace_id"] == trace]
        return found if len(found) >= least else []

    return eventually(look, what=f"{least} spans of trace {trace}", within_s=20)


class TestTraces:
    @pytest.mark.parametrize("streaming", [False, True], ids=["unary", "stream"])
    def test_client_sidecar_and_triton_are_parent_and_child(
        self, sidecar: Sidecar, bare: Bare, streaming: bool
    ) -> None:
        trace, parent = secrets.token_hex(16), secrets.token_hex(8)
        headers = sidecar.headers(traceparent=f"00-{trace}-{parent}-01", tracestate="vendor=1")
        if streaming:
            assert bare.stream([slow(2), slow(2)], headers).answer().code == "OK"
        else:
            assert bare.unary(echo(), headers).code == "OK"
        calls = 2 if streaming else 1
        spans = spans_of(sidecar, trace, least=4 * calls)
        ours = [span for span in spans if span["parent_span_id"] == parent]
        assert len(ours) == calls
        for span in ours:
            tritons = [each for each in spans if each["parent_span_id"] == span["span_id"]]
            assert [each["name"] for each in tritons] == ["InferRequest"]

    def test_an_unsampled_trace_stays_unsampled(self, sidecar: Sidecar, bare: Bare) -> None:
        """Triton samples every trace context it is given, so it is given none."""
        quiet, loud = secrets.token_hex(16), secrets.token_hex(16)
        for trace, flag in ((quiet, "00"), (loud, "01")):
            headers = sidecar.headers(traceparent=f"00-{trace}-{secrets.token_hex(8)}-{flag}")
            assert bare.unary(echo(), headers).code == "OK"
        spans_of(sidecar, loud, least=4)
        assert [span for span in sidecar.parts.otlp.spans() if span["trace_id"] == quiet] == []

    def test_the_record_names_the_trace(self, sidecar: Sidecar, bare: Bare) -> None:
        trace = secrets.token_hex(16)
        answer = bare.unary(echo(), sidecar.headers(traceparent=f"00-{trace}-{secrets.token_hex(8)}-01"))
        assert sidecar.record(answer.call_id)["trace_id"] == trace
        assert [record["call_id"] for record in sidecar.search(trace=trace)] == [answer.call_id]


class TestMetrics:
    def test_every_counter_of_the_catalogue_is_there_at_0_at_start(self, own: Launch) -> None:
        families = own().families()
        for metric in CATALOGUE:
            if metric.kind is not Kind.COUNTER or "tenant" in metric.labels:
                continue
            samples = families[metric.name.removesuffix("_total")].samples
            values = {sample.value for sample in samples if sample.name == metric.name}
            assert values, metric.name
            if metric.name not in ("warden_bundle_loads_total", "warden_shipped_records_total"):
                assert values == {0.0}, metric.name

    def test_promtool_finds_nothing_wrong(self, sidecar: Sidecar) -> None:
        promtool = shutil.which("promtool")
        if promtool is None:
            pytest.skip("promtool is not installed (Debian package prometheus)")
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=sidecar.stack.metrics(), text=True, capture_output=True, check=False
        )
        ours = [line for line in checked.stderr.splitlines() if line.startswith("warden_")]
        assert ours == []

    def test_calls_are_counted_by_tenant_and_outcome(self, sidecar: Sidecar, bare: Bare) -> None:
        def counted(outcome: str) -> float:
            return sidecar.metric("warden_calls_total", tenant="acme", action="infer", outcome=outcome)

        before = {outcome: counted(outcome) for outcome in ("completed", "refused", "cancelled")}
        headers = sidecar.headers()
        for _ in range(3):
            assert bare.unary(echo(), headers).code == "OK"
        assert bare.unary(b"", headers).code == "INVALID_ARGUMENT"
        call = bare.begin(hold(5000), headers)
        eventually(lambda: sidecar.metric("warden_in_flight_calls", tenant="acme"), what="one in flight")
        call.cancel()
        sidecar.settles()
        assert {outcome: counted(outcome) - was for outcome, was in before.items()} == {
            "completed": 3, "refused": 1, "cancelled": 1,
        }  # fmt: skip
        assert sidecar.metric("warden_refusals_total", reason="REQUEST_MALFORMED", enforced="true") >= 1
