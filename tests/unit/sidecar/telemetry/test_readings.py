"""Readings have the labels that the catalogue gives their metric."""

from __future__ import annotations

import pytest
from prometheus_client.samples import Sample

from sidecar.telemetry import readings
from sidecar.telemetry.catalogue import JournalState
from sidecar.telemetry.instruments import PrometheusInstruments, Reading
from tests.support import telemetry


def shown(name: str, reading: Reading) -> list[Sample]:
    instruments = PrometheusInstruments(telemetry.METHODS)
    instruments.watch(name, lambda: reading)
    return [s for family in instruments.collect() for s in family.samples if s.name == name]


@pytest.mark.parametrize("state", JournalState)
def test_the_journal_is_in_one_state(state: JournalState) -> None:
    samples = shown("warden_journal_state", readings.journal_state(state))
    assert {s.labels["state"]: s.value for s in samples} == {other: float(other is state) for other in JournalState}


def test_what_a_tenant_holds() -> None:
    reading = readings.held(["acme", "birch"], {"acme": (10, 20), "birch": (0, 5)}.__getitem__)
    assert reading == {
        ("acme", "kv_bytes"): 10, ("acme", "tensor_bytes"): 20, ("birch", "kv_bytes"): 0, ("birch", "tensor_bytes"): 5,
    }  # fmt: skip
    # Neither has made a call here, so they are summed.
    samples = shown("warden_quota_held_bytes", reading)
    assert {(s.labels["tenant"], s.labels["quantity"]): s.value for s in samples} == {
        ("(other)", "kv_bytes"): 10,
        ("(other)", "tensor_bytes"): 25,
    }


def test_an_info() -> None:
    [sample] = shown("warden_bundle_info", readings.info("sha256:abc"))
    assert (sample.labels, sample.value) == ({"digest": "sha256:abc"}, 1)
