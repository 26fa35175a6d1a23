"""What one tenant's running calls hold: slots, KV-cache bytes, tensor bytes; and how long they usually hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WAIT_BOUNDS: Final = (0.1, 30.0)  # seconds
_FIRST_GUESS_NS: Final = 1_000_000_000  # a call's duration before any was seen
_WEIGHT: Final = 8  # the mean follows the last 8 or so calls


@dataclass(slots=True)
class Ledger:
    """Balances of one tenant. Booked whether limited or not, so that a limit set later finds them right."""

    calls: int = 0
    kv_bytes: int = 0
    tensor_bytes: int = 0
    mean_ns: int = _FIRST_GUESS_NS

    def book(self, kv_bytes: int, tensor_bytes: int) -> None:
        self.calls += 1
        self.kv_bytes += kv_bytes
        self.tensor_bytes += tensor_bytes

    def release(self, kv_bytes: int, tensor_bytes: int, lasted_ns: int) -> None:
        """Give back what one call held for ``lasted_ns``. Going below nothing is a broken contract: ours."""
        calls, kv, tensor = self.calls - 1, self.kv_bytes - kv_bytes, self.tensor_bytes - tensor_bytes
        if calls < 0 or kv < 0 or tensor < 0:
            raise RuntimeError("released more than was held")
        self.calls, self.kv_bytes, self.tensor_bytes = calls, kv, tensor
        self.mean_ns += (max(0, lasted_ns) - self.mean_ns) // _WEIGHT

    def wait_s(self, missing: int, held: int) -> float:
        """A guess at the seconds until ``missing`` of ``held`` come back, from this tenant's own recent calls alone.

        Calls end evenly over their mean duration, so the share that is missing takes that share of it; nothing of other
        tenants goes into it, so nothing of them can be learnt from it.
        """
        share = min(1.0, missing / held) if held > 0 else 1.0
        lowest, highest = WAIT_BOUNDS
        return round(min(highest, max(lowest, share * self.mean_ns / 1e9)), 3)
