"""Unchanged programs work through the warden: the stock client's sync, aio and streaming calls, on both wires."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as kserve
import tritonclient.grpc.aio as kserve_aio

from tests.support.sidecar import Bare, Sidecar, final, said, slow
from tests.support.stack import StreamCall, Triton, filled, tensor

pytestmark = pytest.mark.integration


def chat(text: str, **sampling: Any) -> list[kserve.InferInput]:
    return [
        tensor("text_input", "BYTES", text),
        tensor("stream", "BOOL", True),
        tensor("sampling_parameters", "BYTES", json.dumps({"temperature": 0, **sampling})),
    ]


class TestUnary:
    def test_what_is_sent_comes_back(self, sidecar: Sidecar) -> None:
        with sidecar.client() as client:
            result = client.infer(
                "echo", [tensor("text", "BYTES", "où", b"\xff\x00")], headers=sidecar.headers(), request_id="mine"
            )
        assert result.as_numpy("text").tolist() == ["où".encode(), b"\xff\x00"]
        assert result.get_response().id == "mine"

    def test_64_megabytes_each_way(self, sidecar: Sidecar) -> None:
        array = np.arange(16 * 2**20, dtype=np.float32)
        with sidecar.client() as client:
            result = client.infer("echo", [filled("tensor", "FP32", array)], headers=sidecar.headers())
        np.testing.assert_array_equal(result.as_numpy("tensor"), array)
        sidecar.settles()

    def test_an_image_is_classified_with_its_label(self, sidecar: Sidecar) -> None:
        image = np.zeros((1, 3, 224, 224), dtype=np.float32)
        image[:, 0] = 1
        wanted = kserve.InferRequestedOutput("scores", class_count=2)
        with sidecar.client() as client:
            result = client.infer(
                "vision", [filled("image", "FP32", image)], outputs=[wanted], headers=sidecar.headers()
            )
        score, index, label = result.as_numpy("scores")[0][0].decode().split(":")
        assert (index, label) == ("0", "red")
        assert float(score) > 0.5

    def test_an_ensemble_answers_from_its_documents(self, sidecar: Sidecar) -> None:
        inputs = [tensor("text_input", "BYTES", "What is the journal?"), tensor("max_tokens", "INT32", 8)]
        with sidecar.client() as client:
            result = client.infer("rag", inputs, headers=sidecar.headers())
        assert result.as_numpy("text_output")[0]
        assert len(result.as_numpy("sources")) == 2

    def test_metadata_and_readiness_of_a_model(self, sidecar: Sidecar, triton: Triton) -> None:
        with sidecar.client() as client, kserve.InferenceServerClient(triton.grpc) as direct:
            headers = sidecar.headers()
            assert client.is_model_ready("echo", headers=headers)
            assert client.get_model_metadata("echo", headers=headers) == direct.get_model_metadata("echo")
            assert client.get_server_metadata(headers=headers).name == "triton"

    def test_health_needs_no_credential(self, sidecar: Sidecar) -> None:
        with sidecar.client() as client:
            assert client.is_server_live()
            assert client.is_server_ready()

    def test_compressed_requests_are_read(self, sidecar: Sidecar) -> None:
        with sidecar.client() as client:
            for algorithm in ("gzip", "deflate"):
                result = client.infer(
                    "echo",
                    [tensor("text", "BYTES", "x" * 100_000)],
                    headers=sidecar.headers(),
                    compression_algorithm=algorithm,
                )
                assert len(result.as_numpy("text")[0]) == 100_000

    async def test_many_at_once_through_the_aio_client(self, sidecar: Sidecar) -> None:
        async with kserve_aio.InferenceServerClient(sidecar.grpc) as client:

            async def one(n: int) -> bool:
                result = await client.infer("echo", [tensor("text", "BYTES", str(n))], headers=sidecar.headers())
                return bool(result.as_numpy("text")[0] == str(n).encode())

            assert all(await asyncio.gather(*map(one, range(100))))


class TestStreams:
    def test_a_chat_streams_token_by_token(self, sidecar: Sidecar) -> None:
        call = StreamCall(
            sidecar.grpc, "chat", chat("What is the capital of France?", max_tokens=24), headers=sidecar.headers()
        )
        with call:
            responses = list(call)
        text = b"".join(r.as_numpy("text_output")[0] for r in responses[:-1])
        assert b"Paris" in text
        assert len(responses) > 4

    async def test_a_chat_streams_through_the_aio_client(self, sidecar: Sidecar) -> None:
        async def requests() -> Any:
            yield {
                "model_name": "slow",
                "inputs": [tensor("text_input", "BYTES", "hi"), tensor("count", "INT32", 5)],
                "enable_empty_final_response": True,
            }

        async with kserve_aio.InferenceServerClient(sidecar.grpc) as client:
            seen = [
                (result, error) async for result, error in client.stream_infer(requests(), headers=sidecar.headers())
            ]
        assert [error for _, error in seen] == [None] * 6
        assert b"".join(r.as_numpy("text_output")[0] for r, _ in seen[:5]) == b"word0 word1 word2 word3 word4 "

    def test_3000_tokens_arrive_in_order(self, sidecar: Sidecar, bare: Bare) -> None:
        stream = bare.stream([slow(3000, 0)], sidecar.headers())
        texts = [said(response) for response in stream]
        assert [text for text in texts if text] == [f"word{n} " for n in range(3000)]
        answer = stream.answer()
        assert answer.code == "OK"
        record = sidecar.record(f"{answer.call_id}/1")
        # The client asked for no counts; the sidecar had the backend count for itself.
        assert (record["outcome"], record["input_tokens"], record["output_tokens"]) == ("completed", 3, 3000)
        assert record["output"] == "".join(texts)

    def test_300_streams_at_once(self, sidecar: Sidecar) -> None:
        """Over two connections, all open before the first ends."""
        headers, gate = sidecar.headers(), threading.Event()

        def body(n: int) -> Any:
            yield slow(4, 2, id=f"s{n}")
            gate.wait(120)

        with sidecar.bare() as one, sidecar.bare() as other:
            streams = [(one, other)[n % 2].stream(body(n), headers, timeout=150) for n in range(300)]
            try:
                for n, stream in enumerate(streams):
                    texts = [said(stream.next()) for _ in range(4)]
                    assert texts == [f"word{m} " for m in range(4)], n
            finally:
                gate.set()
            assert {stream.answer().code for stream in streams} == {"OK"}
        sidecar.settles()

    def test_many_messages_on_one_stream_are_told_apart(self, sidecar: Sidecar, bare: Bare) -> None:
        """A long answer doesn't hold back those behind it."""
        long, short = slow(60, 10, id="long"), [slow(3, 1, id=f"short{n}") for n in range(50)]
        seen: dict[str, list[str]] = {}
        ended: list[str] = []
        for response in bare.stream([long, *short], sidecar.headers()):
            assert not response.error_message
            seen.setdefault(response.infer_response.id, []).append(said(response))
            if final(response):
                ended.append(response.infer_response.id)
        assert len(seen) == 51
        assert all("".join(seen[f"short{n}"]) == "word0 word1 word2 " for n in range(50))
        assert len(seen["long"]) == 61
        assert ended[-1] == "long"
        sidecar.settles()

    def test_a_sequence_keeps_its_order(self, sidecar: Sidecar) -> None:
        totals, numbers = self._sequences(sidecar, streams=4, length=20)
        assert totals == [[sum(numbers[: n + 1]) for n in range(20)]] * 4

    @staticmethod
    def _sequences(sidecar: Sidecar, *, streams: int, length: int) -> tuple[list[list[int]], list[int]]:
        numbers = list(range(1, length + 1))

        def run(sequence: int) -> list[int]:
            arrived: list[Any] = []
            done = threading.Event()

            def callback(result: Any, error: Any) -> None:
                arrived.append(error or int(result.as_numpy("total").reshape(-1)[0]))
                if len(arrived) == length:
                    done.set()

            with sidecar.client() as client:
                client.start_stream(callback, headers=sidecar.headers())
                for n, number in enumerate(numbers):
                    client.async_stream_infer(
                        "counter",
                        [filled("number", "INT32", np.array([[number]], dtype=np.int32))],
                        sequence_id=1000 + sequence,
                        sequence_start=n == 0,
                        sequence_end=n == length - 1,
                    )
                assert done.wait(60), arrived
                client.stop_stream()
            return arrived

        with ThreadPoolExecutor(streams) as pool:
            return list(pool.map(run, range(streams))), numbers
