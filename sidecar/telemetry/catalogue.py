"""The one table of metrics: name, type, labels, unit, help; a metric that isn't here doesn't exist (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.core.model import OutcomeKind, Quantity
from sidecar.core.reasons import Reason
from sidecar.core.routing import RouteKind

__all__ = [
    "BY_NAME",
    "CATALOGUE",
    "MAX_VERSIONS",
    "NO_TENANT",
    "OTHER_TENANT",
    "OTHER_VERSION",
    "UNKNOWN_METHOD",
    "Action",
    "Direction",
    "Fault",
    "JournalState",
    "Kind",
    "Metric",
    "Traffic",
]

# Parentheses can't occur in a tenant's name, so these never collide with one.
OTHER_TENANT: Final = "(other)"  # tenants beyond settings.telemetry.max_tenants
NO_TENANT: Final = "(none)"  # nobody was identified, or the claimed tenant isn't known here
OTHER_VERSION: Final = "(other)"  # versions beyond MAX_VERSIONS, and the models they are of
UNKNOWN_METHOD: Final = "(unknown)"  # not in the method table

# Most series one pod exposes at 60 tenants; tests/unit/sidecar/telemetry counts them.
MAX_SERIES: Final = 3000
# Versions of models with a canary that have series of their own, the first seen: 4 outcomes each.
MAX_VERSIONS: Final = 20


class Kind(StrEnum):
    """The OpenMetrics types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Action(StrEnum):
    """What a call asks for, as coarse as a dashboard needs: inference, or anything else."""

    INFER = "infer"
    OTHER = "other"


class Fault(StrEnum):
    """Whose fault a failed inference is; a policy's refusal or a caller's mistake is nobody's."""

    WARDEN = "warden"
    UPSTREAM = "upstream"


class Direction(StrEnum):
    """Tokens, as the model sees them."""

    INPUT = "input"
    OUTPUT = "output"


class Traffic(StrEnum):
    """Bytes, as the caller sees them."""

    REQUEST = "request"
    RESPONSE = "response"


class JournalState(StrEnum):
    """Whether the journal takes entries, and if not, why."""

    OPEN = "open"
    FULL = "full"  # at its configured size, or the volume is short of space
    FAILED = "failed"  # a write or an fsync failed


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``name`` is as a query writes it (``…_total`` for counters, ``…_info`` for infos).

    ``values`` are the closed label values; every combination of them exists from the start, at 0 for counters. A label
    without closed values (``tenant``, ``method``, a digest) gets its series when it is first seen.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    never: frozenset[tuple[str, ...]] = frozenset()  # combinations of closed values that can't happen: no series

    @property
    def family(self) -> str:
        """The name without its type's suffix, as OpenMetrics names a family."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def by_tenant(self) -> bool:
        return "tenant" in self.labels

    @property
    def series(self) -> tuple[str, ...]:
        """The sample names a query may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (self.name,)


def _counter(
    name: str, help_: str, labels: tuple[str, ...] = (), unit: str = "", *,
    never: frozenset[tuple[str, ...]] = frozenset(), **values: type[StrEnum] | tuple[str, ...],
) -> Metric:  # fmt: skip
    closed = {label: value if isinstance(value, tuple) else tuple(value) for label, value in values.items()}
    return Metric(name, Kind.COUNTER, help_, labels, unit, values=closed, never=never)


def _gauge(name: str, help_: str, labels: tuple[str, ...] = (), unit: str = "") -> Metric:
    return Metric(name, Kind.GAUGE, help_, labels, unit)


# Where a histogram follows the GenAI conventions, its name and buckets are theirs (facts: gen_ai.server.*).
_DURATION: Final = tuple(round(0.01 * 2**step, 2) for step in range(14))  # 10 ms doubling to 81.92 s
_FIRST_TOKEN: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# Local SSD: 0.1–5 ms; network volumes: tens of ms; what takes a second is ill, however long it takes.
_FSYNC: Final = (0.01, 0.1, 1.0)

