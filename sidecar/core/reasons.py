"""The one table of refusals: reason → gRPC code, HTTP status, retryable, public text (DESIGN §6)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Code(IntEnum):
    """gRPC status codes, as numbered by the gRPC specification (``statuscodes.md``)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(StrEnum):
    """Why a call was refused or ended: the ``ErrorInfo.reason`` a caller sees and the audit log keeps."""

    CREDENTIAL_MISSING = "CREDENTIAL_MISSING"
    CREDENTIAL_AMBIGUOUS = "CREDENTIAL_AMBIGUOUS"
    TOKEN_MALFORMED = "TOKEN_MALFORMED"
    TOKEN_SIGNATURE = "TOKEN_SIGNATURE"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    TOKEN_NOT_YET_VALID = "TOKEN_NOT_YET_VALID"
    TOKEN_ISSUER = "TOKEN_ISSUER"
    TOKEN_AUDIENCE = "TOKEN_AUDIENCE"
    TOKEN_REVOKED = "TOKEN_REVOKED"
    KEY_UNKNOWN = "KEY_UNKNOWN"
    KEY_EXPIRED = "KEY_EXPIRED"
    KEY_REVOKED = "KEY_REVOKED"
    TENANT_UNKNOWN = "TENANT_UNKNOWN"
    TENANT_SUSPENDED = "TENANT_SUSPENDED"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    POLICY_FORBIDS = "POLICY_FORBIDS"
    PARAMETER_NOT_ALLOWED = "PARAMETER_NOT_ALLOWED"
    RESIDENCY_PROCESSING = "RESIDENCY_PROCESSING"
    RESIDENCY_STORAGE = "RESIDENCY_STORAGE"
    RESIDENCY_TELEMETRY = "RESIDENCY_TELEMETRY"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    REQUEST_MALFORMED = "REQUEST_MALFORMED"
    REQUEST_AMBIGUOUS = "REQUEST_AMBIGUOUS"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    RATE_REQUESTS = "RATE_REQUESTS"
    RATE_TOKENS = "RATE_TOKENS"
    RATE_COMPUTE = "RATE_COMPUTE"
    CONCURRENCY = "CONCURRENCY"
    MEMORY_KV = "MEMORY_KV"
    MEMORY_TENSOR = "MEMORY_TENSOR"
    UPSTREAM_QUEUE_FULL = "UPSTREAM_QUEUE_FULL"
    AUDIT_UNAVAILABLE = "AUDIT_UNAVAILABLE"
    KEYS_UNAVAILABLE = "KEYS_UNAVAILABLE"
    UPSTREAM_UNAVAILABLE = "UPSTREAM_UNAVAILABLE"
    DRAINING = "DRAINING"
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"
    CLIENT_CANCELLED = "CLIENT_CANCELLED"
    INTERNAL = "INTERNAL"
    METHOD_UNKNOWN = "METHOD_UNKNOWN"


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """How one reason is told to a caller."""

    code: Code
    http: int
    public: str
    retryable: bool = False


_U, _P = Code.UNAUTHENTICATED, Code.PERMISSION_DENIED
_I, _R, _N = Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE

