"""A tenant's own counts: of its calls alone, per version, within a bound."""

from __future__ import annotations

from typing import Any

from sidecar.triton.protos import message_class
from sidecar.triton.tallies import VERSIONS, Tallies

MS = 1_000_000


def told(tallies: Tallies, tenant: str = "acme", model: str = "chat", version: str = "1") -> Any:
    statistics = message_class("ModelStatistics")(name=model, version=version)
    tallies.fill(tenant, statistics)
    return statistics


def add(tallies: Tallies, tenant: str = "acme", model: str = "chat", version: str = "1", **fields: Any) -> None:
    tallies.add(tenant, model, version, **{"failed": False, "duration_ns": 5, "wall_ns": 7 * MS, **fields})


def test_each_tenant_reads_its_own() -> None:
    tallies = Tallies()
    add(tallies, duration_ns=30)
    add(tallies, duration_ns=12, wall_ns=9 * MS)
    add(tallies, failed=True, duration_ns=4)
    add(tallies, "birch", duration_ns=1000)
    acme = told(tallies)
    assert (acme.inference_count, acme.execution_count, acme.last_inference) == (2, 2, 9)
    stats = acme.inference_stats
    assert (stats.success.count, stats.success.ns, stats.fail.count, stats.fail.ns) == (2, 42, 1, 4)
    assert (stats.compute_infer.ns, stats.queue.count, stats.queue.ns) == (42, 2, 0)
    assert told(tallies, "birch").inference_stats.success.ns == 1000
    assert not acme.batch_stats
    assert not acme.memory_usage
    assert not acme.response_stats


def test_what_was_never_called_counts_nothing() -> None:
    assert told(Tallies()).inference_stats.success.count == 0
    assert len(Tallies()) == 0


def test_a_call_that_no_version_answered_counts_as_the_last_ones() -> None:
    tallies = Tallies()
    add(tallies, version="", failed=True)
    add(tallies, version="3")
    add(tallies, version="", failed=True)
    assert told(tallies, version="3").inference_stats.fail.count == 2


def test_the_longest_unused_is_forgotten_beyond_the_bound() -> None:
    tallies = Tallies(models=2)
    for tenant in ("a", "b", "a", "c"):
        add(tallies, tenant)
    assert len(tallies) == 2
    assert [told(tallies, tenant).inference_count for tenant in ("a", "b", "c")] == [2, 0, 1]


def test_the_first_seen_version_is_forgotten_beyond_the_bound() -> None:
    tallies = Tallies()
    for version in range(1, VERSIONS + 2):
        add(tallies, version=str(version))
    assert told(tallies, version="1").inference_count == 0
    assert told(tallies, version=str(VERSIONS + 1)).inference_count == 1
