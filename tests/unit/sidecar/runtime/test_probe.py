"""The probe asks a real gRPC server, over HTTP/2 without TLS, and says what it said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from sidecar.cli.demo.ports import free_port
from sidecar.runtime.probe import UpstreamProbe
from tests.support.store import wait_until

READY, NOT_READY = b"\x08\x01", b""


class Triton:
    """Answers ServerReady with ``answer``."""

    def __init__(self) -> None:
        self.answer = READY
        self.asked = 0
        handler = grpc.unary_unary_rpc_method_handler(self._ready)
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ServerReady": handler})
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def _ready(self, message: bytes, _: grpc.ServicerContext) -> bytes:
        assert message == b""
        self.asked += 1
        return self.answer


@pytest.fixture
def triton() -> Iterator[Triton]:
    made = Triton()
    yield made
    made.server.stop(0).wait()


@pytest.fixture
def probing() -> Iterator[Callable[[int], UpstreamProbe]]:
    probes: list[UpstreamProbe] = []

    def start(port: int) -> UpstreamProbe:
        probe = UpstreamProbe(f"127.0.0.1:{port}", every=0.01)
        assert (probe.ready, probe.detail) == (False, "not asked yet")
        probe.start()
        probes.append(probe)
        return probe

    yield start
    for each in probes:
        each.stop()
        assert not each._thread.is_alive()


def test_a_ready_server_is_ready_and_is_asked_again_and_again(
    triton: Triton, probing: Callable[[int], UpstreamProbe]
) -> None:
    probe = probing(triton.port)
    wait_until(lambda: probe.detail == "ready")
    assert probe.ready
    triton.answer = NOT_READY
    wait_until(lambda: probe.detail == "Triton answers that it is not ready")
    assert not probe.ready
    triton.answer = READY
    wait_until(lambda: probe.ready)
    assert triton.asked > 2


def test_a_server_that_goes_away_is_not_ready(triton: Triton, probing: Callable[[int], UpstreamProbe]) -> None:
    probe = probing(triton.port)
    wait_until(lambda: probe.ready)
    triton.server.stop(0).wait()
    # A call that the stopping server cuts off is answered "not ready" first.
    wait_until(lambda: probe.detail.startswith("Triton does not answer: "))
    assert not probe.ready


def test_no_server_at_all_is_not_ready(probing: Callable[[int], UpstreamProbe]) -> None:
    probe = probing(free_port())
    wait_until(lambda: probe.detail != "not asked yet")
    assert not probe.ready


def test_a_crash_of_one_look_is_not_ready_and_does_not_end_the_looking(
    triton: Triton, probing: Callable[[int], UpstreamProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = probing(triton.port)
    wait_until(lambda: probe.ready)
    with monkeypatch.context() as patch:
        patch.setattr(probe, "_ask", lambda _: 1 // 0)
        wait_until(lambda: probe.detail == "asking failed: ZeroDivisionError")
        assert not probe.ready
    wait_until(lambda: probe.ready)