# Calls of the data plane end in one of these; ``aborted`` is written by `warden ship` after a crash.
_OUTCOMES: Final = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.ABORTED)

# What happens to a call that was let in, or to all calls: never what a rule only observes.
_ALWAYS_ENFORCED: Final = (
    Reason.AUDIT_UNAVAILABLE, Reason.CLIENT_CANCELLED, Reason.DRAINING, Reason.INTERNAL, Reason.UPSTREAM_QUEUE_FULL,
    Reason.UPSTREAM_TIMEOUT, Reason.UPSTREAM_UNAVAILABLE,
)  # fmt: skip
_NOT_DONE: Final = (("deny", "flag"), ("flag", "deny"))  # a finding is enforced as its guard says, or not at all

_CALLS: Final = (
    _counter(
        "warden_calls_total",
        "Calls ended, by tenant and outcome. action=infer is an inference (each message of a stream is one).",
        ("tenant", "action", "outcome"),
        action=Action,
        outcome=_OUTCOMES,
    ),
    _counter(
        "warden_faults_total",
        "Inferences that ended through a fault of the sidecar or of Triton; no policy refusal, no caller's mistake.",
        ("tenant", "fault", "outcome"),
        fault=Fault,
        outcome=("refused", "failed"),
    ),
    _counter(
        "warden_throttled_total",
        "Calls refused by one of the tenant's own quotas.",
        ("tenant", "quantity"),
        quantity=Quantity,
    ),
    _counter(
        "warden_would_throttle_total",
        "Calls that a quota in shadow, or any quota in mode observe, would have refused.",
        ("quantity",),
        quantity=Quantity,
    ),
    _counter("warden_method_calls_total", "Calls ended, by RPC.", ("method", "outcome"), outcome=_OUTCOMES),
    _counter(
        "warden_refusals_total",
        "Refusals by reason; enforced=false would have been refused, but the sidecar or the rule only observes.",
        ("reason", "enforced"),
        reason=Reason,
        enforced=("true", "false"),
        never=frozenset((reason.value, "false") for reason in _ALWAYS_ENFORCED),
    ),
    _counter(
        "warden_tokens_total",
        "Tokens of inferences; estimates where the backend sends no counts.",
        ("tenant", "direction"),
        "tokens",
        direction=Direction,
    ),
    _counter(
        "warden_bytes_total",
        "Bytes of admitted calls' messages, without framing.",
        ("tenant", "direction"),
        "bytes",
        direction=Traffic,
    ),
    _counter(
        "warden_routed_calls_total",
        "Inferences of models that have a canary, by the version that answered; route: who picked it.",
        ("model", "version", "route", "outcome"),
        route=RouteKind,
        outcome=_OUTCOMES,
    ),
    _gauge("warden_in_flight_calls", "Admitted calls that haven't ended.", ("tenant",)),
    _gauge(
        "warden_quota_held_bytes",
        "GPU memory reserved by calls in flight: quantity=kv_bytes or tensor_bytes.",
        ("tenant", "quantity"),
        "bytes",
    ),
    _gauge("warden_pool_used_ratio", "Part of a model's pool that is held.", ("model", "quantity")),
    _gauge("warden_pool_live", "1 while a pool is as its engine tells, 0 while as the bundle states it.", ("model",)),
    _gauge(
        "warden_pool_drift_ratio",
        "Part of a live pool that its engine has given out beyond what calls here reserved; below 0, less than that.",
        ("model",),
    ),
    _gauge("warden_upstream_metrics_age_seconds", "Age of what was read last of Triton's metrics.", unit="seconds"),
    _gauge("warden_running_on_calls", "Calls that have ended here, but that Triton may be working on still."),
    _gauge("warden_waiting_calls", "Calls that wait for room in a quota (on_limit: queue)."),
    _gauge(
        "warden_quota_redis_up",
        "1 while Redis answers for every lease, 0 while shared quotas go on without it or a key of it is no lease.",
    ),
    _gauge(
        "warden_quota_missed_pods",
        "Pods that Redis doesn't hear of and that may go on: their part of quotas is held back.",
    ),
    Metric(
        "gen_ai_server_request_duration_seconds",
        Kind.HISTOGRAM,
        "Completed inferences, from arrival to the final response.",
        ("tenant",),
        "seconds",
        _DURATION,
    ),
    Metric(
        "gen_ai_server_time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "Completed streaming inferences, from arrival to the first response.",
        (),
        "seconds",
        _FIRST_TOKEN,
    ),
    Metric(
        "gen_ai_server_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "Completed streaming inferences: (duration - time to first token) / (output tokens - 1).",
        (),
        "seconds",
        _PER_TOKEN,
    ),
)

