"""Residency over random topologies: what is recorded where, traced whither, and where a refusal sends a call."""

from __future__ import annotations

import logging

from hypothesis import HealthCheck, given, settings

from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Denial, Head, Principal, Verdict
from sidecar.core.reasons import REASONS, Code
from tests.support.core import AT
from tests.support.topologies import MARK, NOT_RESIDENT, Sidecar, Topology, call_of, check, listening, topologies


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(topologies())
def test_data_stays_where_its_tenant_lets_it_be(topology: Topology) -> None:
    """No record is in a journal or a database where its tenant's storage is not, but of refusals, without content, and
    those only where no database there is would be allowed; no span or log line holds any content; a span leaves only
    for where telemetry may go.
    """
    lines, handler = listening()
    sidecars = [Sidecar(topology, pod) for pod in topology.pods]
    try:
        for number, asked in enumerate(topology.calls):
            sidecars[asked.pod].ask(call_of(asked, number))
    finally:
        logging.getLogger().removeHandler(handler)
    assert not [line for line in lines if MARK in line]
    found = [(sidecar.place, *stored) for sidecar in sidecars for stored in sidecar.records()]
    told = {record.facts.call_id: (place, store, record) for place, store, record in found}
    assert len(told) == len(found) == len(topology.calls), "each call has its one record, the refused too"
    for number, asked in enumerate(topology.calls):
        check(topology, asked, *told[f"c-{number}"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(topologies())
def test_every_region_that_a_refusal_names_would_take_the_call(topology: Topology) -> None:
    """A pod of a named region, with database and collector of its own jurisdiction, allows the very same call; a region
    that is not named (and not doubted) would not.
    """
    bundle = topology.bundle
    for number, asked in enumerate(topology.calls):
        sidecar, call = Sidecar(topology, topology.pods[asked.pod]), call_of(asked, number)
        if asked.tenant is None:
            continue
        who = Principal(asked.tenant, "alice", "jwt", data_classes=asked.claim)
        found = sidecar.policy.authorise(who, call, Head(asked.model), AT.wall)
        if not isinstance(found, Denial) or found.reason not in NOT_RESIDENT:
            continue
        assert REASONS[found.reason].code is Code.PERMISSION_DENIED
        named = set(filter(None, dict(found.metadata)["allowed_regions"].split(",")))
        taking = {
            region
            for region, area in bundle.regions.items()
            if isinstance(
                LoadedPolicy(bundle, Place(region, area, area, area)).authorise(who, call, Head(asked.model), AT.wall),
                Verdict,
            )
        }
        assert named == taking