REASONS: Final[dict[Reason, ReasonRow]] = {
    Reason.CREDENTIAL_MISSING: ReasonRow(_U, 401, "no credential: send an API key or a bearer token"),
    Reason.CREDENTIAL_AMBIGUOUS: ReasonRow(_U, 401, "more than one credential: send exactly one"),
    Reason.TOKEN_MALFORMED: ReasonRow(_U, 401, "the token cannot be read"),
    Reason.TOKEN_SIGNATURE: ReasonRow(_U, 401, "the token's signature does not verify"),
    Reason.TOKEN_EXPIRED: ReasonRow(_U, 401, "the token has expired"),
    Reason.TOKEN_NOT_YET_VALID: ReasonRow(_U, 401, "the token is not valid yet"),
    Reason.TOKEN_ISSUER: ReasonRow(_U, 401, "the token's issuer may not assert this"),
    Reason.TOKEN_AUDIENCE: ReasonRow(_U, 401, "the token is meant for another audience"),
    Reason.TOKEN_REVOKED: ReasonRow(_U, 401, "the token has been revoked"),
    Reason.KEY_UNKNOWN: ReasonRow(_U, 401, "the API key is not known"),
    Reason.KEY_EXPIRED: ReasonRow(_U, 401, "the API key has expired"),
    Reason.KEY_REVOKED: ReasonRow(_U, 401, "the API key has been revoked"),
    Reason.TENANT_UNKNOWN: ReasonRow(_P, 403, "the tenant is not known here"),
    Reason.TENANT_SUSPENDED: ReasonRow(_P, 403, "the tenant is suspended"),
    Reason.METHOD_NOT_ALLOWED: ReasonRow(_P, 403, "this method is not open to this role"),
    Reason.POLICY_FORBIDS: ReasonRow(_P, 403, "a policy forbids this call"),
    Reason.PARAMETER_NOT_ALLOWED: ReasonRow(_P, 403, "a parameter of the request is not allowed"),
    Reason.RESIDENCY_PROCESSING: ReasonRow(_P, 403, "this data may not be processed in this region"),
    Reason.RESIDENCY_STORAGE: ReasonRow(_P, 403, "this call's record may not be stored in this region"),
    Reason.RESIDENCY_TELEMETRY: ReasonRow(_P, 403, "this call's telemetry may not leave for its collector"),
    Reason.MODEL_NOT_FOUND: ReasonRow(Code.NOT_FOUND, 404, "no such model"),
    Reason.REQUEST_MALFORMED: ReasonRow(_I, 400, "the request cannot be read"),
    Reason.REQUEST_AMBIGUOUS: ReasonRow(_I, 400, "the request can be read in more than one way"),
    Reason.REQUEST_TOO_LARGE: ReasonRow(_I, 413, "the request is too large"),
    Reason.RATE_REQUESTS: ReasonRow(_R, 429, "request rate exceeded", retryable=True),
    Reason.RATE_TOKENS: ReasonRow(_R, 429, "token budget exceeded", retryable=True),
    Reason.RATE_COMPUTE: ReasonRow(_R, 429, "compute-time budget exceeded", retryable=True),
    Reason.CONCURRENCY: ReasonRow(_R, 429, "too many calls in flight", retryable=True),
    Reason.MEMORY_KV: ReasonRow(_R, 429, "KV-cache memory quota exceeded", retryable=True),
    Reason.MEMORY_TENSOR: ReasonRow(_R, 429, "tensor memory quota exceeded", retryable=True),
    Reason.UPSTREAM_QUEUE_FULL: ReasonRow(_R, 429, "the model's queue is full", retryable=True),
    Reason.AUDIT_UNAVAILABLE: ReasonRow(_N, 503, "the call cannot be recorded, so it is not forwarded", retryable=True),
    Reason.KEYS_UNAVAILABLE: ReasonRow(_N, 503, "API keys cannot be checked at the moment", retryable=True),
    Reason.UPSTREAM_UNAVAILABLE: ReasonRow(_N, 503, "the inference server is not available", retryable=True),
    Reason.DRAINING: ReasonRow(_N, 503, "this sidecar is shutting down", retryable=True),
    Reason.UPSTREAM_TIMEOUT: ReasonRow(Code.DEADLINE_EXCEEDED, 504, "the call's deadline has passed"),
    Reason.CLIENT_CANCELLED: ReasonRow(Code.CANCELLED, 499, "the client cancelled the call"),
    Reason.INTERNAL: ReasonRow(Code.INTERNAL, 500, "internal error; the call id names it"),
    Reason.METHOD_UNKNOWN: ReasonRow(Code.UNIMPLEMENTED, 501, "no such method"),
}
