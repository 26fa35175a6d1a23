"""What is counted, in which series, and that a scrape shows it as OpenMetrics within the bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sidecar.core.governor import Recorded
from sidecar.core.model import (
    RESTRICTED,
    Action,
    Denial,
    Disposition,
    Method,
    Outcome,
    OutcomeKind,
    Secret,
    Usage,
    replace,
)
from sidecar.core.ports import Instruments
from sidecar.core.reasons import Code, Reason
from sidecar.core.routing import Route, RouteKind
from sidecar.runtime.settings import FURTHER_DATABASES
from sidecar.telemetry import faults
from sidecar.telemetry.catalogue import BY_NAME, CATALOGUE, MAX_SERIES, MAX_VERSIONS, JournalState, Kind
from sidecar.telemetry.instruments import PrometheusInstruments, Reading, registry
from sidecar.telemetry.shipfile import ShipFile, watch_ship
from sidecar.triton.selfcheck import SEVERITY
from tests.support import telemetry

COMPLETED = Outcome(OutcomeKind.COMPLETED)
# Readings as the runtime's would be, with more tenants than are shown.
READINGS: Mapping[str, Reading] = {
    "warden_quota_held_bytes": {(f"t{n}", q): 1.0 for n in range(100) for q in ("kv_bytes", "tensor_bytes")},
    "warden_pool_used_ratio": {(f"m{n}", q): 1.0 for n in range(2) for q in ("kv_bytes", "concurrency")},
    "warden_pool_live": {("m0",): 1.0},
    "warden_pool_drift_ratio": {("m0",): 1.0},
    "warden_journal_state": {(state,): 0.0 for state in JournalState},
    **{
        metric.name: {(f"J{n}",): 1.0 for n in range(1 + FURTHER_DATABASES)}
        for metric in CATALOGUE
        if metric.labels == ("jurisdiction",)
    },
    "warden_bundle_info": {("sha256:abc",): 1.0},
    "warden_selfcheck_finding": {(name.value, severity.value): 0.0 for name, severity in SEVERITY.items()},
    "warden_build_info": {("0.1.0", "warden-0", "eu-west-1", "enforce"): 1.0},
}


def made(max_tenants: int = 60) -> PrometheusInstruments:
    return PrometheusInstruments(telemetry.METHODS, max_tenants=max_tenants)


def scrape(instruments: PrometheusInstruments) -> list[Sample]:
    text = generate_latest(registry(instruments)).decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(instruments: PrometheusInstruments, name: str, **labels: str) -> float | None:
    found = [sample.value for sample in scrape(instruments) if sample.name == name and sample.labels == labels]
    assert len(found) <= 1, f"{name} {labels} is there twice"
    return found[0] if found else None


def test_it_is_the_port() -> None:
    port: Instruments = made()
    assert port is not None


# --- at start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [m for m in CATALOGUE if m.kind is Kind.COUNTER], ids=lambda metric: metric.name)
def test_every_counter_is_there_at_0_from_the_start(metric) -> None:  # type: ignore[no-untyped-def]  # a parametrized Metric
    instruments = made()
    watch_ship(instruments, ShipFile(Path("/nowhere"), time.time), ("EU",))
    samples = [sample for sample in scrape(instruments) if sample.name == metric.name]
    assert samples
    assert all(sample.value == 0 for sample in samples)
    for label, values in metric.values.items():
        assert {sample.labels[label] for sample in samples} == set(values)


def test_histograms_without_open_labels_are_there_from_the_start() -> None:
    instruments = made()
    for name in ("gen_ai_server_time_to_first_token_seconds", "warden_journal_fsync_seconds"):
        assert value(instruments, f"{name}_count") == 0


def test_what_nobody_reads_yet_is_absent_rather_than_0() -> None:
    assert value(made(), "warden_upstream_up") is None


# --- calls --------------------------------------------------------------------------------------------------------


def test_a_completed_inference() -> None:
    instruments = made()
    recorded = telemetry.recorded("acme")
    instruments.admitted(recorded.admission)
    assert value(instruments, "warden_in_flight_calls", tenant="acme") == 1
    usage = Usage(
        input_tokens=7, output_tokens=5, responses=1, request_bytes=100, response_bytes=50, duration_ns=30_000_000
    )
    instruments.settled(recorded, COMPLETED, usage)
    assert value(instruments, "warden_in_flight_calls", tenant="acme") == 0
    assert value(instruments, "warden_calls_total", tenant="acme", action="infer", outcome="completed") == 1
    assert value(instruments, "warden_method_calls_total", method="ModelInfer", outcome="completed") == 1
    assert value(instruments, "warden_tokens_total", tenant="acme", direction="input") == 7
    assert value(instruments, "warden_tokens_total", tenant="acme", direction="output") == 5
    assert value(instruments, "warden_bytes_total", tenant="acme", direction="request") == 100
    assert value(instruments, "warden_bytes_total", tenant="acme", direction="response") == 50
    duration = "gen_ai_server_request_duration_seconds"
    assert value(instruments, f"{duration}_count", tenant="acme") == 1
    assert value(instruments, f"{duration}_sum", tenant="acme") == pytest.approx(0.03)
    assert value(instruments, f"{duration}_bucket", tenant="acme", le="0.02") == 0
    assert value(instruments, f"{duration}_bucket", tenant="acme", le="0.04") == 1
    assert value(instruments, f"{duration}_bucket", tenant="acme", le="+Inf") == 1
    # One response tells nothing of tokens' times.
    assert value(instruments, "gen_ai_server_time_to_first_token_seconds_count") == 0


def test_a_bucket_holds_what_equals_its_bound() -> None:
    instruments = made()
    instruments.settled(telemetry.recorded(), COMPLETED, Usage(duration_ns=10_000_000))
    assert value(instruments, "gen_ai_server_request_duration_seconds_bucket", tenant="acme", le="0.01") == 1


def test_a_streaming_inference_tells_its_tokens_times() -> None:
    instruments = made()
    usage = Usage(output_tokens=11, responses=11, first_response_ns=200_000_000, duration_ns=1_200_000_000)
    instruments.settled(telemetry.recorded(streaming=True), COMPLETED, usage)
    assert value(instruments, "gen_ai_server_time_to_first_token_seconds_sum") == pytest.approx(0.2)
    assert value(instruments, "gen_ai_server_time_per_output_token_seconds_sum") == pytest.approx(0.1)


def test_another_rpc_is_no_inference() -> None:
    instruments = made()
    instruments.settled(telemetry.recorded("acme", telemetry.READY), COMPLETED, Usage(duration_ns=1))
    assert value(instruments, "warden_calls_total", tenant="acme", action="other", outcome="completed") == 1
    assert value(instruments, "gen_ai_server_request_duration_seconds_count", tenant="acme") == 0


def test_withheld_errors_and_a_restricted_protocol_are_counted_apart() -> None:
    instruments = made()
    failed = Outcome(OutcomeKind.FAILED, Code.INTERNAL, quoted=Secret(b"a prompt"))
    instruments.settled(telemetry.recorded(), failed, Usage())
    reworded = Outcome(OutcomeKind.FAILED, Code.INVALID_ARGUMENT, internal="told", quoted=Secret(b"told of m"))
    instruments.settled(telemetry.recorded(), reworded, Usage())
    assert value(instruments, "warden_upstream_errors_withheld_total") == 1
    assert value(instruments, "warden_upstream_restricted_total") == 0
    restricted = Outcome(OutcomeKind.FAILED, Code.INTERNAL, Reason.INTERNAL, "This", RESTRICTED, Secret(b"x"))
    instruments.settled(telemetry.recorded("acme", telemetry.READY), restricted, Usage())
    assert value(instruments, "warden_upstream_restricted_total") == 1
    assert value(instruments, "warden_upstream_errors_withheld_total") == 1


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE, Reason.AUDIT_UNAVAILABLE), "warden"),
        (Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE, Reason.UPSTREAM_UNAVAILABLE), "upstream"),
        (Outcome(OutcomeKind.FAILED, Code.INTERNAL), "upstream"),
        (Outcome(OutcomeKind.FAILED, Code.INVALID_ARGUMENT), None),
        (Outcome(OutcomeKind.CANCELLED, Code.CANCELLED, Reason.CLIENT_CANCELLED), None),
        (COMPLETED, None),
    ],
    ids=["audit", "upstream", "triton-internal", "triton-argument", "cancel", "completed"],
)
def test_only_a_fault_spends_the_error_budget(outcome: Outcome, fault: str | None) -> None:
    instruments = made()
    instruments.settled(telemetry.recorded(), outcome, Usage())
    counted = {s.labels["fault"] for s in scrape(instruments) if s.name == "warden_faults_total" and s.value}
    assert counted == ({fault} if fault else set())
    failed = value(instruments, "warden_calls_total", tenant="acme", action="infer", outcome=outcome.kind.value)
    assert failed == 1
    slow = value(instruments, "gen_ai_server_request_duration_seconds_count", tenant="acme")
    assert slow == (1 if outcome is COMPLETED else 0)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_is_counted_by_reason_and_tenant(reason: Reason) -> None:
    instruments = made()
    instruments.refused(telemetry.refused(reason), enforced=True)
    tenant = "(none)" if reason is Reason.TENANT_UNKNOWN else "acme"
    assert value(instruments, "warden_refusals_total", reason=reason.value, enforced="true") == 1
    assert value(instruments, "warden_calls_total", tenant=tenant, action="infer", outcome="refused") == 1
    assert value(instruments, "warden_method_calls_total", method="ModelInfer", outcome="refused") == 1


def test_a_refusal_by_quota_is_throttling() -> None:
    instruments = made()
    instruments.refused(telemetry.refused(Reason.MEMORY_KV, rule="quota:kv_bytes"), enforced=True)
    assert value(instruments, "warden_throttled_total", tenant="acme", quantity="kv_bytes") == 1


def test_the_sidecars_own_full_buffer_is_no_throttling_but_a_fault() -> None:
    instruments = made()
    rule = "bounds.buffer_bytes"
    instruments.refused(telemetry.refused(Reason.MEMORY_TENSOR, rule=rule), enforced=True)
    cut = Outcome(OutcomeKind.FAILED, Code.RESOURCE_EXHAUSTED, Reason.MEMORY_TENSOR, rule=rule)
    instruments.settled(telemetry.recorded(), cut, Usage())
    assert value(instruments, "warden_throttled_total", tenant="acme", quantity="tensor_bytes") == 0
    for outcome in ("refused", "failed"):
        assert value(instruments, "warden_faults_total", tenant="acme", fault="warden", outcome=outcome) == 1


def test_a_refusal_that_is_only_observed_counts_once_and_ends_no_call() -> None:
    instruments = made()
    instruments.refused(telemetry.refused(Reason.POLICY_FORBIDS), enforced=False)
    assert value(instruments, "warden_refusals_total", reason="POLICY_FORBIDS", enforced="false") == 1
    assert value(instruments, "warden_refusals_total", reason="POLICY_FORBIDS", enforced="true") == 0
    assert not any(sample.value for sample in scrape(instruments) if sample.name == "warden_calls_total")


def test_a_refusal_of_nobody_and_of_an_unknown_method() -> None:
    instruments = made()
    method = Method("/x.Y/" + "z" * 500, Action.UNKNOWN, Disposition.REFUSE, frozenset())
    instruments.refused(telemetry.refused(Reason.CREDENTIAL_MISSING, None, method), enforced=True)
    assert value(instruments, "warden_calls_total", tenant="(none)", action="other", outcome="refused") == 1
    assert value(instruments, "warden_method_calls_total", method="(unknown)", outcome="refused") == 1


def test_an_unrecorded_entry() -> None:
    instruments = made()
    instruments.unrecorded(Denial(Reason.AUDIT_UNAVAILABLE))
    assert value(instruments, "warden_unrecorded_entries_total") == 1


# --- bounds -------------------------------------------------------------------------------------------------------


def test_tenants_beyond_the_cap_share_one_series() -> None:
    instruments = made(max_tenants=2)
    for tenant in ("a", "b", "c", "d", "a"):
        instruments.settled(telemetry.recorded(tenant), COMPLETED, Usage())
    instruments.watch("warden_quota_held_bytes", lambda: {(t, "kv_bytes"): 10.0 for t in ("a", "c", "d")})
    calls = {
        sample.labels["tenant"]: sample.value
        for sample in scrape(instruments)
        if sample.name == "warden_calls_total" and sample.labels["action"] == "infer" and sample.value
    }
    assert calls == {"a": 2, "b": 1, "(other)": 2}
    assert value(instruments, "warden_quota_held_bytes", tenant="a", quantity="kv_bytes") == 10
    assert value(instruments, "warden_quota_held_bytes", tenant="(other)", quantity="kv_bytes") == 20


def test_a_claimed_tenant_takes_no_series() -> None:
    instruments = made()
    for n in range(100):
        instruments.refused(telemetry.refused(Reason.TENANT_UNKNOWN, f"claimed-{n}"), enforced=True)
    assert not any("claimed" in sample.labels.get("tenant", "") for sample in scrape(instruments))


def test_at_60_tenants_a_pod_has_at_most_3000_series() -> None:
    methods = [Method(f"/p.S/M{n}", Action.INFER, Disposition.FORWARD, frozenset()) for n in range(24)]
    instruments = PrometheusInstruments(methods, max_tenants=60)
    for metric in CATALOGUE:
        of_database = metric.labels == ("jurisdiction",)
        if metric.kind is not Kind.HISTOGRAM and (metric.kind is not Kind.COUNTER or of_database):
            instruments.watch(metric.name, lambda name=metric.name: READINGS.get(name, 1.0))  # type: ignore[misc]  # bound now
    for n in range(100):
        for reason in Reason:
            instruments.refused(telemetry.refused(reason, f"t{n}"), enforced=True)
        instruments.settled(telemetry.recorded(f"t{n}", streaming=True), COMPLETED, Usage(responses=2))
        instruments.settled(routed(RouteKind.CANARY), COMPLETED, Usage(model_version=f"{n + 1}"))
    del instruments._watched["warden_in_flight_calls"]  # counted here, not read
    samples = scrape(instruments)
    assert not [s for s in samples if s.name == "warden_scrape_failures_total" and s.value]
    assert len({s.labels.get("tenant") for s in samples} - {None}) == 62
    assert 2500 < len(samples) <= MAX_SERIES


def routed(kind: RouteKind, version: str = "2") -> Recorded:
    """A call of a model that has a canary."""
    recorded = telemetry.recorded()
    verdict = replace(recorded.admission.verdict, route=Route(version, kind, "why"))
    recorded.admission = replace(recorded.admission, verdict=verdict)
    return recorded


def test_calls_of_a_model_with_a_canary_are_counted_by_the_version_that_answered() -> None:
    instruments, failed = made(), Outcome(OutcomeKind.FAILED, Code.UNAVAILABLE)
    instruments.settled(routed(RouteKind.CANARY), COMPLETED, Usage(model_version="2"))
    instruments.settled(routed(RouteKind.STABLE, "1"), COMPLETED, Usage(model_version="1"))
    instruments.settled(routed(RouteKind.CANARY), failed, Usage())  # none answered: it was sent to 2
    instruments.settled(routed(RouteKind.CLIENT, ""), failed, Usage())  # the client named one that nobody has
    instruments.settled(telemetry.recorded(), COMPLETED, Usage(model_version="9"))  # a model without a canary
    found = {
        (s.labels["model"], s.labels["version"], s.labels["route"], s.labels["outcome"]): s.value
        for s in scrape(instruments)
        if s.name == "warden_routed_calls_total" and s.value
    }
    assert found == {
        ("chat", "2", "canary", "completed"): 1,
        ("chat", "1", "stable", "completed"): 1,
        ("chat", "2", "canary", "failed"): 1,
        ("(other)", "(other)", "client", "failed"): 1,
    }


def test_versions_beyond_the_cap_share_one_series() -> None:
    instruments = made()
    for n in range(MAX_VERSIONS + 5):
        instruments.settled(routed(RouteKind.CANARY), COMPLETED, Usage(model_version=f"{n + 1}"))
    labels = {"model": "(other)", "version": "(other)", "route": "canary", "outcome": "completed"}
    assert value(instruments, "warden_routed_calls_total", **labels) == 5


def test_several_threads_lose_no_count() -> None:
    instruments = made()

    def work() -> None:
        for _ in range(2000):
            instruments.settled(telemetry.recorded(), COMPLETED, Usage(input_tokens=1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(instruments, "warden_tokens_total", tenant="acme", direction="input") == 8000


# --- exemplars ----------------------------------------------------------------------------------------------------


def test_a_sampled_calls_trace_is_its_buckets_exemplar() -> None:
    instruments = made()
    instruments.settled(telemetry.recorded(sampled=True), COMPLETED, Usage(duration_ns=30_000_000))
    [exemplar] = [sample.exemplar for sample in scrape(instruments) if sample.exemplar is not None]
    assert exemplar.labels == {"trace_id": telemetry.TRACE.trace_id}
    assert exemplar.value == pytest.approx(0.03)
    assert float(exemplar.timestamp) == pytest.approx(telemetry.AT.wall + 0.03, abs=0.001)
    assert b"trace_id" not in generate_text(registry(instruments)), "the plain format has no exemplars"


def test_a_call_that_is_not_sampled_leaves_none() -> None:
    instruments = made()
    instruments.settled(telemetry.recorded(), COMPLETED, Usage(duration_ns=30_000_000))
    assert not [sample for sample in scrape(instruments) if sample.exemplar is not None]


# --- watched values -----------------------------------------------------------------------------------------------


def test_a_watched_value_is_read_at_each_scrape() -> None:
    instruments = made()
    readings = iter([1.0, 0.0])
    instruments.watch("warden_upstream_up", lambda: next(readings))
    assert value(instruments, "warden_upstream_up") == 1
    assert value(instruments, "warden_upstream_up") == 0


def test_an_info_shows_its_labels() -> None:
    instruments = made()
    instruments.watch("warden_bundle_info", lambda: {("sha256:abc",): 1.0})
    assert value(instruments, "warden_bundle_info", digest="sha256:abc") == 1


def test_a_broken_reader_costs_only_its_own_series() -> None:
    instruments = made()

    def broken() -> float:
        raise OSError("gone")

    instruments.watch("warden_journal_free_bytes", broken)
    instruments.watch("warden_journal_state", lambda: 1.0)  # lacks its label
    instruments.watch("warden_upstream_up", lambda: 1.0)
    assert value(instruments, "warden_upstream_up") == 1
    samples = scrape(instruments)
    assert not [s for s in samples if s.name in ("warden_journal_free_bytes", "warden_journal_state")]
    assert [s.value for s in samples if s.name == "warden_scrape_failures_total"] == [4]


def test_a_watched_counter_stands_still_while_it_cannot_be_read() -> None:
    instruments = made()
    readings: list[Reading] = [5.0, None]
    instruments.watch("warden_spans_exported_total", lambda: readings.pop(0))
    assert value(instruments, "warden_spans_exported_total") == 5
    assert value(instruments, "warden_spans_exported_total") == 5


def test_a_name_outside_the_catalogue_does_not_exist() -> None:
    instruments = made()
    with pytest.raises(LookupError):
        instruments.watch("warden_made_up", lambda: 1.0)
    with pytest.raises(LookupError):
        instruments.count("warden_made_up_total")
    with pytest.raises(LookupError):
        instruments.count("warden_bundle_loads_total", "perhaps")
    with pytest.raises(LookupError):
        instruments.observe("warden_made_up_seconds", 1.0)
    with pytest.raises(LookupError):
        instruments.watch("warden_journal_fsync_seconds", lambda: 1.0)


def test_counting_and_observing_what_happens_elsewhere() -> None:
    instruments = made()
    instruments.count("warden_bundle_loads_total", "failure")
    instruments.count("warden_internal_errors_total", by=2)
    instruments.observe("warden_journal_fsync_seconds", 0.002)
    assert value(instruments, "warden_bundle_loads_total", result="failure") == 1
    assert value(instruments, "warden_internal_errors_total") == 2
    assert value(instruments, "warden_journal_fsync_seconds_sum") == pytest.approx(0.002)


def test_the_process_is_shown_too() -> None:
    assert (value(made(), "process_resident_memory_bytes") or 0) > 0
    assert not {sample.name for sample in scrape(made())} & BY_NAME.keys() & {"process_resident_memory_bytes"}


def test_what_a_quota_in_shadow_would_refuse_is_counted_by_quantity() -> None:
    instruments = made()
    for quantity, reason in ((quantity, reason) for reason, quantity in faults.THROTTLES.items()):
        found = telemetry.refused(reason, "acme")
        found = replace(found, denial=Denial(reason, rule=f"quota:{quantity}"))
        instruments.refused(found, enforced=False)
        assert value(instruments, "warden_would_throttle_total", quantity=quantity.value) == 1
        assert value(instruments, "warden_throttled_total", tenant="(none)", quantity=quantity.value) is None
    bound = replace(found, denial=Denial(Reason.MEMORY_TENSOR, rule="bounds.buffer_bytes"))
    instruments.refused(bound, enforced=False)
    assert value(instruments, "warden_would_throttle_total", quantity="tensor_bytes") == 1


def test_what_can_not_be_only_observed_has_no_series_but_is_counted_if_it_were() -> None:
    instruments = made()
    assert value(instruments, "warden_refusals_total", reason="DRAINING", enforced="false") is None
    instruments.refused(telemetry.refused(Reason.DRAINING, "acme"), enforced=False)
    assert value(instruments, "warden_refusals_total", reason="DRAINING", enforced="false") == 1