_OF_DATABASE: Final = ("jurisdiction",)  # whose database it is of

_AUDIT: Final = (
    _counter(
        "warden_guard_findings_total",
        "What guards found in prompts and outputs, and what was done about it.",
        ("on", "verdict", "enforced"),
        on=("prompt", "output"),
        verdict=("deny", "flag"),
        enforced=("deny", "flag", "none"),
        never=frozenset((on, said, done) for on in ("prompt", "output") for said, done in _NOT_DONE),
    ),
    _counter("warden_unrecorded_entries_total", "Journal entries that could not be written."),
    _gauge(
        "warden_journal_state",
        "1 for the state the journals are in: open, full or failed; of several databases', the worst.",
        ("state",),
    ),
    _gauge(
        "warden_journal_pressure",
        "How short of space that database's journal is: 0 not, 1 warn, 2 shed, 3 refuse.",
        _OF_DATABASE,
    ),
    _counter("warden_journal_shed_calls_total", "Calls whose content was kept as a digest, for want of space."),
    _counter("warden_folded_refusals_total", "Refusals that were counted in one record with others of their kind."),
    _counter(
        "warden_journal_faults_total",
        "Times the journal was found broken, and put right: a file gone or altered, a write or an fsync that failed.",
    ),
    _gauge("warden_journal_bytes", "Bytes the journals' segments take on disk.", unit="bytes"),
    _gauge("warden_journal_limit_bytes", "Bytes the journals may take (audit.journal.max_bytes).", unit="bytes"),
    _gauge("warden_journal_free_bytes", "Free bytes on the journals' volume.", unit="bytes"),
    _gauge("warden_journal_segments", "Segments of the journals on disk."),
    Metric("warden_journal_fsync_seconds", Kind.HISTOGRAM, "Time of one fsync of the journal.", (), "seconds", _FSYNC),
    _gauge(
        "warden_journal_copy_lag_seconds",
        "How long the oldest entry without a copy outside the node waits for it; absent where nothing is copied.",
        _OF_DATABASE,
        "seconds",
    ),
    _gauge("warden_ship_up", "1 while `warden ship` reports each second; 0 where its report is absent or stale."),
    _gauge(
        "warden_ship_database_up", "1 while `warden ship` reaches that jurisdiction's audit database.", _OF_DATABASE
    ),
    _gauge(
        "warden_ship_lag_records", "Journal entries not read yet for that database, or not in it yet.", _OF_DATABASE
    ),
    _gauge(
        "warden_ship_lag_seconds", "Age of the oldest record that isn't in its database yet.", _OF_DATABASE, "seconds"
    ),
    _counter(
        "warden_shipped_records_total", "Records stored in the database since `warden ship` started.", _OF_DATABASE
    ),
    _gauge("warden_ship_tampered", "1 while a database shows a log not written here; nothing is added.", _OF_DATABASE),
    _gauge(
        "warden_ship_partition_room_seconds",
        "Time until the audit database has no day partition for what is new; 8 days are made ahead.",
        _OF_DATABASE,
        "seconds",
    ),
    _gauge(
        "warden_ship_retained_age_seconds",
        "Time since `warden audit retain` last ran to its end.",
        _OF_DATABASE,
        "seconds",
    ),
    _gauge(
        "warden_ship_anchored",
        "1 while anchor and witnesses take the fleet's heads.",
        _OF_DATABASE,
    ),
    _gauge(
        "warden_ship_objects_lag_seconds",
        "How long the oldest tensors' bytes wait for their object store; absent where none is configured.",
        _OF_DATABASE,
        "seconds",
    ),
    _counter(
        "warden_poisoned_records_total",
        "Journal entries that could not be read or stored, and were set aside.",
        _OF_DATABASE,
    ),
    _counter("warden_spans_exported_total", "Spans the collector took since `warden ship` started."),
    _counter("warden_spans_failed_total", "Spans the collector refused or never got."),
    _counter("warden_spans_dropped_total", "Spans dropped unsent because the export queue was full."),
)

_PARTS: Final = (
    _gauge("warden_keys_age_seconds", "Age of the API-key snapshot.", unit="seconds"),
    _gauge("warden_jwks_age_seconds", "Age of the oldest issuer's JWKS.", unit="seconds"),
    _counter(
        "warden_bundle_loads_total",
        "Attempts to load the policy bundle; a failure keeps the bundle in force.",
        ("result",),
        result=("success", "failure"),
    ),
    _gauge("warden_bundle_age_seconds", "Time since the bundle in force was loaded.", unit="seconds"),
    _gauge(
        "warden_bundle_refused", "1 while what is in the bundle's directory is refused, and the last good one stays."
    ),
    Metric("warden_bundle_info", Kind.INFO, "The policy bundle in force.", ("digest",)),
    _gauge("warden_location_certain", "1 while the evidence agrees on where this is; at 0 every call is refused."),
    _gauge(
        "warden_selfcheck_finding",
        "1 for what the self-check of Triton finds amiss, 0 for what it doesn't; /readyz says what to do.",
        ("finding", "severity"),
    ),
    _gauge("warden_upstream_up", "1 while Triton answers that it is ready."),
    _gauge("warden_models_unlearnt", "Models that Triton has but could not be asked about."),
    _gauge("warden_models_age_seconds", "Age of what is known of Triton's models.", unit="seconds"),
    _counter(
        "warden_upstream_restricted_total",
        "Calls Triton refused for want of a restricted protocol's header: the sidecar's own misconfiguration.",
    ),
    _counter(
        "warden_upstream_errors_withheld_total",
        "Calls that ended in an error whose words the caller was not told; their records keep them sealed.",
    ),
    _gauge("warden_buffer_bytes", "Bytes of requests and responses held in memory.", unit="bytes"),
    _gauge("warden_buffer_limit_bytes", "Bytes that may be held (bounds.buffer_bytes).", unit="bytes"),
    _counter("warden_internal_errors_total", "Calls ended by the crash barrier: a bug of ours."),
    _counter(
        "warden_clients_cut_off_total",
        "Clients cut off: they took nothing for bounds.blocked_write, or fell bounds.stream_bytes behind.",
    ),
    _counter("warden_scrape_failures_total", "Values that could not be read for a scrape; their series were left out."),
    _gauge("warden_bound_listeners", "Listeners that take calls without a credential, each as one named principal."),
    _gauge("warden_draining", "1 once the sidecar refuses new calls to shut down."),
    _gauge("warden_max_tenants", "Tenants with series of their own (telemetry.max_tenants)."),
    Metric(
        "warden_build_info",
        Kind.INFO,
        "This sidecar: version, name, region, mode.",
        ("version", "sidecar", "region", "mode"),
    ),
)

CATALOGUE: Final = _CALLS + _AUDIT + _PARTS
BY_NAME: Final[Mapping[str, Metric]] = {metric.name: metric for metric in CATALOGUE}
