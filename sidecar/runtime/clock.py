"""The one clock: wall and monotonic time read together; everything below is passed ``Instant``s."""

from __future__ import annotations

import time

from sidecar.core.model import Instant


def now() -> Instant:
    return Instant(time.time_ns(), time.monotonic_ns())
