"""What guards hold back of a stream: sent in order, cut, or dropped; counted in the buffers and given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from policies.document import GuardDoc
from policies.guards import compile_guards
from policies.watching import Hold, Watch
from sidecar.core.governor import Governor, Mode
from sidecar.transports import render
from sidecar.transports.exchange import UpstreamEnd
from tests.support.core import FakePorts
from tests.support.relay import FINAL, Rpc, ask, token, until
from tests.support.wire import OK_END, FakeUpstream, quiet

MS = 1_000_000
ERROR = UpstreamEnd(14, "gone")


def guarded(*, hold: Hold | None = None, pattern: str = "secret", **world: Any) -> dict[str, Any]:
    """A world in which the tenant's outputs may not hold ``pattern``."""
    doc = GuardDoc.model_validate({"id": "word", "on": "output", "patterns": [pattern], "then": "deny"})
    return {"ports": FakePorts(guards=compile_guards([doc], hold)), **world}


async def test_held_messages_come_in_order_and_before_the_end() -> None:
    rpc = Rpc(FakeUpstream([*map(token, [b"a ", b"b ", b"c "]), FINAL]), **guarded(hold=Hold(100, 10**12)))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a ", "b ", "c "]
    assert rpc.world.outcomes == {"call-1/1": ("completed", "")}
    rpc.world.assert_even()
    await quiet()


async def test_of_what_is_forbidden_nothing_is_sent_and_nothing_stays_held() -> None:
    pieces = [b"a" * 60, b"b" * 30, b" the se", b"cr", b"et is", b" out ", b"x" * 60]
    rpc = Rpc(FakeUpstream([*map(token, pieces), FINAL]), **guarded(hold=Hold(20, 10**12)))
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a" * 60, "POLICY_FORBIDS"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "POLICY_FORBIDS")}
    assert rpc.upstream.calls[0].cancelled
    rpc.world.assert_even()
    await quiet()


async def test_what_is_held_goes_out_before_a_models_error() -> None:
    rpc = Rpc(FakeUpstream([token(b"a "), token(b"b "), ERROR]), **guarded(hold=Hold(100, 10**12)))
    await rpc.run(ask())
    assert rpc.told[:2] == ["a ", "b "]
    assert len(rpc.told) == 3
    rpc.world.assert_even()


async def test_what_is_held_when_a_model_fails_is_searched_first() -> None:
    rpc = Rpc(FakeUpstream([token(b"a "), token(b"secret"), ERROR]), **guarded(hold=Hold(100, 10**12)))
    await rpc.run(ask())
    assert not any("secret" in each or each == "a " for each in rpc.told)
    rpc.world.assert_even()


async def test_an_upstream_that_ends_without_a_final_response_is_searched_to_its_end() -> None:
    world = guarded(hold=Hold(100, 10**12), pattern=r"secret\b")
    rpc = Rpc(FakeUpstream([token(b"a "), token(b"secret"), OK_END]), **world)
    await rpc.run(ask())
    assert rpc.told == ["POLICY_FORBIDS"]
    assert rpc.world.outcomes == {"call-1/1": ("failed", "POLICY_FORBIDS")}
    rpc.world.assert_even()


async def test_a_guard_that_fails_at_the_end_leaves_no_call_open(monkeypatch: pytest.MonkeyPatch) -> None:
    rpc = Rpc(FakeUpstream([token(b"a "), OK_END]), **guarded(hold=Hold(100, 10**12)))
    monkeypatch.setattr(Watch, "finish", _broken)
    assert await rpc.run(ask()) == render.OK
    assert not any("a " in each for each in rpc.told)
    assert rpc.world.outcomes == {"call-1/1": ("failed", "INTERNAL")}
    rpc.world.assert_even()


async def test_what_may_wait_no_longer_is_sent_by_the_alarm() -> None:
    gate = asyncio.Event()
    rpc = Rpc(FakeUpstream([token(b"a "), gate, token(b"b "), FINAL]), **guarded(hold=Hold(100, 5 * MS)))
    running = asyncio.create_task(rpc.run(ask()))
    await until(lambda: rpc.world.budget.used > len(ask()))
    assert rpc.told == []
    rpc.world.clock.pass_ms(6)
    async with asyncio.timeout(20):
        while rpc.told != ["a "]:
            await asyncio.sleep(0.001)
    gate.set()
    assert await running == render.OK
    assert rpc.told == ["a ", "b "]
    rpc.world.assert_even()
    await quiet()


async def test_a_doubt_that_lasts_too_long_cuts_the_call() -> None:
    gate = asyncio.Event()
    world = guarded(hold=Hold(4, 5 * MS), pattern=r"\bass\b")
    rpc = Rpc(FakeUpstream([token(b"an "), token(b"ass"), gate, token(b"umption"), FINAL]), **world)
    running = asyncio.create_task(rpc.run(ask()))
    await until(lambda: rpc.world.budget.used == len(ask()) + len(token(b"an ")) + len(token(b"ass")))
    rpc.world.clock.pass_ms(6)
    async with asyncio.timeout(20):
        assert await running == render.OK
    assert rpc.told[-1] == "POLICY_FORBIDS"
    assert "ass" not in rpc.told
    assert rpc.world.outcomes == {"call-1/1": ("failed", "POLICY_FORBIDS")}
    rpc.world.assert_even()
    await quiet()


async def test_what_is_held_of_a_cancelled_call_is_given_back_unsent() -> None:
    rpc = Rpc(FakeUpstream([token(b"a ")]), **guarded(hold=Hold(100, 10**12)))
    running = asyncio.create_task(rpc.run(ask()))
    await until(lambda: rpc.world.budget.used > len(ask()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert rpc.told == []
    rpc.world.assert_even()
    await quiet()


async def test_the_buffers_bound_what_is_held() -> None:
    flood = [token(b"x" * 500) for _ in range(20)]
    world = guarded(hold=Hold(16_384, 10**12), buffer=6_000)
    rpc = Rpc(FakeUpstream([*flood, FINAL]), **world)
    status = await rpc.run(ask())
    assert status.code != 0
    assert rpc.world.outcomes == {"call-1/1": ("failed", "MEMORY_TENSOR")}
    rpc.world.assert_even()
    await quiet()


async def test_mode_observe_holds_nothing() -> None:
    rpc = Rpc(
        FakeUpstream([token(b"a secret"), token(b"b"), FINAL]), **guarded(hold=Hold(100, 10**12)), mode=Mode.OBSERVE
    )
    assert await rpc.run(ask()) == render.OK
    assert rpc.told == ["a secret", "b"]
    rpc.world.assert_even()


async def test_a_bug_in_a_guard_crashes_the_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    rpc = Rpc(FakeUpstream([token(b"a "), gate]), **guarded(hold=Hold(100, 5 * MS)))
    monkeypatch.setattr(Governor, "due", _broken)
    running = asyncio.create_task(rpc.run(ask()))
    await until(lambda: rpc.world.budget.used > len(ask()))
    rpc.world.clock.pass_ms(6)
    async with asyncio.timeout(20):
        assert await running == render.OK
    assert rpc.told == ["INTERNAL"]
    assert [str(crash) for crash in rpc.world.crashes] == ["broken"]
    rpc.world.assert_even()


def _broken(*_: object) -> None:
    raise RuntimeError("broken")
