"""A call that is cancelled or out of time stops in Triton, gives back what it held, and its record says so."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.sidecar import Bare, Sidecar, deaf, echo, ended, hold, said, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

_ids = itertools.count(1)


def fresh(sidecar: Sidecar) -> str:
    """A request id of its own, by which the model's report names it."""
    return f"{sidecar.wire}-{next(_ids)}"


def stopped(sidecar: Sidecar, triton: Triton, request_id: str, model: str) -> int:
    """How far the model had come when it saw the cancel: responses, or milliseconds."""
    how, _, _, after = triton.ended(sidecar.sent(request_id, model=model)).split()
    assert how == "cancelled"
    return int(after)


def begun(sidecar: Sidecar) -> None:
    eventually(lambda: sidecar.metric("warden_in_flight_calls"), what="a call in flight")


class TestUnary:
    def test_cancelled(self, sidecar: Sidecar, bare: Bare, triton: Triton) -> None:
        request_id = fresh(sidecar)
        call = bare.begin(hold(10_000, id=request_id), sidecar.headers(**{"x-warden-conversation": request_id}))
        begun(sidecar)
        call.cancel()
        assert stopped(sidecar, triton, request_id, "hold") < 5_000
        sidecar.settles()
        self._recorded(sidecar, request_id, "cancelled", "CLIENT_CANCELLED", 1)

    def test_out_of_time(self, sidecar: Sidecar, bare: Bare, triton: Triton) -> None:
        request_id = fresh(sidecar)
        headers = sidecar.headers(**{"x-warden-conversation": request_id})
        answer = ended(bare.begin(hold(10_000, id=request_id), headers, timeout=2))
        assert answer.code == "DEADLINE_EXCEEDED"
        assert stopped(sidecar, triton, request_id, "hold") < 5_000
        sidecar.settles()
        self._recorded(sidecar, request_id, "failed", "UPSTREAM_TIMEOUT", 4)

    def test_cancelled_while_it_waits_in_tritons_queue(self, sidecar: Sidecar, bare: Bare, triton: Triton) -> None:
        """`hold` takes two at a time: the third never reaches the model."""
        running = [bare.begin(hold(1500, id=fresh(sidecar)), sidecar.headers()) for _ in range(2)]
        eventually(lambda: sidecar.metric("warden_in_flight_calls") == 2, what="two in flight")
        request_id = fresh(sidecar)
        headers = sidecar.headers(**{"x-warden-conversation": request_id})
        waiting = bare.begin(hold(10_000, id=request_id), headers)
        eventually(lambda: sidecar.metric("warden_in_flight_calls") == 3, what="three in flight")
        waiting.cancel()
        assert [ended(call).code for call in running] == ["OK", "OK"]
        sidecar.settles()
        self._recorded(sidecar, request_id, "cancelled", "CLIENT_CANCELLED", 1)
        sent = sidecar.sent(request_id, model="hold")
        assert not any(line.split()[1] == sent and line.startswith("completed") for line in triton.reports())

    @staticmethod
    def _recorded(sidecar: Sidecar, conversation: str, outcome: str, reason: str, status: int) -> None:
        """The client had no answer, and so no call id: found by its conversation."""
        (record,) = eventually(lambda: sidecar.search(conversation=conversation), what="its record", within_s=60)
        assert (record["outcome"], record["reason"], record["status"]) == (outcome, reason, status)


