"""Many requests interleaved on one client stream, over ordinary and decoupled models, answered as Triton would."""

from __future__ import annotations

import itertools
import random
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.support.kserve import request
from tests.support.sidecar import Bare, BareStream, Sidecar, echo, failing, final, hold, said, slow, withheld
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

REQUESTS: Final = 200
GROWTH: Final = 200 * 2**20  # bytes of memory that a stream of 64 MiB of answers may add, copies and fragments included
_fresh = itertools.count()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what shall come of it. ``texts``: of its responses, in order; None: an error, which says so."""

    message: bytes
    ordered: bool
    texts: tuple[str | None, ...]
    finals: int = 1
    outcome: str = "completed"


def repeat(values: list[int], request_id: str, *, empty_final: bool) -> bytes:
    message = request(
        "repeat_int32",
        ("IN", "INT32", [len(values)], struct.pack(f"<{len(values)}i", *values)),
        ("DELAY", "UINT32", [len(values)], struct.pack(f"<{len(values)}I", *[1] * len(values))),
        ("WAIT", "UINT32", [1], struct.pack("<I", 0)),
        id=request_id,
    )
    if empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(message.SerializeToString())


def said_by(response: Any) -> str | None:
    if response.error_message:
        return None
    answer = response.infer_response
    if answer.model_name == "hold":
        return "held"
    if answer.model_name == "repeat_int32":
        return str(struct.unpack("<i", answer.raw_output_contents[0])[0]) if answer.outputs else ""
    return said(response)


def bad_shape(request_id: str) -> bytes:
    """Never issued: Triton says so in-band, without a final flag."""
    return bytes(request("vision", ("image", "FP32", [1, 1], b"\0" * 4), id=request_id).SerializeToString())


def words(n: int) -> tuple[str, ...]:
    return (*(f"word{m} " for m in range(n)), "")


MAKE: Final[dict[str, Callable[[random.Random, str], Asked]]] = {
    "echo": lambda r, i: Asked(echo(i.encode(), id=i), ordered=True, texts=(i,)),
    "hold": lambda r, i: Asked(hold(r.randrange(30), id=i), ordered=True, texts=("held",)),
    "slow": lambda r, i: _slow(r.randrange(1, 8), r.randrange(5), i),
    "repeat": lambda r, i: Asked(repeat([3, 1], i, empty_final=True), ordered=False, texts=("3", "1", "")),
    "quiet repeat": lambda r, i: Asked(repeat([3, 1], i, empty_final=False), ordered=False, texts=("3", "1"), finals=0),
    "no response": lambda r, i: Asked(repeat([], i, empty_final=False), ordered=False, texts=(), finals=0),
    "failing": lambda r, i: Asked(failing("INTERNAL", "boo", id=i), ordered=True, texts=(None,), outcome="failed"),
    "failing stream": lambda r, i: Asked(
        failing("INTERNAL", "boo", stream=True, after=2, id=i), ordered=False, texts=("word0 ", "word1 ", None),
        outcome="failed",
    ),
    "bad shape": lambda r, i: Asked(bad_shape(i), ordered=True, texts=(None,), finals=0, outcome="failed"),
    "not read": lambda r, i: Asked(echo(id=i, model_version="01"), ordered=True, texts=(None,), outcome="refused"),
    "no model": lambda r, i: Asked(
        bytes(request("absent", id=i).SerializeToString()), ordered=True, texts=(None,), outcome="refused or failed"
    ),
}  # fmt: skip


def _slow(count: int, delay_ms: int, request_id: str) -> Asked:
    return Asked(slow(count, delay_ms, id=request_id), ordered=False, texts=words(count))


def mix(seed: int) -> dict[str, Asked]:
    """REQUESTS requests of every kind, by id."""
    randomness, stream = random.Random(seed), next(_fresh)
    kinds = [*MAKE, *randomness.choices([*MAKE], weights=[6, 4, 6, 2, 2, 1, 1, 1, 1, 1, 1], k=REQUESTS - len(MAKE))]
    randomness.shuffle(kinds)
    ids = [f"s{stream}-{n}" for n in range(REQUESTS)]
    return {each: MAKE[kind](randomness, each) for each, kind in zip(ids, kinds, strict=True)}


def collected(responses: Iterator[Any]) -> tuple[dict[str, list[str | None]], dict[str, int], list[str]]:
    """By id: texts and finals; and the ids in the order in which they were first answered."""
    texts: dict[str, list[str | None]] = defaultdict(list)
    finals: dict[str, int] = defaultdict(int)
    for response in responses:
        request_id = response.infer_response.id
        texts[request_id].append(said_by(response))
        finals[request_id] += final(response)
    return texts, finals, list(texts)


def checked(asked: dict[str, Asked], responses: Iterator[Any]) -> list[str]:
    """Fails unless each was answered as it should be; the ids as they were first answered."""
    texts, finals, order = collected(responses)
    for request_id, each in asked.items():
        assert tuple(texts.get(request_id, ())) == each.texts, request_id
        assert finals.get(request_id, 0) == each.finals, request_id
    ordinary = [request_id for request_id in order if asked[request_id].ordered]
    assert ordinary == [request_id for request_id, each in asked.items() if each.ordered]
    return order


def recorded(sidecar: Sidecar, stream: str) -> dict[str, str]:
    """Each message's outcome, once every one of them is shipped."""

    def look() -> list[dict[str, Any]]:
        found = [each for n in range(1, REQUESTS + 1) for each in sidecar.search(call=f"{stream}/{n}", reveal=False)]
        return found if len(found) == REQUESTS else []

    return {each["call_id"]: each["outcome"] for each in eventually(look, what="all records", within_s=60)}


