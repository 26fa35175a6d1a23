"""`on_limit: queue` on both wires: calls wait in order, others of the stream go on, a deadline and a cancel end it."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from tests.support.sidecar import Bare, Sidecar, final, hold, said, slow
from tests.support.stack import eventually

pytestmark = pytest.mark.integration
TENANT = "one-slot-in-line"


def waiting(sidecar: Sidecar) -> float:
    return sidecar.metric("warden_waiting_calls")


def test_unary_calls_get_the_one_slot_one_after_the_other(sidecar: Sidecar, bare: Bare) -> None:
    headers = sidecar.headers(TENANT)
    first = bare.begin(hold(1000), headers)
    eventually(lambda: sidecar.metric("warden_in_flight_calls", tenant=TENANT) == 1, what="the slot taken")
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    others = []
    for n in range(4):
        call = bare.begin(hold(1), headers)
        call.add_done_callback(lambda _, n=n: done.put(n))
        others.append(call)
        eventually(lambda n=n: waiting(sidecar) == n + 1 or first.done(), what="one more in line")
    assert first.exception() is None
    assert [call.exception() for call in others] == [None] * 4
    assert [done.get(timeout=60) for _ in range(4)] == [0, 1, 2, 3]
    sidecar.settles()
    assert waiting(sidecar) == 0


def test_a_deadline_ends_the_wait_and_a_cancel_leaves_nothing(sidecar: Sidecar, bare: Bare) -> None:
    headers = sidecar.headers(TENANT)
    first = bare.begin(hold(10_000), headers)
    eventually(lambda: sidecar.metric("warden_in_flight_calls", tenant=TENANT) == 1, what="the slot taken")
    answer = bare.unary(hold(1), headers, timeout=0.4)
    assert answer.code in {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}  # whoever's clock is first
    left = bare.begin(hold(1), headers)
    eventually(lambda: waiting(sidecar) == 1, what="it waits")
    left.cancel()
    eventually(lambda: waiting(sidecar) == 0, what="the place in line to be given up")
    first.cancel()
    sidecar.settles()
    if "x-warden-call-id" in answer.initial:  # a client that gave up may have seen no header
        assert sidecar.record(answer.call_id)["reason"] == "CONCURRENCY"


def test_a_streams_other_messages_go_on_while_one_waits(sidecar: Sidecar, bare: Bare) -> None:
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def sent() -> Iterator[bytes]:
        while (message := messages.get()) is not None:
            yield message

    stream = bare.stream(sent(), sidecar.headers(TENANT))
    messages.put(slow(40, 75, id="holds"))
    assert said(stream.next())
    messages.put(slow(3, 1, id="waits"))
    eventually(lambda: waiting(sidecar) == 1, what="the second to wait")
    messages.put(hold(1, model="narrow", id="refused"))  # not this tenant's: told without waiting for anybody
    order = []
    while True:
        response = stream.next()
        order.append(response.infer_response.id)
        if order[-1] == "waits" and final(response):
            break
    assert order.index("refused") < order.index("waits")
    assert order[order.index("waits") :].count("holds") == 0  # it ended, and then there was room
    messages.put(None)
    assert stream.answer().code == "OK"
    sidecar.settles()


def test_a_stream_that_is_cancelled_while_a_message_waits_leaks_nothing(sidecar: Sidecar, bare: Bare) -> None:
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stream = bare.stream(iter(messages.get, None), sidecar.headers(TENANT))
    messages.put(slow(1000, 20))
    stream.next()
    for _ in range(3):
        messages.put(slow(1, 1))
    eventually(lambda: waiting(sidecar) == 3, what="three to wait")
    stream.call.cancel()
    sidecar.settles()
    assert waiting(sidecar) == 0
