"""Residency on real parts: journals on disk, a Postgres a jurisdiction, shippers between; all of it read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.bundle import Bundle, compile_bundle
from tests.support.postgres import Server
from tests.support.stores import Stores, made, tour, tours
from tests.support.topologies import UNLIMITED, Asked, Pod, Topology


@pytest.fixture(scope="module")
def stores(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return made(postgres, tmp_path_factory.mktemp("keys"))


def two() -> Topology:
    """A tenant of the EU alone and one of both, in the EU and the US; a pod whose collector is abroad, one in doubt."""
    documents = {
        "bundle.yaml": {"regions": {"r0": {"jurisdiction": "EU"}, "r1": {"jurisdiction": "US"}}},
        "models.yaml": {"chat": {"contract": "vllm"}},
        "plans.yaml": {"all": UNLIMITED},
    }
    for name, areas in (("t0", ["EU"]), ("t1", ["EU", "US"])):
        documents[f"tenants/{name}.yaml"] = {
            "tenant": name, "plan": "all", "status": "active", "models": ["chat"],
            "residency": {"processing": areas, "storage": areas, "telemetry": areas},
            "audit": {"level": "full", "retention": "1d"},
        }  # fmt: skip
    bundle = compile_bundle({name: json.dumps(document).encode() for name, document in documents.items()})
    assert isinstance(bundle, Bundle), bundle
    pods = (Pod("r0", "EU", "", ()), Pod("r1", "US", "", ()), Pod("r0", "US", "", ()), Pod("r1", "US", "in doubt", ()))
    calls = [Asked(pod, tenant, "chat", "", ()) for pod in range(4) for tenant in ("t0", "t1", None, "stranger")]
    return Topology(bundle, pods, tuple(calls))


def test_content_lies_where_it_may_and_refusals_without_it_elsewhere(stores: Stores, tmp_path: Path) -> None:
    stores.tally.clear()
    tour(two(), stores, tmp_path)
    # t0 at r0, t1 at both, and t1's call where the collector is abroad; retries of t0 and t1 at the regions named.
    assert stores.tally["with content"] >= 4
    assert stores.tally["exceptions"] >= 2 + 8, "t0's refusals in the US, and those of nobody known"
    assert stores.tally["stored"] > stores.tally["with content"] + stores.tally["exceptions"]
    assert stores.tally["retried"] >= 3


def test_what_is_kept_lies_where_its_tenant_lets_it_lie(stores: Stores) -> None:
    """No record is in a journal or a store outside its tenant's storage, but of refusals, without content; no span and
    no log line holds any; and every region that a refusal names takes the call.
    """
    tours(stores, 3)  # 200 in tests/long
    print(stores.tally)
