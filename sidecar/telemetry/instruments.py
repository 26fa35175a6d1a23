"""Counts what the governor reports, in plain cells under one short lock; families are built only when scraped."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from sidecar.core import model
from sidecar.core.model import Admission, Denial, Method, Outcome, OutcomeKind, Quantity, Usage
from sidecar.core.reasons import Reason
from sidecar.core.routing import RouteKind
from sidecar.telemetry import faults
from sidecar.telemetry.catalogue import (
    BY_NAME,
    CATALOGUE,
    MAX_VERSIONS,
    NO_TENANT,
    OTHER_TENANT,
    OTHER_VERSION,
    UNKNOWN_METHOD,
    Kind,
    Metric,
)
from sidecar.telemetry.cells import Board, Cell, Labels, TenantSeries, method_cells, version_cells
from sidecar.telemetry.logs import event

if TYPE_CHECKING:
    from sidecar.core.governor import Recorded, Refused

__all__ = ["PrometheusInstruments", "Reading", "registry"]

_LOG: Final = logging.getLogger("warden.metrics")

Reading = float | Mapping[Labels, float] | None
"""What a watched value reads: a number, numbers by label values, or None for "not known now"."""

_FIRST_TOKEN: Final = BY_NAME["gen_ai_server_time_to_first_token_seconds"]
_PER_TOKEN: Final = BY_NAME["gen_ai_server_time_per_output_token_seconds"]
_SCRAPE_FAILURES: Final = "warden_scrape_failures_total"  # shown last, so that it counts this scrape's failures too


class PrometheusInstruments(Collector):
    """The real ``ports.Instruments``. Safe from several threads and loops of one process.

    ``methods`` is the method table; any other counts as "(unknown)". At most ``max_tenants`` tenants, the first seen,
    have series of their own. Hot methods touch only cells that exist; a tenant's first call makes them.
    """

    def __init__(self, methods: Iterable[Method], *, max_tenants: int = 60) -> None:
        self._lock = threading.Lock()
        self._board = Board()
        self._max_tenants = max_tenants
        self._watched: dict[str, Callable[[], Reading]] = {}
        self._last: dict[str, dict[Labels, float]] = {}
        self._tenants = {tenant: TenantSeries(tenant, self._board) for tenant in (NO_TENANT, OTHER_TENANT)}
        self._methods = {method.path: method_cells(method.name, self._board) for method in methods}
        self._unknown_method = method_cells(UNKNOWN_METHOD, self._board)
        self._refusals = {
            enforced: {
                reason: self._board.cell("warden_refusals_total", reason, told)
                for reason in Reason
                if (reason.value, told) not in BY_NAME["warden_refusals_total"].never
            }
            for enforced, told in ((True, "true"), (False, "false"))
        }
        self._would_throttle = {
            quantity: self._board.cell("warden_would_throttle_total", quantity) for quantity in Quantity
        }
        self._versions: dict[tuple[str, str, RouteKind], dict[OutcomeKind, Cell]] = {}
        self._other_versions = {
            route: version_cells(OTHER_VERSION, OTHER_VERSION, route, self._board) for route in RouteKind
        }
        self._first_token = self._board.histogram(_FIRST_TOKEN.name)
        self._per_token = self._board.histogram(_PER_TOKEN.name)
        self._unrecorded = self._board.cell("warden_unrecorded_entries_total")
        self._failures = self._board.cell(_SCRAPE_FAILURES)
        self._fixed = len(self._tenants)
        self.watch("warden_max_tenants", lambda: float(max_tenants))

    # --- ports.Instruments -----------------------------------------------------------------------------------------

    def admitted(self, admission: Admission) -> None:
        with self._lock:
            self._tenant(admission.principal.tenant).in_flight.value += 1
            self._found(admission.findings)

    def refused(self, refused: Refused, *, enforced: bool) -> None:
        reason = refused.denial.reason
        method = refused.call.method
        infer = method.action is model.Action.INFER
        # A tenant that isn't known here is only a claim: a caller must not be able to use up the series with it.
        known = refused.principal is not None and reason is not Reason.TENANT_UNKNOWN
        with self._lock:
            if not enforced:
                self._unenforced(refused.denial)
                return  # the call goes on, and is counted when it ends
            self._refusals[True][reason].value += 1
            self._found(refused.findings)
            tenant = self._tenant(refused.principal.tenant if known and refused.principal else NO_TENANT)
            tenant.calls[infer, OutcomeKind.REFUSED].value += 1
            self._method(method.path)[OutcomeKind.REFUSED].value += 1
            quantity = faults.throttled(reason, refused.denial.rule)
            if quantity is not None and quantity in tenant.throttled:
                tenant.throttled[quantity].value += 1
            fault = faults.of_reason(reason, refused.denial.rule)
            if fault is not None and infer:
                tenant.faults[fault, OutcomeKind.REFUSED].value += 1

    def _unenforced(self, denial: Denial) -> None:
        """Under the lock."""
        cell = self._refusals[False].get(denial.reason)
        if cell is None:  # the catalogue says that it can't be
            cell = self._board.cell("warden_refusals_total", denial.reason, "false")
        cell.value += 1
        quantity = faults.throttled(denial.reason, denial.rule)
        if quantity is not None:
            self._would_throttle[quantity].value += 1

    def settled(self, recorded: Recorded, outcome: Outcome, usage: Usage) -> None:
        admission = recorded.admission
        call, kind = admission.call, outcome.kind
        infer = call.method.action is model.Action.INFER
        with self._lock:
            tenant = self._tenant(admission.principal.tenant)
            tenant.in_flight.value -= 1
            self._found(recorded.findings)
            tenant.calls[infer, kind].value += 1
            self._method(call.method.path)[kind].value += 1
            if outcome.quoted is not None:
                self._quoted(outcome)
            tenant.request.value += usage.request_bytes
            tenant.response.value += usage.response_bytes
            if not infer:
                return
            if admission.verdict.route.kind is not None:
                self._routed(admission, usage)[kind].value += 1
            tenant.input.value += usage.input_tokens
            tenant.output.value += usage.output_tokens
            if kind is OutcomeKind.COMPLETED:
                self._timed(tenant, admission, usage)
            elif kind is OutcomeKind.FAILED:
                fault = faults.of_status(outcome.reason, outcome.status, outcome.rule)
                if fault is not None:
                    tenant.faults[fault, kind].value += 1

    def _quoted(self, outcome: Outcome) -> None:
        """Under the lock; rare, so the cells are looked up."""
        if outcome.rule == model.RESTRICTED:
            self._board.cells["warden_upstream_restricted_total"][()].value += 1
        if outcome.reason is None and not outcome.internal:
            self._board.cells["warden_upstream_errors_withheld_total"][()].value += 1

    def unrecorded(self, denial: Denial) -> None:  # noqa: ARG002 — the port's shape; every such denial is AUDIT_UNAVAILABLE
        with self._lock:
            self._unrecorded.value += 1

    # --- the rest of the process -----------------------------------------------------------------------------------

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of the catalogue; its label values must be of the catalogue's too (LookupError)."""
        with self._lock:
            self._board.cells[name][labels].value += by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add one observation to a histogram of the catalogue, in its unit (LookupError for another name)."""
        with self._lock:
            self._board.histograms[name][labels].observe(value)

    def watch(self, name: str, read: Callable[[], Reading]) -> None:
        """Have ``read`` called at each scrape, in the scraping thread. One reader a name; a later one replaces it.

        A reader that raises leaves its series out and is counted; a counter keeps what it last read. Keys are label
        values in the catalogue's order, one for each label; tenants without series of their own are summed.
        """
        if BY_NAME[name].kind is Kind.HISTOGRAM:
            raise LookupError(f"{name} is a histogram: observe it")
        self._watched[name] = read

    def _tenant(self, name: str) -> TenantSeries:
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) - self._fixed >= self._max_tenants:
                return self._tenants[OTHER_TENANT]
            found = self._tenants[name] = TenantSeries(name, self._board)
        return found

    def _method(self, path: str) -> dict[OutcomeKind, Cell]:
        return self._methods.get(path, self._unknown_method)

    def _found(self, findings: tuple[model.Finding, ...]) -> None:
        for found in findings:
            self._board.cells["warden_guard_findings_total"][found.on, found.verdict, found.enforced].value += 1

    def _routed(self, admission: Admission, usage: Usage) -> dict[OutcomeKind, Cell]:
        """The cells of the version that answered; where none did, of the one it was sent to.

        One that a client named and nobody has is no version: it must not use up the series.
        """
        verdict = admission.verdict
        assert verdict.route.kind is not None
        version = usage.model_version or verdict.route.version
        key = (verdict.profile.name, version, verdict.route.kind)
        found = self._versions.get(key)
        if found is None:
            if not version or len(self._versions) >= MAX_VERSIONS:
                return self._other_versions[verdict.route.kind]
            found = self._versions[key] = version_cells(*key, self._board)
        return found

    def _timed(self, tenant: TenantSeries, admission: Admission, usage: Usage) -> None:
        call = admission.call
        trace = call.trace
        seconds = usage.duration_ns / 1e9
        if trace is not None and trace.sampled:
            tenant.duration.observe(seconds, trace.trace_id, (call.arrived.wall_ns + usage.duration_ns) / 1e9)
        else:
            tenant.duration.observe(seconds)
        first = usage.first_response_ns
        if first is not None and (admission.facts.streaming or usage.responses > 1):
            self._first_token.observe(first / 1e9)
            if usage.output_tokens > 1:
                self._per_token.observe((usage.duration_ns - first) / 1e9 / (usage.output_tokens - 1))

    # --- a scrape --------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Family]:
        for metric in sorted(CATALOGUE, key=lambda metric: metric.name == _SCRAPE_FAILURES):
            yield self._histograms(metric) if metric.kind is Kind.HISTOGRAM else self._scalars(metric)

    def describe(self) -> Iterator[Family]:
        """Nothing: registering must not read what is watched."""
        return iter(())

    def _scalars(self, metric: Metric) -> Family:
        with self._lock:
            series: dict[Labels, float] = {
                labels: cell.value for labels, cell in self._board.cells[metric.name].items()
            }
        read = self._watched.get(metric.name)
        if read is not None:
            series |= self._read(metric, read)
        return _family(metric, series)

    def _read(self, metric: Metric, read: Callable[[], Reading]) -> dict[Labels, float]:
        try:
            series = _series(metric, read())
        except Exception as fault:  # noqa: BLE001 — one broken reader must not cost the whole scrape; it is counted
            event(_LOG, logging.WARNING, "scrape.failed", metric=metric.name, error=type(fault).__name__)
            with self._lock:
                self._failures.value += 1
            series = None
        if metric.kind is Kind.COUNTER:
            series = self._last[metric.name] = self._last.get(metric.name, {}) if series is None else series
        return self._capped(series or {}) if metric.by_tenant else series or {}

    def _capped(self, series: Mapping[Labels, float]) -> dict[Labels, float]:
        """``tenant`` is the first label. Which tenants have series is decided by calls, not by what is watched."""
        capped: dict[Labels, float] = {}
        with self._lock:
            for (tenant, *rest), value in series.items():
                labels = (tenant if tenant in self._tenants else OTHER_TENANT, *rest)
                capped[labels] = capped.get(labels, 0.0) + value
        return capped

    def _histograms(self, metric: Metric) -> Family:
        with self._lock:
            series = [
                (labels, list(histogram.counts), histogram.total, list(histogram.exemplars))
                for labels, histogram in self._board.histograms[metric.name].items()
            ]
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for labels, counts, total, exemplars in series:
            buckets = [
                (bound, float(count)) if found is None else (bound, float(count), _exemplar(found))
                for bound, count, found in zip(bounds, itertools.accumulate(counts), exemplars, strict=True)
            ]
            family.add_metric(labels, buckets, total)
        return family


def registry(instruments: PrometheusInstruments) -> CollectorRegistry:
    """What `/metrics` shows: the catalogue, and the process's CPU, memory and descriptors (``process_*``)."""
    made = CollectorRegistry(auto_describe=False)
    made.register(instruments)
    ProcessCollector(registry=made)
    return made


def _series(metric: Metric, reading: Reading) -> dict[Labels, float] | None:
    if reading is None:
        return None
    series: dict[Labels, float] = dict(reading) if isinstance(reading, Mapping) else {(): float(reading)}
    if any(len(labels) != len(metric.labels) for labels in series):
        raise ValueError(f"{metric.name} takes the labels {metric.labels}")
    return series


def _exemplar(found: tuple[str, float, float]) -> Exemplar:
    trace_id, value, at = found
    return Exemplar({"trace_id": trace_id}, value, at)


def _family(metric: Metric, series: Mapping[Labels, float]) -> Family:
    family: CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily
    match metric.kind:
        case Kind.COUNTER:
            family = CounterMetricFamily(metric.family, metric.help, labels=metric.labels, unit=metric.unit)
        case Kind.INFO:
            info = InfoMetricFamily(metric.family, metric.help, labels=metric.labels)
            for labels in series:
                info.add_metric(labels, {})
            return info
        case _:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family
