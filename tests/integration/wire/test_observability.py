"""One trace from client through sidecar to Triton, and metrics as their catalogue says."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import time
from importlib.metadata import version
from typing import Any

import pytest

from sidecar.cli.demo.stack import ISSUER
from sidecar.telemetry.catalogue import CATALOGUE, Kind
from tests.support.postgres import query
from tests.support.sidecar import DEADLINE, Bare, Launch, Sidecar, echo, hold, slow
from tests.support.stack import MODELS, eventually

pytestmark = pytest.mark.integration

CALLS = 20  # of which Triton must see one's trace
TRITON_EXPORTS_WITHIN_S = 5.0  # it is told to every 0.2 s


def traced(sidecar: Sidecar, bare: Bare, *, streaming: bool = False) -> tuple[str, list[dict[str, Any]]]:
    """A sampled call's trace, as its parent's id and all its spans, when Triton has taken part in it.

    Triton's gRPC server reads a header's value past its end up to the next 0; where that isn't at once, it takes the
    traceparent for none: up to a fifth of all calls, a client's own just as a sidecar's. Our spans are always there.
    """
    calls = 2 if streaming else 1
    for _ in range(CALLS):
        trace, parent = secrets.token_hex(16), secrets.token_hex(8)
        headers = sidecar.headers(traceparent=f"00-{trace}-{parent}-01", tracestate="vendor=1")
        if streaming:
            assert bare.stream([slow(2), slow(2)], headers).answer().code == "OK"
        else:
            assert bare.unary(echo(), headers).code == "OK"
        spans = spans_of(sidecar, trace, ours=calls)
        if len(spans) >= 4 * calls:
            return parent, spans
    pytest.fail(f"Triton took part in none of {CALLS} traces")


def spans_of(sidecar: Sidecar, trace: str, *, ours: int) -> list[dict[str, Any]]:
    """The spans of one trace: ``ours``, which must come, and those of Triton that come with them, three a call."""
    deadline = time.monotonic() + DEADLINE
    patience = float("inf")
    while len(found := sidecar.parts.otlp.spans(trace=trace)) < 4 * ours:
        own = sum(span["service"] == "triton-warden" for span in found)
        if own == ours:
            patience = min(patience, time.monotonic() + TRITON_EXPORTS_WITHIN_S)
        if time.monotonic() > patience:
            break
        if time.monotonic() > deadline:
            told = [
                line for line in sidecar.open_metrics().splitlines() if line.startswith(("warden_span", "warden_ship"))
            ]
            pytest.fail("\n".join((f"{own} of {ours} spans of trace {trace} in {DEADLINE} s", *told)))
        time.sleep(0.1)
    return found


class TestTraces:
    @pytest.mark.parametrize("streaming", [False, True], ids=["unary", "stream"])
    def test_client_sidecar_and_triton_are_parent_and_child(
        self, sidecar: Sidecar, bare: Bare, streaming: bool
    ) -> None:
        parent, spans = traced(sidecar, bare, streaming=streaming)
        ours = [span for span in spans if span["parent_span_id"] == parent]
        assert len(ours) == (2 if streaming else 1)
        for span in ours:
            tritons = [each for each in spans if each["parent_span_id"] == span["span_id"]]
            assert [each["name"] for each in tritons] == ["InferRequest"]

    def test_an_unsampled_trace_stays_unsampled(self, sidecar: Sidecar, bare: Bare) -> None:
        """Triton samples every trace context it is given, so it is given none."""
        quiet, loud = secrets.token_hex(16), secrets.token_hex(16)
        for trace, flag in ((quiet, "00"), (loud, "01")):
            headers = sidecar.headers(traceparent=f"00-{trace}-{secrets.token_hex(8)}-{flag}")
            assert bare.unary(echo(), headers).code == "OK"
        spans_of(sidecar, loud, ours=1)
        assert sidecar.parts.otlp.spans(trace=quiet) == []

    def test_the_record_names_the_trace(self, sidecar: Sidecar, bare: Bare) -> None:
        trace = secrets.token_hex(16)
        answer = bare.unary(echo(), sidecar.headers(traceparent=f"00-{trace}-{secrets.token_hex(8)}-01"))
        assert sidecar.record(answer.call_id)["trace_id"] == trace
        assert [record["call_id"] for record in sidecar.search(trace=trace)] == [answer.call_id]


def test_the_log_says_with_what_it_started_and_which_models_there_are(sidecar: Sidecar) -> None:
    def told(kind: str) -> list[dict[str, Any]]:
        asked = "SELECT detail FROM warden.audit_events WHERE kind = %s ORDER BY at"
        return [detail for (detail,) in query(sidecar.parts.postgres_dsn, asked, kind)]

    def loaded() -> set[str]:
        """By all events: on a busy machine one of its models may be learnt later than the others."""
        return set(re.findall(r"(?:^|; )(\S+) \(", "; ".join(each["loaded"] for each in told("models_changed"))))

    eventually(lambda: len(loaded()) == len(MODELS), what="the events of the models", within_s=60)
    models, *_ = told("models_changed")
    assert "(python, versions 1, " in models["loaded"]
    assert "echo" in loaded()
    assert models["unloaded"] == ""
    (started,) = told("sidecar_started")
    assert (started["version"], len(started["settings"])) == (version("triton-warden"), 64)
    assert told("posture_changed") == []
    keys, *_ = eventually(lambda: told("issuer_keys_changed"), what="the event of the issuer's keys")
    assert (keys["issuer"], keys["keys"], keys["removed"]) == (ISSUER, 1, "")
    assert re.fullmatch(r"\S+ \(EdDSA [0-9a-f]{16}\)", keys["added"])


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
