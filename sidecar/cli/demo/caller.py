"""How the tour calls the models: the stock tritonclient, each call traced by a span of the client's own."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tritonclient.utils import InferenceServerException

STREAM_DEADLINE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller got: text or labels, or the refusal's words; and the trace that it can be found by."""

    trace_id: str
    text: str = ""
    pieces: int = 0
    refusal: str = ""
    code: str = ""
    first_s: float = 0.0
    total_s: float = 0.0


class Caller:
    """One program of a tenant's, speaking to ``address`` with ``tritonclient``."""

    def __init__(self, address: str, collector: str) -> None:
        self._client = triton.InferenceServerClient(address)
        self._provider = TracerProvider(resource=Resource.create({"service.name": "demo-client"}))
        self._provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"http://{collector}", insecure=True)))
        self._tracer = self._provider.get_tracer("demo")
        self._address = address

    def close(self) -> None:
        self._client.close()
        self._provider.shutdown()

    @contextmanager
    def _traced(self, name: str, headers: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
        with self._tracer.start_as_current_span(name, kind=trace.SpanKind.CLIENT) as span:
            context = span.get_span_context()
            parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
            yield f"{context.trace_id:032x}", {**headers, "traceparent": parent}

    def chat(
        self, prompt: str, max_tokens: int, headers: dict[str, str], say: Callable[[str], None] = lambda _: None
    ) -> Answer:
        """Stream from the model ``chat`` (vLLM backend's tensors); ``say`` is given each piece as it arrives."""
        arrived: queue.Queue[tuple[Any, InferenceServerException | None] | None] = queue.Queue()
        with self._traced("chat", headers) as (trace_id, traced):
            began = time.monotonic()
            client = triton.InferenceServerClient(self._address)
            client.start_stream(
                lambda result, error: arrived.put((result, error)), headers=traced, stream_timeout=STREAM_DEADLINE_S
            )
            # A stream that is refused at once may be closed by now: then this raises, and the callback knows why.
            with suppress(InferenceServerException):
                client.async_stream_infer("chat", _chat_inputs(prompt, max_tokens), enable_empty_final_response=True)
            pieces: list[str] = []
            first = 0.0
            while (item := arrived.get(timeout=STREAM_DEADLINE_S)) is not None:
                result, error = item
                if error is not None:
                    client.stop_stream(cancel_requests=True)
                    return Answer(trace_id, refusal=str(error.message()), code=str(error.status() or "in-band"))
                response = result.get_response()
                if response.outputs:
                    first = first or time.monotonic() - began
                    pieces.append(result.as_numpy("text_output")[0].decode("utf-8", "replace"))
                    say(pieces[-1])
                if response.parameters["triton_final_response"].bool_param:
                    break
            client.stop_stream()
            client.close()
        return Answer(trace_id, "".join(pieces), len(pieces), first_s=first, total_s=time.monotonic() - began)

    def classify(self, image: Any, headers: dict[str, str]) -> Answer:
        """Unary: the three likeliest labels of one image (FP32, 1×3×224×224)."""
        tensor = triton.InferInput("image", list(image.shape), "FP32")
        tensor.set_data_from_numpy(image)
        wanted = triton.InferRequestedOutput("scores", class_count=3)
        with self._traced("vision", headers) as (trace_id, traced):
            began = time.monotonic()
            try:
                result = self._client.infer("vision", [tensor], outputs=[wanted], headers=traced)
            except InferenceServerException as error:
                return Answer(trace_id, refusal=str(error.message()), code=str(error.status()))
            labels = [value.decode() for value in result.as_numpy("scores").flatten()]
        return Answer(trace_id, ", ".join(labels), len(labels), total_s=time.monotonic() - began)

    def ask(
        self, rpc: Callable[[triton.InferenceServerClient, dict[str, str]], Any], headers: dict[str, str]
    ) -> Answer:
        """Any other RPC of the client."""
        with self._traced("rpc", headers) as (trace_id, traced):
            try:
                return Answer(trace_id, str(rpc(self._client, traced)))
            except InferenceServerException as error:
                return Answer(trace_id, refusal=str(error.message()), code=str(error.status()))


def _chat_inputs(prompt: str, max_tokens: int) -> list[triton.InferInput]:
    sampling = json.dumps({"max_tokens": max_tokens, "temperature": 0})
    values: dict[str, tuple[str, Any]] = {
        "text_input": ("BYTES", np.array([prompt.encode()], dtype=np.object_)),
        "stream": ("BOOL", np.array([True])),
        "sampling_parameters": ("BYTES", np.array([sampling.encode()], dtype=np.object_)),
        "return_num_input_tokens": ("BOOL", np.array([True])),
        "return_num_output_tokens": ("BOOL", np.array([True])),
    }
    inputs: list[triton.InferInput] = []
    for name, (datatype, value) in values.items():
        tensor = triton.InferInput(name, [1], datatype)
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs
