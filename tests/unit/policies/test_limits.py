"""Limits: the plan's, but where the tenant's own document says otherwise."""

from __future__ import annotations

import pytest

from policies.document import LimitsDoc, PlanDoc
from policies.limits import contradictions, overcommitted, resolve, too_small
from sidecar.core.model import (
    Contract,
    KvProfile,
    Limits,
    ModelProfile,
    PoolSize,
    Quantity,
    RequestRate,
    Share,
)

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


def test_what_a_plan_may_leave_out_is_read_where_it_is_written() -> None:
    plan = PlanDoc.model_validate(
        {
            **PLAN.model_dump(include={"concurrency"}),
            "requests": "unlimited",
            "tokens": {"per_minute": 1000, "reserve": "expected"},
            "kv_memory": "unlimited",
            "tensor_memory": "unlimited",
            "compute": {"seconds_per_minute": 1.5},
            "share": {"guaranteed": "25%", "burst": "50.5%"},
            "shadow": ["tokens"],
            "on_limit": "queue 200ms",
            "per_model": {"chat": {"concurrency": 2}},
            "per_key": {"requests": {"rate": "1/s", "burst": 1}, "shadow": ["requests"]},
        }
    )
    assert resolve(plan, []) == Limits(
        tokens_per_minute=1000,
        concurrency=4,
        compute_per_minute=1500,
        expected=True,
        shadow=frozenset({Quantity.TOKENS}),
        queue_ns=200_000_000,
        share=Share(250, 505),
        models=(("chat", Limits(concurrency=2)),),
        per_key=Limits(requests=RequestRate(1.0, 1), shadow=frozenset({Quantity.REQUESTS})),
    )


def test_a_narrower_limit_above_the_wider_one_is_told() -> None:
    limits = Limits(concurrency=4, models=(("chat", Limits(concurrency=5)),), per_key=Limits(concurrency=4))
    assert list(contradictions(limits)) == [
        "per_model chat: concurrency (5) is more than the tenant's own (4), so it limits nothing"
    ]


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ({"requests": {"rate": "0/s", "burst": 1}}, "greater than 0"),
        ({"requests": {"rate": "-1/s", "burst": 1}}, "is not a rate"),
        ({"requests": {"rate": "2000000/s", "burst": 1}}, "less than or equal to 1000000"),
        ({"requests": {"rate": "1/s", "burst": 0}}, "greater than 0"),
        ({"tokens": {"per_minute": 0}}, "greater than 0"),
        ({"tokens": {"per_minute": 10**13}}, "less than or equal"),
        ({"tokens": {"per_minute": 5, "reserve": "some"}}, "'full' or 'expected'"),
        ({"compute": {"seconds_per_minute": -1}}, "greater than 0"),
        ({"concurrency": True}, "valid integer"),
        ({"kv_memory": "0GiB"}, "greater than 0"),
        ({"share": {"guaranteed": "60%", "burst": "50%"}}, "guaranteed is more than burst"),
        ({"share": {"burst": "0%"}}, "admits nothing"),
        ({"share": {"burst": "101%"}}, "less than or equal to 1000"),
        ({"on_limit": "queue"}, "is not a duration"),
        ({"on_limit": "queue 1h"}, "at most 10s"),
        ({"on_limit": "wait"}, "should be refuse, or queue"),
        ({"shadow": ["speed"]}, "Input should be"),
    ],
)
def test_absurd_limits_are_refused(written: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        LimitsDoc.model_validate(written)


def test_limits_that_no_call_could_ever_meet_are_told() -> None:
    chat = ModelProfile("chat", Contract.VLLM, KvProfile(10, 16), default_tokens=16)
    inner = Limits(kv_bytes=159, tokens_per_minute=16)
    wide = Limits(kv_bytes=160, tokens_per_minute=17, models=(("ch*", inner),))
    assert list(too_small(wide, [chat], "*")) == [
        "kv_memory (159 bytes) is less than one block of chat (160)",
        "tokens.per_minute (16) never fits a call of chat at its default_tokens",
    ]
    assert list(too_small(wide, [chat], "embed*")) == []


def test_more_than_a_whole_pool_cannot_be_guaranteed() -> None:
    pooled = ModelProfile("chat", pool=PoolSize(concurrency=4))
    assert overcommitted(pooled, [600, 400]) is None
    assert overcommitted(pooled, [600, 401]) == "100.1% of the pool is guaranteed, to 2 tenants together"
    assert overcommitted(ModelProfile("chat"), [600, 401]) is None
