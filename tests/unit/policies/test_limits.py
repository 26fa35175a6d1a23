"""Limits: the plan's, but where the tenant's own document says otherwise."""

from __future__ import annotations

import pytest

from policies.document import LimitsDoc, PlanDoc
from policies.limits import resolve
from sidecar.core.model import Limits, RequestRate

PLAN = PlanDoc.model_validate(
    {
        "requests": {"rate": "600/m", "burst": 20},
        "tokens": {"per_minute": 1000},
        "concurrency": 4,
        "kv_memory": "1MiB",
        "tensor_memory": "unlimited",
    }
)


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ({}, Limits(RequestRate(10.0, 20), 1000, 4, 2**20, None)),
        ({"concurrency": 8}, Limits(RequestRate(10.0, 20), 1000, 8, 2**20, None)),
        ({"requests": {"rate": "1/s", "burst": 2}}, Limits(RequestRate(1.0, 2), 1000, 4, 2**20, None)),
        ({"tokens": "unlimited", "requests": "unlimited"}, Limits(None, None, 4, 2**20, None)),
        ({"priority": 2}, Limits(RequestRate(10.0, 20), 1000, 4, 2**20, None, priority=2)),
        ({"queue_timeout": "50ms"}, Limits(RequestRate(10.0, 20), 1000, 4, 2**20, None, queue_timeout_us=50_000)),
        ({"tensor_memory": "2KiB", "kv_memory": "unlimited"}, Limits(RequestRate(10.0, 20), 1000, 4, None, 2048)),
    ],
)
def test_resolves(overrides: dict[str, object], limits: Limits) -> None:
    assert resolve(PLAN, [LimitsDoc.model_validate(overrides)]) == limits


def test_of_several_overrides_each_limit_is_the_last_written() -> None:
    first, last = ({"concurrency": 8, "tokens": "unlimited"}, {"concurrency": "unlimited"})
    found = resolve(PLAN, [LimitsDoc.model_validate(first), LimitsDoc.model_validate(last)])
    assert found == Limits(RequestRate(10.0, 20), None, None, 2**20, None)
