"""The demo's and the tests' models on a real Triton, driven by the stock client: what every other test builds on."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as kserve
import tritonclient.grpc.aio as kserve_aio
import tritonclient.http as kserve_http
from tritonclient.utils import InferenceServerException

from tests.support.stack import MODELS, StreamCall, Triton, eventually, filled, tensor

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client(triton: Triton) -> Any:
    with kserve.InferenceServerClient(triton.grpc) as made:
        yield made


def chat_inputs(text: str, *, stream: bool = True, **sampling: Any) -> list[kserve.InferInput]:
    return [
        tensor("text_input", "BYTES", text),
        tensor("stream", "BOOL", stream),
        tensor("sampling_parameters", "BYTES", json.dumps({"temperature": 0, **sampling})),
        tensor("return_num_input_tokens", "BOOL", True),
        tensor("return_num_output_tokens", "BOOL", True),
        tensor("return_finish_reason", "BOOL", True),
    ]


def answers(call: StreamCall) -> list[kserve.InferResult]:
    """The responses that say something: all but the empty one at the end."""
    return [result for result in call if result.as_numpy("text_output") is not None]


def one(result: kserve.InferResult, name: str) -> Any:
    (value,) = result.as_numpy(name)
    return value


class TestChat:
    def test_it_streams_real_text_token_by_token_with_counts(self, triton: Triton) -> None:
        with StreamCall(triton.grpc, "chat", chat_inputs("What is the capital of France?", max_tokens=24)) as call:
            responses = answers(call)
        text = b"".join(one(response, "text_output") for response in responses).decode()
        assert "Paris" in text
        assert len(responses) > 4
        assert {one(response, "num_input_tokens") for response in responses} == {16}
        assert sum(one(response, "num_output_tokens") for response in responses) <= 24
        assert [one(response, "finish_reason") for response in responses[:-1]] == [b"None"] * (len(responses) - 1)
        assert one(responses[-1], "finish_reason") == b"stop"

    def test_without_streaming_one_response_has_prompt_and_answer(self, triton: Triton) -> None:
        with StreamCall(triton.grpc, "chat", chat_inputs("Say hello.", stream=False, max_tokens=5)) as call:
            (response,) = answers(call)
        assert one(response, "text_output").startswith(b"Say hello.")
        assert one(response, "num_output_tokens") == 5
        assert one(response, "finish_reason") == b"length"

    def test_the_same_seed_gives_the_same_text_and_another_another(self, triton: Triton) -> None:
        def said(seed: int) -> str:
            inputs = chat_inputs("Tell me a story.", max_tokens=12, temperature=1.5, seed=seed)
            with StreamCall(triton.grpc, "chat", inputs) as call:
                return call.text()

        assert said(1) == said(1) != said(2)

    def test_it_stops_before_a_stop_text(self, triton: Triton) -> None:
        inputs = chat_inputs("What is the capital of France?", max_tokens=24, stop=["Paris"])
        with StreamCall(triton.grpc, "chat", inputs) as call:
            text = call.text()
        assert text.startswith("The capital of France")
        assert "Paris" not in text

    @pytest.mark.parametrize(
        ("sampling", "said"),
        [
            ({"max_tokens": 0}, "max_tokens must be a number from 1 to 1000000, got 0"),
            ({"beam_width": 2}, "sampling parameter 'beam_width' is not supported"),
            ({"stop": [""]}, "stop must be a text"),
            ({"n": 2}, "'n' is not supported"),
        ],
    )
    def test_wrong_sampling_parameters_are_refused_by_name(
        self, triton: Triton, sampling: dict[str, Any], said: str
    ) -> None:
        with (
            StreamCall(triton.grpc, "chat", chat_inputs("Hi", **sampling)) as call,
            pytest.raises(InferenceServerException, match=said),
        ):
            call.text()

    def test_a_prompt_longer_than_the_context_is_an_error(self, triton: Triton) -> None:
        with (
            StreamCall(triton.grpc, "chat", chat_inputs("word " * 5000)) as call,
            pytest.raises(InferenceServerException, match="exceeds the available context size"),
        ):
            call.text()

    def test_a_client_that_leaves_stops_the_generation(self, triton: Triton) -> None:
        inputs = chat_inputs("Count.", max_tokens=4000, ignore_eos=True)
        with StreamCall(triton.grpc, "chat", inputs, request_id="leaver") as call:
            for _ in zip(range(3), call, strict=False):
                pass
        line = eventually(
            lambda: next((line for line in triton.log().splitlines() if "chat: request 'leaver'" in line), ""),
            what="the chat model's line about the cancelled request",
        )
        assert "cancelled after" in line
        assert int(line.split(" after ")[1].split()[0]) < 100

    def test_a_client_that_leaves_while_waiting_for_a_slot_is_forgotten(self, triton: Triton) -> None:
        long = chat_inputs("Count.", max_tokens=4000, ignore_eos=True)
        with ExitStack() as slots:
            for n in range(4):
                holder = StreamCall(triton.grpc, "chat", long, request_id=f"holder-{n}")
                next(iter(slots.enter_context(holder)))
            with StreamCall(triton.grpc, "chat", long, request_id="waiter"):
                eventually(lambda: "chat: request 'waiter' waits for a slot" in triton.log(), what="the waiter")
            eventually(lambda: "chat: request 'waiter' cancelled after 0 tokens" in triton.log(), what="its end")
            assert "chat: request 'holder-" not in triton.log()

    def test_more_streams_than_slots_wait_their_turn_and_all_complete(self, triton: Triton) -> None:
        def counted(n: int) -> int:
            with StreamCall(triton.grpc, "chat", chat_inputs(f"Say {n}.", max_tokens=2, ignore_eos=True)) as call:
                return sum(int(one(response, "num_output_tokens")) for response in answers(call))

        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(counted, range(20))) == [2] * 20


class TestSlow:
    def test_a_stream_of_3000_responses_arrives_whole_and_in_order(self, triton: Triton) -> None:
        inputs = [
            tensor("text_input", "BYTES", "go"),
            tensor("count", "INT32", 3000),
            tensor("delay_ms", "INT32", 0),
            tensor("return_num_output_tokens", "BOOL", True),
        ]
        with StreamCall(triton.grpc, "slow", inputs, request_id="slow-whole") as call:
            responses = answers(call)
        assert [one(response, "text_output") for response in responses] == [
            *(f"word{n} ".encode() for n in range(3000)),
            b"",
        ]
        assert sum(int(one(response, "num_output_tokens")) for response in responses) == 3000
        assert triton.ended("slow-whole") == "completed slow-whole after 3000"

    def test_it_reports_where_it_was_cancelled(self, triton: Triton) -> None:
        inputs = [
            tensor("text_input", "BYTES", "go"),
            tensor("count", "INT32", 100_000),
            tensor("delay_ms", "INT32", 5),
        ]
        with StreamCall(triton.grpc, "slow", inputs, request_id="slow-cut") as call:
            next(iter(call))
        how, _, _, after = triton.ended("slow-cut").split()
        assert how == "cancelled"
        assert 1 <= int(after) < 1000


class TestHold:
    def test_it_holds_for_the_time_asked(self, client: Any, triton: Triton) -> None:
        result = client.infer("hold", [tensor("ms", "INT32", 30)], request_id="hold-whole")
        assert one(result, "held_ms") >= 30
        assert triton.ended("hold-whole").startswith("completed")

    def test_a_deadline_that_passes_ends_it_early(self, client: Any, triton: Triton) -> None:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("hold", [tensor("ms", "INT32", 60_000)], request_id="hold-cut", client_timeout=2)
        assert triton.ended("hold-cut").startswith("cancelled")


CODES = {
    "UNKNOWN": "UNKNOWN",
    "INTERNAL": "INTERNAL",
    "NOT_FOUND": "NOT_FOUND",
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "UNSUPPORTED": "UNIMPLEMENTED",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
    "CANCELLED": "CANCELLED",
}


class TestFailing:
    @pytest.mark.parametrize(("asked", "answered"), CODES.items())
    def test_it_fails_with_the_code_asked_for(self, client: Any, asked: str, answered: str) -> None:
        with pytest.raises(InferenceServerException, match="because") as failure:
            client.infer("failing", [tensor("code", "BYTES", asked), tensor("message", "BYTES", "because")])
        assert failure.value.status() == f"StatusCode.{answered}"

    @pytest.mark.parametrize("after", [0, 3])
    def test_in_a_stream_it_fails_after_so_many_responses(self, triton: Triton, after: int) -> None:
        inputs = [tensor("code", "BYTES", "INTERNAL"), tensor("after", "INT32", after)]
        seen: list[bytes] = []
        with (
            StreamCall(triton.grpc, "failing_stream", inputs) as call,
            pytest.raises(InferenceServerException, match="as asked for"),
        ):
            seen.extend(one(response, "text_output") for response in call)
        assert seen == [f"word{n} ".encode() for n in range(after)]


class TestVision:
    def images(self) -> dict[str, np.ndarray[Any, Any]]:
        stripes = (np.arange(224) // 16 % 2).astype(np.float32)

        def plain(*colour: float) -> np.ndarray[Any, Any]:
            return np.broadcast_to(np.array(colour, np.float32)[:, None, None], (3, 224, 224))

        return {
            "red": plain(0.9, 0.1, 0.1),
            "green": plain(0.1, 0.8, 0.1),
            "blue": plain(0.1, 0.1, 0.9),
            "dark": plain(0.05, 0.05, 0.05),
            "bright": plain(0.95, 0.95, 0.95),
            "vertical edges": np.broadcast_to(stripes[None, None, :], (3, 224, 224)),
            "horizontal edges": np.broadcast_to(stripes[None, :, None], (3, 224, 224)),
        }

    def test_a_batch_of_each_class_gets_its_label(self, client: Any) -> None:
        images = self.images()
        batch = filled("image", "FP32", np.stack(list(images.values())))
        wanted = kserve.InferRequestedOutput("scores", class_count=1)
        result = client.infer("vision", [batch], outputs=[wanted])
        labels = [entry.decode().split(":")[2] for entry in result.as_numpy("scores")[:, 0]]
        assert labels == list(images)

    def test_requests_batched_by_triton_each_get_their_own_scores(self, triton: Triton) -> None:
        images = list(self.images().values())
        start = threading.Barrier(len(images))

        def classify(image: np.ndarray[Any, Any]) -> int:
            with kserve.InferenceServerClient(triton.grpc) as own:
                start.wait()
                return int(own.infer("vision", [filled("image", "FP32", image[None])]).as_numpy("scores").argmax())

        with ThreadPoolExecutor(len(images)) as pool:
            assert list(pool.map(classify, images)) == list(range(len(images)))


class TestRag:
    async def test_it_answers_from_the_document_that_fits(self, triton: Triton) -> None:
        async with kserve_aio.InferenceServerClient(triton.grpc) as client:
            result = await client.infer(
                "rag",
                [
                    tensor("text_input", "BYTES", "What happens when Postgres is down?"),
                    tensor("max_tokens", "INT32", 20),
                    tensor("temperature", "FP32", 0),
                    tensor("return_num_input_tokens", "BOOL", True),
                    tensor("return_num_output_tokens", "BOOL", True),
                ],
            )
        assert result.as_numpy("sources")[0] == b"When Postgres is down"
        assert "Postgres" in one(result, "text_output").decode()
        assert one(result, "num_input_tokens") > 50
        assert one(result, "num_output_tokens") == 20

    def test_counts_come_only_when_asked_for(self, client: Any) -> None:
        result = client.infer("rag", [tensor("text_input", "BYTES", "What is it?"), tensor("max_tokens", "INT32", 1)])
        assert {output.name for output in result.get_response().outputs} == {"text_output", "sources"}

    def test_an_error_of_a_step_is_the_ensembles_error(self, client: Any) -> None:
        with pytest.raises(InferenceServerException, match="max_tokens must be from 1 to 512, got 513"):
            client.infer("rag", [tensor("text_input", "BYTES", "What is it?"), tensor("max_tokens", "INT32", 513)])


class TestCounter:
    def test_two_sequences_count_apart(self, client: Any) -> None:
        def add(sequence: int, number: int, *, start: bool = False, end: bool = False) -> int:
            array = np.array([[number]], np.int32)
            result = client.infer(
                "counter",
                [filled("number", "INT32", array)],
                sequence_id=sequence,
                sequence_start=start,
                sequence_end=end,
            )
            return int(result.as_numpy("total")[0, 0])

        assert [add(1, 10, start=True), add(2, 7, start=True), add(1, 5), add(2, -1, end=True)] == [10, 7, 15, 6]
        assert add(1, 1, end=True) == 16
        with pytest.raises(InferenceServerException, match="START flag"):
            add(1, 1)


class TestEcho:
    def test_64_megabytes_go_and_come_back_over_grpc(self, client: Any) -> None:
        sent = np.arange(16 << 20, dtype=np.float32)
        result = client.infer("echo", [filled("tensor", "FP32", sent)])
        assert np.array_equal(result.as_numpy("tensor"), sent)

    def test_text_goes_and_comes_back_over_http(self, triton: Triton) -> None:
        sent = np.array([b"", b"\x00\xff", "süß".encode()], dtype=np.object_)
        with kserve_http.InferenceServerClient(triton.http) as client:
            given = kserve_http.InferInput("text", [3], "BYTES")
            given.set_data_from_numpy(sent)
            assert list(client.infer("echo", [given]).as_numpy("text")) == list(sent)


class TestTraces:
    def test_only_a_request_with_a_trace_context_makes_spans_and_they_join_it(
        self, client: Any, triton: Triton
    ) -> None:
        client.infer("echo", [tensor("tensor", "FP32", 1)], request_id="untraced")
        parent, traces = "7" * 16, [f"{n:032x}" for n in range(1, 21)]
        for trace in traces:  # of some it overlooks the context: it reads the header past its end
            headers = {"traceparent": f"00-{trace}-{parent}-01"}
            client.infer("echo", [tensor("tensor", "FP32", 1)], request_id="traced", headers=headers)

        def whole() -> dict[str, dict[str, Any]] | None:
            """One's spans by name, when all are there."""
            found = ({span["name"]: span for span in triton.otlp.spans(trace=trace)} for trace in traces)
            return next((spans for spans in found if len(spans) >= 3), None)

        spans = eventually(whole, what=f"all spans of one of {len(traces)} traces", within_s=60)
        assert spans is not None
        assert spans["InferRequest"]["parent_span_id"] == parent
        assert spans["echo"]["parent_span_id"] == spans["InferRequest"]["span_id"]
        assert spans["echo"]["attributes"]["triton.request_id"] == "traced"
        assert not any(s["attributes"].get("triton.request_id") == "untraced" for s in triton.otlp.spans())


def test_every_model_is_ready(client: Any) -> None:
    assert all(client.is_model_ready(model) for model in MODELS)
    assert {"chat", "counter", "echo", "generate", "rag", "retrieve", "vision"} <= set(MODELS)
