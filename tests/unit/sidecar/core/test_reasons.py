"""The table of refusals is whole, and is DESIGN §6's."""

from __future__ import annotations

import grpc
import pytest

from sidecar.core.reasons import REASONS, Code, Reason

# DESIGN §6, as written there.
DESIGN = {
    "UNAUTHENTICATED": """CREDENTIAL_MISSING CREDENTIAL_AMBIGUOUS TOKEN_MALFORMED TOKEN_SIGNATURE TOKEN_EXPIRED
        TOKEN_NOT_YET_VALID TOKEN_ISSUER TOKEN_AUDIENCE TOKEN_REVOKED KEY_UNKNOWN KEY_EXPIRED KEY_REVOKED""",
    "PERMISSION_DENIED": """TENANT_UNKNOWN TENANT_SUSPENDED METHOD_NOT_ALLOWED POLICY_FORBIDS PARAMETER_NOT_ALLOWED
        RESIDENCY_PROCESSING RESIDENCY_STORAGE RESIDENCY_TELEMETRY""",
    "NOT_FOUND": "MODEL_NOT_FOUND",
    "INVALID_ARGUMENT": "REQUEST_MALFORMED REQUEST_AMBIGUOUS REQUEST_TOO_LARGE",
    "RESOURCE_EXHAUSTED": """RATE_REQUESTS RATE_TOKENS RATE_COMPUTE CONCURRENCY MEMORY_KV MEMORY_TENSOR
        UPSTREAM_QUEUE_FULL""",
    "UNAVAILABLE": "AUDIT_UNAVAILABLE KEYS_UNAVAILABLE UPSTREAM_UNAVAILABLE DRAINING",
    "DEADLINE_EXCEEDED": "UPSTREAM_TIMEOUT",
    "CANCELLED": "CLIENT_CANCELLED",
    "INTERNAL": "INTERNAL",
    "UNIMPLEMENTED": "METHOD_UNKNOWN",
}
# https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto says which HTTP status each code maps to.
HTTP = {
    Code.UNAUTHENTICATED: {401},
    Code.PERMISSION_DENIED: {403},
    Code.NOT_FOUND: {404},
    Code.INVALID_ARGUMENT: {400, 413},
    Code.RESOURCE_EXHAUSTED: {429},
    Code.UNAVAILABLE: {503},
    Code.DEADLINE_EXCEEDED: {504},
    Code.CANCELLED: {499},
    Code.INTERNAL: {500},
    Code.UNIMPLEMENTED: {501},
}


def test_every_reason_has_its_row_and_no_row_is_without_a_reason() -> None:
    assert set(REASONS) == set(Reason)


def test_the_codes_are_those_of_the_design() -> None:
    found = {Reason(name): Code[code] for code, names in DESIGN.items() for name in names.split()}
    assert found == {reason: row.code for reason, row in REASONS.items()}


def test_codes_are_numbered_as_grpc_numbers_them() -> None:
    assert {code.name: int(code) for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("reason", Reason)
def test_a_row_is_fit_to_be_told(reason: Reason) -> None:
    row = REASONS[reason]
    assert reason.value == reason.name
    assert row.http in HTTP[row.code]
    assert row.public.isascii()
    assert row.public == row.public.strip()
    # What passes by itself is worth a retry: overload and absence, nothing else.
    assert row.retryable is (row.code in {Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE})


def test_no_two_reasons_read_alike() -> None:
    assert len({row.public for row in REASONS.values()}) == len(REASONS)
