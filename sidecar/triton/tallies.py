"""Counts each tenant's own calls by model and version, for its ModelStatistics: Triton's counts are of everybody."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["MODELS", "VERSIONS", "Tallies"]

MODELS: Final = 16_384  # tenants × models remembered, about 16 MB; beyond it the longest unused is forgotten
VERSIONS: Final = 8  # of one of them; beyond it the first seen


@dataclass(slots=True)
class _Tally:
    """Calls that ended, and how long they took in all, in ns; ``last_ms`` since the UNIX epoch."""

    succeeded: int = 0
    success_ns: int = 0
    failed: int = 0
    fail_ns: int = 0
    last_ms: int = 0


class Tallies:
    """Safe from several threads; nothing is kept over a restart, as Triton's own counts aren't."""

    def __init__(self, *, models: int = MODELS) -> None:
        self._most = models
        self._lock = threading.Lock()
        self._models: OrderedDict[tuple[str, str], dict[str, _Tally]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._models)

    def add(self, tenant: str, model: str, version: str, *, failed: bool, duration_ns: int, wall_ns: int) -> None:
        """One call that has ended. ``version`` is the one that answered; "" (none did) counts as the last one's."""
        with self._lock:
            tally = self._tally((tenant, model), version)
            if failed:
                tally.failed += 1
                tally.fail_ns += duration_ns
            else:
                tally.succeeded += 1
                tally.success_ns += duration_ns
            tally.last_ms = max(tally.last_ms, wall_ns // 1_000_000)

    def _tally(self, key: tuple[str, str], version: str) -> _Tally:
        versions = self._models.setdefault(key, {})
        self._models.move_to_end(key)
        tally = versions.get(version)
        if tally is not None and version and "" not in versions:  # nearly always
            return tally
        if len(self._models) > self._most:
            self._models.popitem(last=False)
        version = version or next(reversed(versions), "")
        if version and "" in versions:
            versions[version] = versions.pop("")
        if version not in versions and len(versions) >= VERSIONS:
            del versions[next(iter(versions))]
        return versions.setdefault(version, _Tally())

    def fill(self, tenant: str, statistics: Any) -> None:
        """A ModelStatistics, whose name and version are set, from the tenant's own calls.

        The sidecar does not know how much of a call Triton queued, so all of it is ``compute_infer``; each call is one
        inference and one execution, because how many shared a batch tells of others.
        """
        with self._lock:
            tally = self._models.get((tenant, statistics.name), {}).get(statistics.version, _Tally())
            statistics.last_inference = tally.last_ms
            statistics.inference_count = statistics.execution_count = tally.succeeded
            stats = statistics.inference_stats
            for part in (stats.success, stats.compute_infer):
                part.count, part.ns = tally.succeeded, tally.success_ns
            for part in (stats.queue, stats.compute_input, stats.compute_output):
                part.count = tally.succeeded
            stats.fail.count, stats.fail.ns = tally.failed, tally.fail_ns