@pytest.mark.parametrize("seed", [1, 2])
def test_200_interleaved_requests_are_answered_as_each_should_be(sidecar: Sidecar, bare: Bare, seed: int) -> None:
    """Order, ids, texts, finals; then outcomes; nothing is held any more."""
    asked = mix(seed)
    stream = bare.stream([each.message for each in asked.values()], sidecar.headers())
    checked(asked, iter(stream))
    answer = stream.answer()
    assert answer.code == "OK"
    sidecar.settles()
    outcomes = recorded(sidecar, answer.call_id)
    for n, each in enumerate(asked.values(), 1):
        assert outcomes[f"{answer.call_id}/{n}"] in each.outcome.split(" or "), each
    assert sidecar.metric("warden_internal_errors_total") == 0


ORDERS: Final[dict[str, list[Asked]]] = {
    "ordinary ones in turn": [Asked(hold(200, id="0"), True, ("held",)), Asked(echo(b"1", id="1"), True, ("1",))],
    "decoupled ones pass": [
        Asked(hold(1500, id="0"), True, ("held",)),
        Asked(slow(2, 20, id="1"), False, words(2)),
        Asked(echo(b"2", id="2"), True, ("2",)),
    ],
    "an error of the model in turn": [
        Asked(hold(200, id="0"), True, ("held",)),
        Asked(failing("INTERNAL", "boo", id="1"), True, (None,)),
    ],
    "what was never issued in turn": [
        Asked(hold(200, id="0"), True, ("held",)),
        Asked(bad_shape("1"), True, (None,), finals=0),
        Asked(echo(b"2", id="2"), True, ("2",)),
    ],
    "nothing to who asked for no end": [
        Asked(repeat([], "0", empty_final=False), False, (), finals=0),
        Asked(repeat([5], "1", empty_final=False), False, ("5",), finals=0),
        Asked(repeat([5], "2", empty_final=True), False, ("5", "")),
    ],
}


@pytest.mark.parametrize("order", ORDERS)
def test_triton_itself_and_the_sidecar_keep_this_order(
    sidecar: Sidecar, bare: Bare, triton: Triton, order: str
) -> None:
    """What the test above demands is what Triton 2.51 does: by small streams, for it aborts in the middle of large ones
    (a mix of 200 is too much for it more often than not; one upstream stream a message keeps it alive).
    """
    asked = {str(n): each for n, each in enumerate(ORDERS[order])}
    messages = [each.message for each in asked.values()]
    with Bare(triton.grpc) as direct:
        orders = [
            checked(asked, iter(direct.stream(messages, {}))),
            checked(asked, iter(bare.stream(messages, sidecar.headers()))),
        ]
    if order == "decoupled ones pass":  # elsewhere only the ordinary ones' order is promised, and checked already
        assert [each[0] for each in orders] == ["1", "1"]


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_that_is_cancelled_anywhere_stops_in_triton_and_leaves_nothing(
    sidecar: Sidecar, triton: Triton, seed: int
) -> None:
    """Long requests among the others; the client leaves after so many responses. Every call has one outcome."""
    randomness, asked = random.Random(seed), mix(seed)
    long = 10
    messages = [each.message for each in asked.values()][: REQUESTS - long]
    for _ in range(long):
        messages.insert(randomness.randrange(20), slow(10_000, 20, id=f"long-{next(_fresh)}"))
    read = 1 + max(n for n, message in enumerate(messages) if b"long-" in message)  # once the long ones are in flight
    before = cancelled(triton)
    with sidecar.bare() as bare:
        stream = bare.stream(messages, sidecar.headers())
        for _ in range(randomness.randrange(20, 300)):
            stream.next()
        eventually(lambda: sidecar.metric("warden_in_flight_calls") >= long, what="the long ones in flight")
        call_id = dict(stream.call.initial_metadata())["x-warden-call-id"]
        stream.call.cancel()
        eventually(lambda: cancelled(triton) >= before + long, what="the long ones stopped at the model", within_s=60)
    sidecar.settles()
    outcomes = [each for n in range(1, read + 1) for each in sidecar_record(sidecar, f"{call_id}/{n}")]
    assert outcomes.count("cancelled") >= long
    assert set(outcomes) <= {"completed", "failed", "refused", "cancelled"}


