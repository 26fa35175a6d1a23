"""The sidecar's own questions, asked of a real gRPC server over HTTP/2 without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from sidecar.cli.demo.ports import free_port
from sidecar.core.model import Secret
from sidecar.core.reasons import Code
from sidecar.runtime.ask import TritonDesk, Unanswered
from sidecar.transports.upstream import Restricted

HEADER, SECRET = "triton-grpc-protocol-warden", "0123456789abcdef"
RESTRICTED = Restricted("warden", Secret(SECRET.encode()))


class Triton:
    """Restricted as Triton is, answering ServerMetadata, and ModelReady with bytes that are no message."""

    def __init__(self) -> None:
        handlers = {
            "ServerMetadata": grpc.unary_unary_rpc_method_handler(self._metadata),
            "ModelReady": grpc.unary_unary_rpc_method_handler(lambda _, __: b"\xff"),
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def _metadata(self, _: bytes, context: Any) -> bytes:
        if (HEADER, SECRET) not in [(key, value) for key, value in context.invocation_metadata()]:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{HEADER}'")
        return b"\x0a\x06triton\x12\x042.99"


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    made = Triton()
    yield made
    made.server.stop(0).wait()


def test_it_asks_with_the_secret(triton: Triton) -> None:
    answer = TritonDesk(f"127.0.0.1:{triton.port}", RESTRICTED).ask("ServerMetadata")
    assert (answer.name, answer.version) == ("triton", "2.99")


def test_without_it_the_refusal_is_told_apart(triton: Triton) -> None:
    for desk, bare in (
        (TritonDesk(f"127.0.0.1:{triton.port}"), False),
        (TritonDesk(f"127.0.0.1:{triton.port}", RESTRICTED), True),
    ):
        answer = desk.ask("ServerMetadata", bare=bare)
        assert answer == Unanswered(Code.UNAVAILABLE, f"This protocol is restricted, expecting header '{HEADER}'")
        assert answer.restricted


def test_an_answer_that_is_none_is_told(triton: Triton) -> None:
    desk = TritonDesk(f"127.0.0.1:{triton.port}")
    assert desk.ask("ModelReady", name="x") == Unanswered(Code.INTERNAL, "its answer to ModelReady cannot be read")
    answer = desk.ask("ModelConfig", name="x")
    assert isinstance(answer, Unanswered)
    assert (answer.code, answer.restricted) == (Code.UNIMPLEMENTED, False)


def test_nobody_answers() -> None:
    answer = TritonDesk(f"127.0.0.1:{free_port()}").ask("ServerLive")
    assert isinstance(answer, Unanswered)
    assert answer.code is None
    assert answer.detail.startswith("Triton does not answer: ")
