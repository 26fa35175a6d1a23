"""What counts against the error budget: faults of the sidecar and of Triton, never a policy's refusal (facts: SLO)."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import Quantity
from sidecar.core.reasons import Code, Reason
from sidecar.telemetry.catalogue import Fault

__all__ = ["FAULTS", "THROTTLES", "of_reason", "of_status"]

# DRAINING isn't here: a rolling update refuses a few calls that any other pod takes, and says when to retry.
# UPSTREAM_QUEUE_FULL is: the tenant was within every quota of its own.
FAULTS: Final[dict[Reason, Fault]] = {
    Reason.AUDIT_UNAVAILABLE: Fault.WARDEN,
    Reason.KEYS_UNAVAILABLE: Fault.WARDEN,
    Reason.INTERNAL: Fault.WARDEN,
    Reason.UPSTREAM_UNAVAILABLE: Fault.UPSTREAM,
    Reason.UPSTREAM_TIMEOUT: Fault.UPSTREAM,
    Reason.UPSTREAM_QUEUE_FULL: Fault.UPSTREAM,
}

# The RPC conventions' server errors: the only statuses of Triton's own that are not the caller's doing.
_SERVER_ERRORS: Final = frozenset(
    {Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS}
)

# Which of the tenant's quotas a refusal speaks of.
THROTTLES: Final[dict[Reason, Quantity]] = {
    Reason.RATE_REQUESTS: Quantity.REQUESTS,
    Reason.RATE_TOKENS: Quantity.TOKENS,
    Reason.CONCURRENCY: Quantity.CONCURRENCY,
    Reason.MEMORY_KV: Quantity.KV_BYTES,
    Reason.MEMORY_TENSOR: Quantity.TENSOR_BYTES,
}


def of_reason(reason: Reason) -> Fault | None:
    """Whose fault a reason is; None where the sidecar did what it was told to."""
    return FAULTS.get(reason)


def of_status(reason: Reason | None, status: Code) -> Fault | None:
    """Whose fault a failed call is: by our reason where there is one, else by Triton's status."""
    if reason is not None:
        return of_reason(reason)
    return Fault.UPSTREAM if status in _SERVER_ERRORS else None
