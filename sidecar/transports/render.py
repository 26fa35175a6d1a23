"""The one rescue point: a Denial as a gRPC status with details, as an in-band stream error, as an HTTP problem."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from google.rpc import error_details_pb2, status_pb2

from sidecar.core.model import Allowance, Denial
from sidecar.core.reasons import REASONS, Reason
from sidecar.triton import answers

DOMAIN: Final = "warden"
REGIONS_METADATA: Final = "allowed_regions"  # of ErrorInfo
REGIONS_HEADER: Final = "x-warden-allowed-regions"
_QUOTAS: Final = frozenset(
    {
        Reason.RATE_REQUESTS,
        Reason.RATE_TOKENS,
        Reason.RATE_COMPUTE,
        Reason.CONCURRENCY,
        Reason.MEMORY_KV,
        Reason.MEMORY_TENSOR,
        Reason.UPSTREAM_QUEUE_FULL,
    }
)


RateFields = tuple[str, str]
"""``RateLimit-Policy`` and ``RateLimit`` (draft-ietf-httpapi-ratelimit-headers-10), lists of structured items."""


@dataclass(frozen=True, slots=True)
class Status:
    """How an RPC ends for its client: gRPC code, plain text, and ``grpc-status-details-bin`` (not yet base64).

    ``regions``: where the call may go instead, between commas (``x-warden-allowed-regions``); None: place isn't the
    matter.
    """

    code: int
    message: str = ""
    details: bytes = b""
    regions: str | None = None
    limits: RateFields | None = None


OK: Final = Status(0)


def text(denial: Denial) -> str:
    """``[REASON] text; retry in 1.5s``: what a stock client shows its user."""
    retry = "" if denial.retry_after is None else f"; retry in {_seconds(denial.retry_after)}s"
    return f"[{denial.reason}] {denial.public}{retry}"


def _seconds(wait: float) -> str:
    """Plain digits, up to the next millisecond: who waits as long as the text says passes, as by RetryInfo."""
    ms = max(1, ceil(round(wait * 1000, 6)))
    return f"{ms // 1000}.{ms % 1000:03}".rstrip("0").rstrip(".")


def status(denial: Denial, call_id: str) -> Status:
    """The denial with ErrorInfo, and RetryInfo and QuotaFailure where they help."""
    row = REASONS[denial.reason]
    message = text(denial)
    rich = status_pb2.Status(code=row.code, message=message)
    # A rule would tell a model that is another's from one that Triton doesn't have.
    rule = {"rule": denial.rule} if denial.rule and denial.reason is not Reason.MODEL_NOT_FOUND else {}
    told = dict(denial.metadata)
    subject = told.pop("quota_subject", denial.rule or denial.reason.lower())
    description = told.pop("quota_description", denial.public)
    metadata = {"call_id": call_id, **rule, **told}
    info = error_details_pb2.ErrorInfo(reason=denial.reason, domain=DOMAIN, metadata=metadata)
    rich.details.add().Pack(info)
    if denial.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(ceil(denial.retry_after * 1e9))
        rich.details.add().Pack(retry)
    if denial.reason in _QUOTAS:
        failure = error_details_pb2.QuotaFailure()
        failure.violations.add(subject=subject, description=description)
        rich.details.add().Pack(failure)
    return Status(row.code, message, rich.SerializeToString(), _regions(denial), _refusing(denial))


def _regions(denial: Denial) -> str | None:
    return next((value for name, value in denial.metadata if name == REGIONS_METADATA), None)


def in_band(denial: Denial, request_id: str) -> bytes:
    """One refused message of a living ModelStreamInfer, as a ModelStreamInferResponse."""
    parameters: dict[str, str | int | bool] = {"warden_reason": str(denial.reason), "triton_final_response": True}
    if denial.retry_after is not None:
        parameters["warden_retry_after_ms"] = ceil(denial.retry_after * 1000)
    regions = _regions(denial)
    if regions is not None:
        parameters["warden_allowed_regions"] = regions
    message: bytes = answers.stream_error(text(denial), request_id, parameters)
    return message


def in_band_status(ended: Status, request_id: str) -> bytes:
    """An upstream RPC's bad end, told on a client stream that lives on."""
    message: bytes = answers.stream_error(ended.message, request_id, {"triton_final_response": True})
    return message


def details_header(details: bytes) -> bytes:
    """``grpc-status-details-bin``: base64 without padding, as gRPC's binary headers are."""
    return base64.b64encode(details).rstrip(b"=")


def ok(left: Sequence[Allowance]) -> Status:
    """Well, with what the caller has left of its own limits of time."""
    if not left:
        return OK
    stated = ", ".join([f'"{each.quantity}";q={each.quota};w={each.window}' for each in left])
    return Status(0, limits=(stated, ", ".join([f'"{each.quantity}";r={each.left};t={each.full_s}' for each in left])))


def _refusing(denial: Denial) -> RateFields | None:
    """Of the quota that refused only: ``q`` and ``w`` state it, ``r`` is what is left for such a call, ``t`` the
    seconds until it may be made. None for a refusal that is no quota's of the caller's own.
    """
    quota, window = denial.policy
    if not quota:
        return None
    name = dict(denial.metadata).get("quota", "default")
    stated = f'"{name}";q={quota}' + (f";w={window}" if window else "")
    return stated, f'"{name}";r=0' + ("" if denial.retry_after is None else f";t={ceil(denial.retry_after)}")


def rate_headers(fields: RateFields | None) -> list[tuple[bytes, bytes]]:
    """As header or trailer fields."""
    if fields is None:
        return []
    return [(b"ratelimit-policy", fields[0].encode()), (b"ratelimit", fields[1].encode())]


def rate_limit(denial: Denial) -> list[tuple[bytes, bytes]]:
    """A refusal's fields."""
    return rate_headers(_refusing(denial))


def problem(denial: Denial, call_id: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """HTTP status, headers and an RFC 9457 body."""
    row = REASONS[denial.reason]
    body = {
        "type": f"urn:triton-warden:reason:{denial.reason}",
        "title": row.public,
        "status": row.http,
        "detail": denial.public,
        "reason": str(denial.reason),
        "call_id": call_id,
    }
    headers = [(b"content-type", b"application/problem+json"), (b"x-warden-call-id", call_id.encode())]
    regions = _regions(denial)
    if regions is not None:
        headers.append((REGIONS_HEADER.encode(), regions.encode()))
    if denial.retry_after is not None:
        headers.append((b"retry-after", str(max(1, ceil(denial.retry_after))).encode()))
    headers += rate_limit(denial)
    return row.http, headers, json.dumps(body).encode()
