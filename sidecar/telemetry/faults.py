"""What counts against the error budget: faults of the sidecar and of Triton, never a policy's refusal (facts: SLO)."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import Quantity
from sidecar.core.reasons import Code, Reason
from sidecar.telemetry.catalogue import Fault

__all__ = ["FAULTS", "OUR_BOUNDS", "THROTTLES", "of_reason", "of_status", "throttled"]

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

# The rules of bounds that all callers share: reached, they refuse who is within every quota of its own.
OUR_BOUNDS: Final = frozenset({"bounds.buffer_bytes"})

# Which of the tenant's quotas a refusal speaks of.
THROTTLES: Final[dict[Reason, Quantity]] = {
    Reason.RATE_REQUESTS: Quantity.REQUESTS,
    Reason.RATE_TOKENS: Quantity.TOKENS,
    Reason.RATE_COMPUTE: Quantity.COMPUTE,
    Reason.CONCURRENCY: Quantity.CONCURRENCY,
    Reason.MEMORY_KV: Quantity.KV_BYTES,
    Reason.MEMORY_TENSOR: Quantity.TENSOR_BYTES,
}


def of_reason(reason: Reason, rule: str = "") -> Fault | None:
    """Whose fault a reason is; None where the sidecar did what it was told to. ``rule``: what decided, a denial's."""
    return Fault.WARDEN if rule in OUR_BOUNDS else FAULTS.get(reason)


def throttled(reason: Reason, rule: str) -> Quantity | None:
    """Which of the tenant's own quotas refused; None where a bound of the sidecar did, which has the same reason."""
    return THROTTLES.get(reason) if rule.startswith("quota:") else None


def of_status(reason: Reason | None, status: Code, rule: str = "") -> Fault | None:
    """Whose fault a failed call is: by our reason where there is one, else by Triton's status."""
    if reason is not None:
        return of_reason(reason, rule)
    return Fault.UPSTREAM if status in _SERVER_ERRORS else None
