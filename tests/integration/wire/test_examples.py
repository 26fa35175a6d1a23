"""What tritonclient's own examples do, through the sidecar as against Triton: the same answers, on both wires.

Each test is one of the client's `simple_grpc_*` scripts, by its calls; what it prints there is compared here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as kserve
import tritonclient.grpc.aio as kserve_aio
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as system_memory

from tests.support.sidecar import Sidecar
from tests.support.stack import Triton, filled, tensor

pytestmark = pytest.mark.integration

A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), dtype=np.int32)
NAMES = ("OUTPUT0", "OUTPUT1")


@dataclass(frozen=True, slots=True)
class Server:
    """Where to connect, and what to say who one is."""

    grpc: str
    headers: dict[str, str] = field(default_factory=dict)

    def client(self) -> kserve.InferenceServerClient:
        return kserve.InferenceServerClient(self.grpc)


Example = Callable[[Server], Any]


@pytest.fixture
def compared(sidecar: Sidecar, triton: Triton) -> Callable[[Example], Any]:
    """Runs an example against both, and gives what both answered, which is the same."""

    def run(example: Example) -> Any:
        direct, through = example(Server(triton.grpc)), example(Server(sidecar.grpc, sidecar.headers()))
        assert through == direct
        sidecar.settles()
        return through

    return run


def numbers() -> list[kserve.InferInput]:
    return [filled("INPUT0", "INT32", A), filled("INPUT1", "INT32", B)]


def read(result: Any, *names: str) -> list[Any]:
    return [result.as_numpy(name).tolist() for name in names]


def wanted(*names: str) -> list[kserve.InferRequestedOutput]:
    return [kserve.InferRequestedOutput(name) for name in names]


def test_infer(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_infer_client: with outputs named and without, compressed, and a model that does not exist."""

    def example(server: Server) -> Any:
        with server.client() as client:
            some = client.infer("simple", numbers(), outputs=wanted("OUTPUT1"), headers=server.headers)
            both = client.infer(
                "simple", numbers(), request_id="1", compression_algorithm="gzip", headers=server.headers
            )
            with pytest.raises(InferenceServerException) as unknown:
                client.infer("wrong_model_name", numbers(), headers=server.headers)
        return read(some, "OUTPUT1"), some.as_numpy("OUTPUT0"), read(both, *NAMES), both.get_response().id, (
            unknown.value.status()
        )  # fmt: skip

    (difference,), pruned, (added, subtracted), request_id, status = compared(example)
    assert (added, subtracted) == ((A + B).tolist(), (A - B).tolist())
    assert (difference, pruned) == ((A - B).tolist(), None)
    assert (request_id, status) == ("1", "StatusCode.NOT_FOUND")


