"""The series there are, as plain cells: a counter's or gauge's number, a histogram's counts."""

from __future__ import annotations

import itertools
from bisect import bisect_left

from sidecar.core.model import OutcomeKind, Quantity
from sidecar.core.routing import RouteKind
from sidecar.telemetry.catalogue import BY_NAME, CATALOGUE, NO_TENANT, Action, Direction, Fault, Kind, Metric, Traffic

__all__ = ["Board", "Cell", "Histogram", "Labels", "TenantSeries", "method_cells", "version_cells"]

Labels = tuple[str, ...]


class Cell:
    """One series of a counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Histogram:
    """One series set of a histogram: a count for each bucket (the last is +Inf), not cumulative until shown."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.exemplars: list[tuple[str, float, float] | None] = [None] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, trace_id: str = "", at: float = 0.0) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id:
            self.exemplars[bucket] = (trace_id, value, at)


class TenantSeries:
    """One tenant's series, all made when it is first seen: a counter born with a value hides its first event.

    Of nobody (``NO_TENANT``) there are only refusals: what else would be counted of them is not shown.
    """

    __slots__ = ("calls", "duration", "faults", "in_flight", "input", "output", "request", "response", "throttled")

    def __init__(self, tenant: str, board: Board) -> None:
        nobody = tenant == NO_TENANT
        hidden = Board(()) if nobody else board
        self.calls: dict[tuple[bool, OutcomeKind], Cell] = {
            (action is Action.INFER, kind): (board if kind is OutcomeKind.REFUSED else hidden).cell(
                "warden_calls_total", tenant, action, kind
            )
            for action in Action
            for kind in OutcomeKind
            if kind is not OutcomeKind.ABORTED
        }
        self.faults: dict[tuple[Fault, OutcomeKind], Cell] = {
            (fault, kind): (board if kind is OutcomeKind.REFUSED else hidden).cell(
                "warden_faults_total", tenant, fault, kind
            )
            for fault in Fault
            for kind in (OutcomeKind.REFUSED, OutcomeKind.FAILED)
        }
        # Nobody has no quota that could refuse.
        quantities = () if nobody else tuple(Quantity)
        self.throttled = {quantity: board.cell("warden_throttled_total", tenant, quantity) for quantity in quantities}
        self.input = hidden.cell("warden_tokens_total", tenant, Direction.INPUT)
        self.output = hidden.cell("warden_tokens_total", tenant, Direction.OUTPUT)
        self.request = hidden.cell("warden_bytes_total", tenant, Traffic.REQUEST)
        self.response = hidden.cell("warden_bytes_total", tenant, Traffic.RESPONSE)
        self.in_flight = hidden.cell("warden_in_flight_calls", tenant)
        self.duration = hidden.histogram("gen_ai_server_request_duration_seconds", tenant)


class Board:
    """Every series there is, by metric and label values; ``born``: the metrics whose series are there at once."""

    def __init__(self, born: tuple[Metric, ...] = CATALOGUE) -> None:
        self.cells: dict[str, dict[Labels, Cell]] = {metric.name: {} for metric in CATALOGUE}
        self.histograms: dict[str, dict[Labels, Histogram]] = {
            metric.name: {} for metric in CATALOGUE if metric.kind is Kind.HISTOGRAM
        }
        for metric in born:
            if any(label not in metric.values for label in metric.labels):
                continue  # born with its tenant or method
            if metric.kind is Kind.HISTOGRAM:
                self.histogram(metric.name)
            elif metric.kind is Kind.COUNTER:
                for labels in itertools.product(*(metric.values[label] for label in metric.labels)):
                    if labels not in metric.never:
                        self.cell(metric.name, *labels)

    def cell(self, name: str, *labels: str) -> Cell:
        return self.cells[name].setdefault(tuple(str(label) for label in labels), Cell())

    def histogram(self, name: str, *labels: str) -> Histogram:
        return self.histograms[name].setdefault(labels, Histogram(BY_NAME[name].buckets))


def method_cells(name: str, board: Board) -> dict[OutcomeKind, Cell]:
    kinds = (kind for kind in OutcomeKind if kind is not OutcomeKind.ABORTED)
    return {kind: board.cell("warden_method_calls_total", name, kind) for kind in kinds}


def version_cells(model_: str, version: str, route: RouteKind, board: Board) -> dict[OutcomeKind, Cell]:
    kinds = (kind for kind in OutcomeKind if kind is not OutcomeKind.ABORTED)
    return {kind: board.cell("warden_routed_calls_total", model_, version, route, kind) for kind in kinds}