class TestStreams:
    @pytest.mark.parametrize("delay_ms", [20, 5_000], ids=["mid-stream", "before the first response"])
    def test_cancelled(self, sidecar: Sidecar, bare: Bare, triton: Triton, delay_ms: int) -> None:
        request_id = fresh(sidecar)
        stream = bare.stream([slow(1000, delay_ms, id=request_id)], sidecar.headers())
        read = "".join(said(stream.next()) for _ in range(5)) if delay_ms < 1000 else ""
        begun(sidecar)
        call_id = dict(stream.call.initial_metadata())["x-warden-call-id"]
        stream.call.cancel()
        assert stopped(sidecar, triton, request_id, "slow") < 900
        sidecar.settles()
        record = sidecar.record(f"{call_id}/1")
        assert (record["outcome"], record["reason"], record["status"]) == ("cancelled", "CLIENT_CANCELLED", 1)
        assert (record["output"] or "").startswith(read)

    @pytest.mark.parametrize("delay_ms", [20, 5_000], ids=["mid-stream", "before the first response"])
    def test_out_of_time(self, sidecar: Sidecar, bare: Bare, triton: Triton, delay_ms: int) -> None:
        request_id = fresh(sidecar)
        stream = bare.stream([slow(1000, delay_ms, id=request_id)], sidecar.headers(), timeout=3)
        read = "".join(map(said, stream))
        answer = stream.answer()
        assert answer.code == "DEADLINE_EXCEEDED"
        assert (read != "") == (delay_ms < 1000)
        assert stopped(sidecar, triton, request_id, "slow") < 900
        sidecar.settles()
        record = sidecar.record(f"{answer.call_id}/1")
        assert (record["outcome"], record["reason"], record["status"]) == ("failed", "UPSTREAM_TIMEOUT", 4)
        assert (record["output"] or "").startswith(read)

    def test_what_goes_on_after_a_cancel_keeps_its_slot(self, sidecar: Sidecar, bare: Bare, triton: Triton) -> None:
        """Until it has ended by its own pace, long before the ten minutes that its model may run on."""
        headers, request_id = sidecar.headers("one-slot"), fresh(sidecar)
        eventually(lambda: sidecar.metric("warden_running_on_calls") == 0, what="the end of what others left running")
        stream = bare.stream([deaf(60, 100, id=request_id)], headers)
        for _ in range(10):
            response = stream.next()
            assert (response.error_message, said(response) != "") == ("", True)
        stream.call.cancel()
        eventually(lambda: sidecar.metric("warden_running_on_calls") == 1, what="a call that runs on")
        answer = bare.unary(echo(), headers)
        assert (answer.code, answer.told().reason) == ("RESOURCE_EXHAUSTED", "CONCURRENCY")
        assert sidecar.metric("warden_quota_held_bytes") > 0
        eventually(lambda: bare.unary(echo(), headers).code == "OK", what="its slot again", within_s=60)
        sent = sidecar.sent(request_id, model="deaf", tenant="one-slot")
        assert f"completed {sent} after 59" in triton.reports()
        assert sidecar.metric("warden_running_on_calls") == 0
        sidecar.settles()

    def test_a_half_closed_stream_is_cancelled_with_all_its_messages(
        self, sidecar: Sidecar, bare: Bare, triton: Triton
    ) -> None:
        ids = [fresh(sidecar) for _ in range(20)]
        stream = bare.stream([slow(1000, 20, id=each) for each in ids], sidecar.headers())
        stream.next()
        eventually(lambda: sidecar.metric("warden_in_flight_calls") == 20, what="20 in flight")
        stream.call.cancel()
        for each in ids:
            assert stopped(sidecar, triton, each, "slow") < 900
        sidecar.settles()

    def test_a_client_whose_connection_breaks_counts_as_gone(self, sidecar: Sidecar, triton: Triton) -> None:
        request_id = fresh(sidecar)
        with sidecar.bare() as bare:
            stream = bare.stream([slow(1000, 20, id=request_id)], sidecar.headers())
            stream.next()
            call_id = dict(stream.call.initial_metadata())["x-warden-call-id"]
        assert stopped(sidecar, triton, request_id, "slow") < 900
        sidecar.settles()
        assert sidecar.record(f"{call_id}/1")["outcome"] == "cancelled"

    def test_many_cancels_leak_nothing(self, sidecar: Sidecar, triton: Triton) -> None:
        """200 streams cut at different moments, some before they were ever admitted."""
        headers = sidecar.headers()
        with sidecar.bare() as bare:
            streams: list[Any] = []
            for n in range(200):
                stream = bare.stream([slow(1000, 20)], headers)
                if n % 4 == 0:
                    stream.next()
                if n % 2:
                    stream.call.cancel()
                streams.append(stream)
            for stream in streams:
                stream.call.cancel()
            for stream in streams:
                assert stream.answer().code == "CANCELLED"
        sidecar.settles()
        assert sidecar.metric("warden_internal_errors_total") == 0
