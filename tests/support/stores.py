"""A topology for real: pods' journals on disk, each shipped into its jurisdiction's Postgres; all of it read back."""

from __future__ import annotations

import json
import logging
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings

from audit import store
from audit.assemble import CallRecord
from audit.filekeys import FileKeys
from audit.journal import Journal, Origin
from audit.opening import Opener
from policies.residency import Place
from sidecar.core.governor import Recorded
from sidecar.core.model import Instant
from sidecar.runtime.journal_source import JournalSource
from sidecar.telemetry.spans import resource_of, span_of, to_be_exported
from tests.support import store as shipping_parts
from tests.support.journal import ROOMY, ROOT, entries
from tests.support.postgres import Server, prepare
from tests.support.store import Shipping, wait_until
from tests.support.topologies import (
    AREAS,
    MARK,
    NOT_RESIDENT,
    Asked,
    Sidecar,
    Topology,
    call_of,
    check,
    listening,
    rules,
    topologies,
)

_runs = count(1)


@dataclass
class Stores:
    """A database a jurisdiction, and the master keys of its tenants; the same for all topologies of a test."""

    databases: dict[str, str]
    keys: dict[str, FileKeys]
    tally: dict[str, int] = field(default_factory=dict)


def made(server: Server, directory: Path) -> Stores:
    """Three empty databases, each prepared for one jurisdiction."""
    databases = {area: server.create_database() for area in AREAS}
    for area, dsn in databases.items():
        prepare(dsn, jurisdiction=area)
    return Stores(databases, {area: FileKeys(directory / f"keys-{area}", secrets.token_bytes) for area in AREAS})


@dataclass
class Shipped:
    """A pod with its journal, its shipper, and what that handed on as ended calls."""

    name: str
    sidecar: Sidecar
    journal: Journal
    directory: Path
    spans: list[CallRecord]
    shipping: Shipping

    @property
    def place(self) -> Place:
        return self.sidecar.place

    def records(self) -> list[tuple[str, CallRecord]]:
        """What stands in the journal's files, whoever reads them."""
        return self.sidecar.records(data for _, data in entries(self.directory))