def cancelled(triton: Triton) -> int:
    return sum(line.startswith("cancelled") for line in triton.reports())


def sidecar_record(sidecar: Sidecar, call_id: str) -> list[str]:
    return [each["outcome"] for each in eventually(lambda: sidecar.search(call=call_id), what=call_id, within_s=60)]


def test_a_client_that_reads_slowly_gets_everything_and_memory_stays_bounded(
    sidecar: Sidecar, bare: Bare, triton: Triton
) -> None:
    """It reads nothing until Triton has given all 40 MiB: what waits is in the buffers, and counted there."""
    count, size, calls = 40, 32 * 1024, 32
    asked = {f"slow-{next(_fresh)}": words(count) for _ in range(calls)}
    completed = sum(line.startswith("completed") for line in triton.reports())
    resident = sidecar.rss()
    messages = [slow(count, 0, id=each, size=size) for each in asked]
    stream = bare.stream(messages, sidecar.headers())
    eventually(
        lambda: sum(line.startswith("completed") for line in triton.reports()) >= completed + calls,
        what="Triton drained while the client reads nothing",
        within_s=60,
    )
    texts, finals, _ = collected(iter(stream))
    for request_id, wanted in asked.items():
        assert [(text or "").rstrip(".") for text in texts[request_id]] == list(wanted)
        assert finals[request_id] == 1
    assert stream.answer().code == "OK"
    sidecar.settles()
    assert sidecar.rss() - resident < GROWTH


def test_one_that_reads_nothing_at_all_is_cut_off_with_the_reason(sidecar: Sidecar, bare: Bare) -> None:
    """More than bounds.stream_bytes wait for it: it is told why; Triton is cancelled, and nothing stays held."""
    before = sidecar.metric("warden_clients_cut_off_total")
    stream = bare.stream([slow(2_000, 0, id=f"big-{n}", size=64 * 1024) for n in range(4)], sidecar.headers())
    eventually(lambda: sidecar.metric("warden_clients_cut_off_total") > before, what="the cut", within_s=90)
    sidecar.settles()
    answer = stream.answer()
    assert (answer.code, answer.told().reason) == ("RESOURCE_EXHAUSTED", "MEMORY_TENSOR")


class TestGrpcErrors:
    """``triton_grpc_error: true``, honoured here, for Triton 2.51 dies of it: SIGSEGV within seconds of a mix of good
    and failing streams of one message each, and at once where an error ends a stream beside another request.
    """

    HEADER: Final = {"triton_grpc_error": "true"}

    def stream(self, sidecar: Sidecar, bare: Bare, *messages: bytes) -> BareStream:
        return bare.stream(messages, sidecar.headers(**self.HEADER))

    def test_a_models_error_ends_the_stream_and_its_neighbours(self, sidecar: Sidecar, bare: Bare) -> None:
        stream = self.stream(
            sidecar, bare, slow(1000, 10, id="long"), failing("INTERNAL", "boo", stream=True, after=1, id="f")
        )
        assert all(not response.error_message for response in stream)
        answer = stream.answer()
        assert (answer.code, answer.text) == (
            "UNKNOWN",
            withheld(f"{answer.call_id}/2"),
        )  # in-band Triton leaves its code out
        sidecar.settles()
        outcomes = [sidecar.record(f"{answer.call_id}/{n}") for n in (1, 2)]
        assert [each["outcome"] for each in outcomes] == ["cancelled", "failed"]

    def test_what_was_never_issued_stays_in_band(self, sidecar: Sidecar, bare: Bare) -> None:
        stream = self.stream(sidecar, bare, bad_shape("b"), echo(id="e", model_version="01"), echo(id="good"))
        told = [(response.infer_response.id, bool(response.error_message)) for response in stream]
        assert told == [("b", True), ("e", True), ("good", False)]
        assert stream.answer().code == "OK"

    def test_triton_outlives_many_of_them(self, sidecar: Sidecar, triton: Triton) -> None:
        def run(seed: int) -> None:
            with sidecar.bare() as bare:
                for n in range(20):
                    kinds = [failing("INTERNAL", "boo"), slow(3, 1), echo(), bad_shape("x"), hold(1)]
                    random.Random(seed * 100 + n).shuffle(kinds)
                    self.stream(sidecar, bare, *kinds).answer()

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sidecar.settles()
        assert triton.alive
