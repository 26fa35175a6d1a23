"""Two tenants with the same ids on one Triton: neither reads, stops or ends anything of the other's."""

from __future__ import annotations

import json
import queue
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from tests.support.kserve import packed, request
from tests.support.sidecar import Bare, Sidecar, final, said, slow
from tests.support.stack import StreamCall, tensor

pytestmark = pytest.mark.integration

OURS, THEIRS = "acme", "two"  # both may call every model


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[kserve.InferenceServerClient]:
    with sidecar.client() as client:
        yield client


def add(
    client: kserve.InferenceServerClient,
    sidecar: Sidecar,
    tenant: str,
    sequence: int | str,
    number: int,
    *,
    model: str = "counter",
    **more: bool,
) -> int:
    inputs = [kserve.InferInput("number", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(np.array([[number]], dtype=np.int32))
    result = client.infer(
        model, inputs, sequence_id=sequence, headers=sidecar.headers(tenant),
        sequence_start=more.get("start", False), sequence_end=more.get("end", False),
    )  # fmt: skip
    total: int = result.as_numpy("total")[0, 0]
    return total


# Triton cuts numbers to 32 bits for `counter32`: these pairs are one there, and are one tenant's or two tenants'.
@pytest.mark.parametrize(
    ("model", "ours", "theirs"),
    [
        ("counter", 7, 7),
        ("counter", 7, 7 + 2**32),
        ("counter32", 7, 7),
        ("counter32", 7, 7 + 2**32),
        ("counter_text", "seven", "seven"),
    ],
)
def test_sequences_with_one_id_never_see_each_other(
    sidecar: Sidecar, client: kserve.InferenceServerClient, model: str, ours: Any, theirs: Any
) -> None:
    mine, other = (
        lambda number, **more: add(client, sidecar, OURS, ours, number, model=model, **more),
        lambda number, **more: add(client, sidecar, THEIRS, theirs, number, model=model, **more),
    )
    assert mine(1, start=True) == 1
    assert other(100, start=True) == 100  # which would have ended ours
    assert (mine(2), other(200), mine(3)) == (3, 300, 6)
    assert other(400, end=True) == 700
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        other(1)
    assert mine(4) == 10  # which the other's end has not ended
    assert mine(5, start=True) == 5  # begun anew
    assert mine(6, end=True) == 11


def test_one_tenants_ids_that_are_one_in_32_bits_are_two(
    sidecar: Sidecar, client: kserve.InferenceServerClient
) -> None:
    def step(sequence: int, number: int, **more: bool) -> int:
        return add(client, sidecar, OURS, sequence, number, model="counter32", **more)

    assert (step(9, 1, start=True), step(9 + 2**32, 10, start=True)) == (1, 10)
    assert (step(9, 1, end=True), step(9 + 2**32, 10, end=True)) == (2, 20)


def test_a_sequence_that_never_began_is_told_so_in_tritons_words(
    sidecar: Sidecar, client: kserve.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException, match="must specify the START flag on the first request") as refused:
        add(client, sidecar, OURS, 4711, 1)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_an_end_that_triton_refused_can_be_sent_again(sidecar: Sidecar, client: kserve.InferenceServerClient) -> None:
    assert add(client, sidecar, OURS, 71, 1, start=True) == 1
    wrong = kserve.InferInput("number", [1, 2], "INT32").set_data_from_numpy(np.ones((1, 2), np.int32))
    with pytest.raises(InferenceServerException, match="unexpected shape for input 'number'"):
        client.infer("counter", [wrong], sequence_id=71, sequence_end=True, headers=sidecar.headers(OURS))
    assert add(client, sidecar, OURS, 71, 2, end=True) == 3
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        add(client, sidecar, OURS, 71, 4)


def test_many_sequences_of_both_keep_their_own_totals(sidecar: Sidecar, client: kserve.InferenceServerClient) -> None:
    tenants, ids = (OURS, THEIRS), range(1, 9)  # 16 at once; `counter32` has room for 8: the others wait their turn
    totals = {(tenant, each): 0 for tenant in tenants for each in ids}
    for each in ids:
        for round_ in range(3):
            for weight, tenant in enumerate(tenants, 1):
                number = each * weight + round_
                totals[tenant, each] += number
                flags = {"start": round_ == 0, "end": round_ == 2}
                assert add(client, sidecar, tenant, each, number, model="counter32", **flags) == totals[tenant, each]


def test_one_tenant_cannot_hold_all_of_a_models_sequences(
    sidecar: Sidecar, client: kserve.InferenceServerClient
) -> None:
    """`counter32` runs 8 at once; beyond them Triton lets a sequence wait for as long as the others live."""
    for each in range(4):
        assert add(client, sidecar, OURS, 500 + each, 1, model="counter32", start=True) == 1
    with pytest.raises(InferenceServerException, match="4 sequences at once") as refused:
        add(client, sidecar, OURS, 504, 1, model="counter32", start=True)
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert add(client, sidecar, THEIRS, 500, 7, model="counter32", start=True, end=True) == 7
    for each in range(4):
        assert add(client, sidecar, OURS, 500 + each, 1, model="counter32", end=True) == 2
    assert add(client, sidecar, OURS, 504, 1, model="counter32", start=True, end=True) == 1


# --- stop ---------------------------------------------------------------------------------------------------------


def talking(request_id: str, *, stop: bool = False, count: int = 2_000) -> bytes:
    tensors = [
        ("text_input", "BYTES", [1], packed(b"x")),
        ("max_tokens", "INT32", [1], struct.pack("<i", count)),
    ]
    if stop:
        tensors.append(("stop", "BOOL", [1], b"\x01"))
    message = request("stopping", *tensors, id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(message.SerializeToString())


def test_a_stop_ends_only_ones_own_request_of_that_id(sidecar: Sidecar) -> None:
    headers = {tenant: sidecar.headers(tenant) for tenant in (OURS, THEIRS)}
    with sidecar.bare() as bare:
        streams = {tenant: bare.stream([talking("job-1")], headers[tenant]) for tenant in headers}
        for stream in streams.values():
            assert said(stream.next()) == "word "
        (answer,) = bare.stream([talking("job-1", stop=True)], headers[THEIRS])
        assert (final(answer), answer.infer_response.id, answer.error_message) == (True, "job-1", "")
        last = list(streams[THEIRS])[-1]
        assert (said(last), last.infer_response.id) == ("stopped", "job-1")
        heard = [said(streams[OURS].next()) for _ in range(20)]
        assert heard == ["word "] * 20  # ours goes on
        list(bare.stream([talking("job-1", stop=True)], headers[OURS]))
        assert said(list(streams[OURS])[-1]) == "stopped"


def test_a_stop_without_an_id_is_refused(sidecar: Sidecar, bare: Bare) -> None:
    (answer,) = bare.stream([talking("", stop=True)], sidecar.headers())
    assert "[PARAMETER_NOT_ALLOWED] " in answer.error_message
    assert "input stop" in answer.error_message


# --- what goes there under another name comes back under its own -------------------------------------------------


def reported(sidecar: Sidecar, **more: Any) -> tuple[dict[str, Any], Any]:
    """What Triton read of a request of ours to `mirror`, and the client's own answer."""
    with sidecar.client() as client:
        result = client.infer("mirror", [tensor("i32", "INT32", 1)], headers=sidecar.headers(), **more)
    return json.loads(result.as_numpy("report")[0]), result.get_response()


def test_ids_are_mapped_on_the_way_there_and_back(sidecar: Sidecar) -> None:
    seen, answer = reported(sidecar, request_id="mine")
    assert seen["id"] == sidecar.sent("mine", model="mirror") != "mine"
    assert answer.id == "mine"
    seen, answer = reported(sidecar)
    assert (seen["id"], answer.id) == ("", "")


def test_priority_and_timeout_are_the_plans_to_give(sidecar: Sidecar) -> None:
    """A stock client's call goes through; what it asks of the queue does not."""
    seen, _ = reported(sidecar, priority=1, timeout=1_000_000)
    assert seen["timeout"] == 0


def test_an_error_of_triton_names_the_clients_own_id(sidecar: Sidecar, bare: Bare) -> None:
    message = request("echo", ("tensor", "INT32", [1], bytes(4)), id="mine").SerializeToString()
    answer = bare.unary(message, sidecar.headers())
    assert (answer.code, sidecar.sent("mine", model="echo") in answer.text) == ("INVALID_ARGUMENT", False)
    (told,) = bare.stream([message], sidecar.headers())
    assert (told.infer_response.id, sidecar.sent("mine", model="echo") in told.error_message) == ("mine", False)


def test_the_client_sees_no_counts_that_it_did_not_ask_for(sidecar: Sidecar, bare: Bare) -> None:
    answers = list(bare.stream([slow(3, id="mine")], sidecar.headers()))
    assert {tuple(output.name for output in each.infer_response.outputs) for each in answers} == {("text_output",)}
    assert {each.infer_response.id for each in answers} == {"mine"}
    assert all(len(each.infer_response.outputs) == len(each.infer_response.raw_output_contents) for each in answers)


def test_whoever_asks_for_counts_has_them(sidecar: Sidecar) -> None:
    flags = [tensor(name, "BOOL", True) for name in ("return_num_input_tokens", "return_num_output_tokens")]
    inputs = [tensor("text_input", "BYTES", "a b c"), tensor("count", "INT32", 2), *flags]
    with StreamCall(sidecar.grpc, "slow", inputs, headers=sidecar.headers()) as call:
        counts = [(each.as_numpy("num_input_tokens"), each.as_numpy("num_output_tokens")) for each in call]
    found = [(int(i[0]), int(o[0])) for i, o in counts if i is not None and o is not None]
    assert found == [(3, 1), (3, 1), (3, 0)]


def test_sequences_on_one_stream_of_a_stock_client(sidecar: Sidecar) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    inputs = [kserve.InferInput("number", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(np.array([[1]], dtype=np.int32))
    with sidecar.client() as client:
        client.start_stream(lambda result, error: arrived.put((result, error)), headers=sidecar.headers())
        for n in range(10):
            client.async_stream_infer(
                "counter", inputs, request_id=str(n), sequence_id=31, sequence_start=n == 0, sequence_end=n == 9
            )
        got = [arrived.get(timeout=60) for _ in range(10)]
        client.stop_stream()
    assert [error for _, error in got if error is not None] == []
    assert [int(result.as_numpy("total")[0, 0]) for result, _ in got] == list(range(1, 11))
    assert [result.get_response().id for result, _ in got] == [str(n) for n in range(10)]