def tours(stores: Stores, most: int) -> None:
    """``tour`` of so many topologies at random. What failed is told whole: each try costs too much to shrink it."""

    @settings(
        max_examples=most, deadline=None, phases=(Phase.explicit, Phase.generate), database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(topologies(homes=True))
    def all_of_them(topology: Topology) -> None:
        with tempfile.TemporaryDirectory() as directory:
            tour(topology, stores, Path(directory))

    all_of_them()


@contextmanager
def running(topology: Topology, stores: Stores, directory: Path, run: int) -> Iterator[list[Shipped]]:
    """All pods of a topology; leaving stops their shippers and closes their journals."""
    pods: list[Shipped] = []
    with ExitStack() as stack:
        for number, pod in enumerate(topology.pods):
            name, area = f"pod-{run}-{number}", topology.bundle.regions[pod.region]
            where = directory / name
            opened = Journal.open(
                where, ROOT, Origin(name, pod.region, area, pod.doubt, pod.collector or ""), ROOMY,
                random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=None,
            )  # fmt: skip
            assert isinstance(opened, Journal), opened
            stack.callback(opened.close)
            shipping_parts.PROVIDERS[where] = lambda area=area: stores.keys[area]  # type: ignore[misc]  # mypy #12557
            source, spans = JournalSource(where, ROOT), list[CallRecord]()
            stack.callback(source.close)
            shipping = Shipping(
                source, stores.databases[area], where, jurisdiction=area, sidecar=name, region=pod.region,
                ended=spans.append,
            )  # fmt: skip
            stack.enter_context(shipping)
            sidecar = Sidecar(topology, pod, opened, Instant(time.time_ns(), time.monotonic_ns()))
            pods.append(Shipped(name, sidecar, opened, where, spans, shipping))
        yield pods


def tour(topology: Topology, stores: Stores, directory: Path) -> None:
    """Make the calls, retry the refused where their refusals say, wait until all is stored, and judge what is where."""
    run = next(_runs)
    asked: dict[str, tuple[Asked, int]] = {}
    lines, handler = listening()
    try:
        written, pods = _toured(topology, stores, directory, run, asked)
    finally:
        logging.getLogger().removeHandler(handler)
    assert not [line for line in lines if MARK in line]
    stores.tally["retried"] = stores.tally.get("retried", 0) + len(asked) - len(topology.calls)
    _judge_journals(topology, pods, written, asked)
    _judge_stores(topology, pods, stores, asked, run)


def _toured(
    topology: Topology, stores: Stores, directory: Path, run: int, asked: dict[str, tuple[Asked, int]]
) -> tuple[list[list[tuple[str, CallRecord]]], list[Shipped]]:
    with running(topology, stores, directory, run) as pods:
        for number, call in enumerate(topology.calls):
            _ask(topology, pods, call, f"t{run}-{number}", asked)
        for number, pod in enumerate(pods):
            pod.journal.sync()
            wanted = sum(at == number for _, at in asked.values())

            def stored(pod: Shipped = pod, wanted: int = wanted) -> bool:
                return pod.shipping.fault is not None or pod.shipping.shipper.status.rows >= wanted

            wait_until(stored)
            assert pod.shipping.fault is None
        return [pod.records() for pod in pods], pods


def _ask(topology: Topology, pods: list[Shipped], call: Asked, name: str, asked: dict[str, tuple[Asked, int]]) -> None:
    """``name`` ends with the call's number; a retry's with the region's as well."""
    asked[f"{name}-0"] = (call, call.pod)
    found = pods[call.pod].sidecar.ask(call_of(call, 0, name))
    if isinstance(found, Recorded) or found.denial.reason not in NOT_RESIDENT:
        return
    for region in filter(None, dict(found.denial.metadata)["allowed_regions"].split(",")):
        home = list(topology.bundle.regions).index(region)  # the plain pods come first, one a region
        retry = f"{name}-{region}"
        asked[f"{retry}-0"] = (call, home)
        accepted = pods[home].sidecar.ask(call_of(call, 0, retry))
        assert isinstance(accepted, Recorded), (region, accepted)


def _judge_journals(
    topology: Topology,
    pods: list[Shipped],
    written: list[list[tuple[str, CallRecord]]],
    asked: dict[str, tuple[Asked, int]],
) -> None:
    told = {record.facts.call_id: at for at, records in enumerate(written) for _, record in records}
    assert told == {name: at for name, (_, at) in asked.items()}, "each call in its own pod's journal, and no other"
    for pod, records in zip(pods, written, strict=True):
        for area, record in records:
            check(topology, asked[record.facts.call_id][0], pod.place, area, record)
        for record in filter(lambda record: to_be_exported(record.facts), pod.spans):
            span = span_of(record.facts, record.end, resource_of(pod.name, pod.place.region, pod.place.jurisdiction))
            assert MARK not in span.to_json()


def _judge_stores(
    topology: Topology, pods: list[Shipped], stores: Stores, asked: dict[str, tuple[Asked, int]], run: int
) -> None:
    found: dict[str, str] = {}
    for area, dsn in stores.databases.items():
        for row, content in _rows(stores, area, dsn, f"t{run}-%"):
            call, _ = asked[row["call_id"]]
            assert row["call_id"] not in found, "in one store only"
            found[row["call_id"]] = area
            known = call.tenant in topology.bundle.tenants
            allowed = known and all(area in each.databases for each in rules(topology, call))
            held = MARK in content
            stores.tally["stored"] = stores.tally.get("stored", 0) + 1
            stores.tally["with content"] = stores.tally.get("with content", 0) + held
            stores.tally["exceptions"] = stores.tally.get("exceptions", 0) + (not allowed)
            if not allowed:
                assert row["outcome"] == "refused", "the declared exception is of refusals alone"
                assert not held, "and holds no content"
    assert found == {name: pods[at].place.jurisdiction for name, (_, at) in asked.items()}


def _rows(stores: Stores, area: str, dsn: str, like: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each stored call, and everything that is in its row, opened."""
    engine, opener = store.connect(dsn, application="warden-test"), Opener(stores.keys[area])
    try:
        with store.transaction(engine) as connection:
            query = sa.text("SELECT * FROM warden.audit_calls WHERE call_id LIKE :like")
            rows = [dict(row) for row in connection.execute(query, {"like": like}).mappings()]
            opener.load(connection, [row["data_key"] for row in rows])
    finally:
        engine.dispose()
    for row in rows:
        opened = opener.open(row, content=True)
        assert opened.identity is not None, opened.why
        yield row, f"{row} {opened} {json.dumps(row, default=str)}"