def test_async_infer(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_async_infer_client: callbacks, many at once; and simple_grpc_aio_infer_client below."""

    def example(server: Server) -> Any:
        answers: queue.Queue[Any] = queue.Queue()
        with server.client() as client:
            for n in range(8):
                client.async_infer(
                    "simple",
                    numbers(),
                    callback=lambda result, error, n=n: answers.put((n, error or read(result, *NAMES))),
                    outputs=wanted(*NAMES),
                    headers=server.headers,
                )
            return sorted(answers.get(timeout=60) for _ in range(8))

    assert [n for n, _ in compared(example)] == list(range(8))


async def test_aio_infer(sidecar: Sidecar, triton: Triton) -> None:
    async def example(server: Server) -> Any:
        async with kserve_aio.InferenceServerClient(server.grpc) as client:
            return read(await client.infer("simple", numbers(), headers=server.headers), *NAMES)

    assert await example(Server(sidecar.grpc, sidecar.headers())) == await example(Server(triton.grpc))


def test_cancel(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_async_infer_client's cancellation (client_cancellation): the callback is told CANCELLED."""

    def example(server: Server) -> Any:
        told: queue.Queue[Any] = queue.Queue()
        with server.client() as client:
            call = client.async_infer(
                "hold",
                [tensor("ms", "INT32", 5_000)],
                callback=lambda result, error: told.put((result, error)),
                headers=server.headers,
            )
            call.cancel()
            result, error = told.get(timeout=60)
        return result, error.message()

    assert compared(example) == (None, "Locally cancelled by application!")


def test_string(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_string_infer_client."""

    def example(server: Server) -> Any:
        texts = [np.array([[str(n).encode() for n in row[0]]], dtype=np.object_) for row in (A, B)]
        inputs = [filled(f"INPUT{n}", "BYTES", each) for n, each in enumerate(texts)]
        with server.client() as client:
            return read(client.infer("simple_string", inputs, headers=server.headers), *NAMES)

    added, _ = compared(example)
    assert [int(text) for text in added[0]] == (A + B)[0].tolist()


VALUES = [11, 7, 5, 3, 2, 0, 1]


def counted(client: kserve.InferenceServerClient, server: Server, sequence: int, value: int, n: int) -> int:
    result = client.infer(
        "counter",
        [filled("number", "INT32", np.array([[value]], dtype=np.int32))],
        sequence_id=sequence,
        sequence_start=n == 0,
        sequence_end=n == len(VALUES) - 1,
        headers=server.headers,
    )
    return int(result.as_numpy("total")[0][0])


def test_sequence_sync(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_sequence_sync_infer_client: two sequences, one request of each after the other."""

    def example(server: Server) -> Any:
        with server.client() as client:
            return [
                (counted(client, server, 2007, value, n), counted(client, server, 2008, -value, n))
                for n, value in enumerate(VALUES)
            ]

    assert compared(example)[-1] == (sum(VALUES), -sum(VALUES))


def test_sequence_stream(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_sequence_stream_infer_client: two sequences on one stream, all sent before anything is read."""

    def example(server: Server) -> Any:
        answers: queue.Queue[Any] = queue.Queue()
        with server.client() as client:
            client.start_stream(lambda result, error: answers.put((result, error)), headers=server.headers)
            for sequence, sign in ((3007, 1), (3008, -1)):
                for n, value in enumerate(VALUES):
                    client.async_stream_infer(
                        "counter",
                        [filled("number", "INT32", np.array([[sign * value]], dtype=np.int32))],
                        request_id=f"{sequence}_{n}",
                        sequence_id=sequence,
                        sequence_start=n == 0,
                        sequence_end=n == len(VALUES) - 1,
                    )
            found = [answers.get(timeout=60) for _ in range(2 * len(VALUES))]
            client.stop_stream()
        assert [error for _, error in found] == [None] * len(found)
        return [(result.get_response().id, int(result.as_numpy("total")[0][0])) for result, _ in found]

    totals = np.cumsum(VALUES).tolist()
    assert compared(example) == [
        (f"{sequence}_{n}", sign * total)
        for sequence, sign in ((3007, 1), (3008, -1))
        for n, total in enumerate(totals)
    ]


def test_a_sequence_that_was_not_started(compared: Callable[[Example], Any]) -> None:
    def example(server: Server) -> Any:
        with server.client() as client, pytest.raises(InferenceServerException) as refused:
            counted(client, server, 4009, 1, 1)
        return refused.value.status()

    assert compared(example) == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize("empty_final", [False, True])
def test_custom_repeat(compared: Callable[[Example], Any], empty_final: bool) -> None:
    """simple_grpc_custom_repeat: many responses for one request; with the empty final response, and without.

    The last request asks for none, so without the flag Triton says nothing to it at all.
    """

    def example(server: Server) -> Any:
        answers: queue.Queue[Any] = queue.Queue()
        with server.client() as client:
            client.start_stream(lambda result, error: answers.put((result, error)), headers=server.headers)
            for request_id, values in (("a", [4, 2, 0, 1]), ("none", [])):
                client.async_stream_infer(
                    "repeat_int32",
                    [
                        filled("IN", "INT32", np.array(values, dtype=np.int32)),
                        filled("DELAY", "UINT32", np.array([1] * len(values), dtype=np.uint32)),
                        filled("WAIT", "UINT32", np.array([0], dtype=np.uint32)),
                    ],
                    request_id=request_id,
                    enable_empty_final_response=empty_final,
                )
            client.stop_stream()  # half-closes, and waits for all answers
            return sorted(map(told, iter_queue(answers)), key=str)

    def told(answer: Any) -> Any:
        result, error = answer
        assert error is None
        response = result.get_response()
        out = result.as_numpy("OUT")
        return (
            response.id,
            None if out is None else out.tolist(),
            response.parameters["triton_final_response"].bool_param,
        )

    answers = compared(example)
    assert [out for _, out, final in answers if not final] == [[0], [1], [2], [4]]
    assert [request_id for request_id, _, final in answers if final] == (["a", "none"] if empty_final else [])


def iter_queue(answers: queue.Queue[Any]) -> list[Any]:
    found = []
    while not answers.empty():
        found.append(answers.get())
    return found


def test_health_and_metadata(compared: Callable[[Example], Any]) -> None:
    """simple_grpc_health_metadata."""

    def example(server: Server) -> Any:
        with server.client() as client:
            told = client.get_server_metadata(headers=server.headers)
            model = client.get_model_metadata("simple", headers=server.headers, as_json=True)
            with pytest.raises(InferenceServerException) as unknown:
                client.get_model_metadata("wrong_model_name", headers=server.headers)
            return (
                client.is_server_live(headers=server.headers),
                client.is_server_ready(headers=server.headers),
                client.is_model_ready("simple", headers=server.headers),
                told.name,
                model,
                unknown.value.status(),
            )

    assert compared(example)[-1] == "StatusCode.NOT_FOUND"


def test_ensemble(compared: Callable[[Example], Any]) -> None:
    """ensemble_image_client, by the demo's ensemble: retrieval, then generation."""

    def example(server: Server) -> Any:
        inputs = [tensor("text_input", "BYTES", "What is the journal?"), tensor("max_tokens", "INT32", 4)]
        with server.client() as client:
            answer, sources = read(client.infer("rag", inputs, headers=server.headers), "text_output", "sources")
        assert answer[0]  # sampled: another one each time
        return sources

    assert len(compared(example)) == 2


class TestSharedMemory:
    """simple_grpc_shm_client and its CUDA twin: refused, saying what to do instead."""

    def test_registering_a_region_is_refused_with_what_to_do(self, sidecar: Sidecar) -> None:
        handle = system_memory.create_shared_memory_region("input", "/warden-test", 128)
        try:
            with sidecar.client() as client:
                for call in (
                    lambda: client.register_system_shared_memory(
                        "input", "/warden-test", 128, headers=sidecar.headers()
                    ),
                    lambda: client.unregister_system_shared_memory(headers=sidecar.headers()),
                    lambda: client.get_system_shared_memory_status(headers=sidecar.headers()),
                    lambda: client.register_cuda_shared_memory("input", b"x" * 64, 0, 128, headers=sidecar.headers()),
                    lambda: client.unregister_cuda_shared_memory(headers=sidecar.headers()),
                ):
                    with pytest.raises(InferenceServerException) as refused:
                        call()
                    assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
                    assert "send the tensor" in refused.value.message()
        finally:
            system_memory.destroy_shared_memory_region(handle)

    @pytest.mark.parametrize("side", ["inputs", "outputs"])
    def test_a_tensor_in_a_region_is_refused_with_what_to_do(self, sidecar: Sidecar, side: str) -> None:
        inputs, outputs = numbers(), wanted(*NAMES)
        if side == "inputs":
            inputs[0].set_shared_memory("input", 64)
        else:
            outputs[0].set_shared_memory("output", 64)
        with sidecar.client() as client, pytest.raises(InferenceServerException) as refused:
            client.infer("simple", inputs, outputs=outputs, headers=sidecar.headers())
        assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
        assert "send the tensor" in refused.value.message()


def test_keepalive(sidecar: Sidecar) -> None:
    """simple_grpc_keepalive_client, with its channel's options."""
    options = kserve.KeepAliveOptions(
        keepalive_time_ms=2**31 - 1,
        keepalive_timeout_ms=20_000,
        keepalive_permit_without_calls=False,
        http2_max_pings_without_data=2,
    )
    with kserve.InferenceServerClient(sidecar.grpc, keepalive_options=options) as client:
        assert read(client.infer("simple", numbers(), headers=sidecar.headers()), "OUTPUT0") == [(A + B).tolist()]


def test_reuse_infer_objects(compared: Callable[[Example], Any]) -> None:
    """reuse_infer_objects_client: one client, the same inputs for calls and a stream, from several threads."""

    def example(server: Server) -> Any:
        inputs, found = numbers(), []
        with server.client() as client:
            threads = [
                threading.Thread(
                    target=lambda: found.append(read(client.infer("simple", inputs, headers=server.headers), *NAMES))
                )
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            answers: queue.Queue[Any] = queue.Queue()
            client.start_stream(
                lambda result, error: answers.put(error or read(result, *NAMES)), headers=server.headers
            )
            client.async_stream_infer("simple", inputs)
            found.append(answers.get(timeout=60))
            client.stop_stream()
        return found

    assert compared(example) == [[(A + B).tolist(), (A - B).tolist()]] * 5
