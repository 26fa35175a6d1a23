"""Every reason and every status is judged: whose fault it is, or nobody's."""

from __future__ import annotations

import pytest

from sidecar.core.model import Quantity
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.quotas.local import REASON_OF
from sidecar.telemetry import faults
from sidecar.telemetry.catalogue import Fault
from sidecar.transports.exchange import BLOCKED, NO_BUFFER

WARDEN = {Reason.AUDIT_UNAVAILABLE, Reason.KEYS_UNAVAILABLE, Reason.INTERNAL}
UPSTREAM = {Reason.UPSTREAM_UNAVAILABLE, Reason.UPSTREAM_TIMEOUT, Reason.UPSTREAM_QUEUE_FULL}


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_somebodys_fault_or_nobodys(reason: Reason) -> None:
    expected = Fault.WARDEN if reason in WARDEN else Fault.UPSTREAM if reason in UPSTREAM else None
    assert faults.of_reason(reason) is expected
    # A reason counts before the status: DRAINING is UNAVAILABLE, and yet spends nothing.
    assert faults.of_status(reason, REASONS[reason].code) is expected


@pytest.mark.parametrize("code", Code)
def test_a_status_of_tritons_own_is_its_fault_only_if_the_conventions_say_so(code: Code) -> None:
    server_errors = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
    assert faults.of_status(None, code) is (Fault.UPSTREAM if code.name in server_errors else None)


def test_a_full_buffer_is_ours_and_a_blocked_client_its_own() -> None:
    assert faults.of_reason(NO_BUFFER.reason, NO_BUFFER.rule) is Fault.WARDEN
    assert faults.of_status(NO_BUFFER.reason, Code.RESOURCE_EXHAUSTED, NO_BUFFER.rule) is Fault.WARDEN
    assert faults.of_reason(BLOCKED.reason, BLOCKED.rule) is None
    assert [faults.throttled(each.reason, each.rule) for each in (NO_BUFFER, BLOCKED)] == [None, None]


@pytest.mark.parametrize("quantity", Quantity)
def test_every_quota_of_the_tenants_own_throttles(quantity: Quantity) -> None:
    assert faults.throttled(REASON_OF[quantity], f"quota:{quantity}") is quantity


def test_each_quota_has_its_reason() -> None:
    assert set(faults.THROTTLES.values()) == set(Quantity)
    assert all(REASONS[reason].code is Code.RESOURCE_EXHAUSTED for reason in faults.THROTTLES)
