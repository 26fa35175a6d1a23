"""How a quota's refusal is told: reason, text, QuotaFailure's fields, and when to try again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.core.model import Denial, Quantity
from sidecar.core.reasons import Reason
from sidecar.quotas.account import Account, Ask, Shortfall

__all__ = ["NAMES", "REASON_OF", "denial", "refusal"]

REASON_OF: Final[dict[Quantity, Reason]] = {
    Quantity.REQUESTS: Reason.RATE_REQUESTS,
    Quantity.TOKENS: Reason.RATE_TOKENS,
    Quantity.COMPUTE: Reason.RATE_COMPUTE,
    Quantity.CONCURRENCY: Reason.CONCURRENCY,
    Quantity.KV_BYTES: Reason.MEMORY_KV,
    Quantity.TENSOR_BYTES: Reason.MEMORY_TENSOR,
}

NAMES: Final[dict[Quantity, str]] = {
    Quantity.REQUESTS: "request rate",
    Quantity.TOKENS: "token budget",
    Quantity.COMPUTE: "compute time",
    Quantity.CONCURRENCY: "concurrency",
    Quantity.KV_BYTES: "KV-cache memory",
    Quantity.TENSOR_BYTES: "tensor memory",
}

Short = tuple[Account, Shortfall]


def refusal(accounts: Sequence[Account], ask: Ask, at_ns: int) -> tuple[Denial | None, Denial | None]:
    """What refuses a call, and what would but for shadow; each the first quota that is short, in ``Quantity``'s order.

    What can never fit goes first: told to wait for another, the caller would wait in vain. The time to retry at is the
    one by which every quota that is enforced has room.
    """
    short: list[Short] = [(account, lack) for account in accounts for lack in account.shortfalls(ask, at_ns)]
    enforced = [each for each in short if each[1].quantity not in each[0].limits.shadow]
    shadowed = [each for each in short if each[1].quantity in each[0].limits.shadow]
    return _first(enforced), _first(shadowed)


def _first(short: list[Short]) -> Denial | None:
    if not short:
        return None
    order = list(Quantity)
    short.sort(key=lambda each: order.index(each[1].quantity))  # stable: the tenant's before its model's and key's
    never = next((each for each in short if each[1].wait is None), None)
    if never is not None:
        return denial(*never, None)
    account, lack = short[0]
    return denial(account, lack, max(each[1].wait for each in short if each[1].wait is not None))


def denial(account: Account, short: Shortfall, retry_after: float | None) -> Denial:
    """``quota_subject`` and ``quota_description`` are QuotaFailure's fields (google/rpc/error_details.proto)."""
    quantity = short.quantity
    detail = f"{NAMES[quantity]} {short.limit}"
    if short.asks:
        detail += f"; this call asks for {short.asks}"
    if short.wait is None:
        detail += ", which can never fit"
    metadata = (
        ("quota_subject", account.subject),
        ("quota_description", detail),
        ("quota", quantity.value),
        ("limit", short.limit),
    )
    queue_ns = 0 if short.wait is None else account.limits.queue_ns
    rule = f"quota:{quantity.value}"
    return Denial(
        REASON_OF[quantity], detail, retry_after, rule=rule, metadata=metadata, queue_ns=queue_ns, policy=short.policy
    )
