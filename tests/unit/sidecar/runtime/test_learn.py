"""The learner asks a real gRPC server; what it can't ask stays as it was, or unlearnt, and is said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory

from sidecar.cli.demo.ports import free_port
from sidecar.runtime.ask import TritonDesk
from sidecar.runtime.learn import Learner
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.protos import descriptor
from tests.support.store import wait_until


def made(name: str, /, **fields: Any) -> Any:
    return message_factory.GetMessageClass(descriptor(name))(**fields)


class Triton:
    """Answers for ``models``, but those in ``broken``; ``restricted``: not even its index."""

    def __init__(self) -> None:
        self.models = ["echo"]
        self.broken: set[str] = set()
        self.restricted = False
        self.junk = False
        self.rounds = 0
        methods = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self, name))
            for name in ("RepositoryIndex", "ModelMetadata", "ModelConfig")
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[service])
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def RepositoryIndex(self, _: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: N802 — the RPC's name
        self.rounds += 1
        if self.restricted:
            context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")
        if self.junk:
            return b"\xff"
        index = made("RepositoryIndexResponse")
        for name in self.models:
            index.models.add(name=name, version="1", state="READY")
        return bytes(index.SerializeToString())

    def ModelMetadata(self, message: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: N802
        name = made("ModelMetadataRequest").FromString(message).name
        if name in self.broken:
            context.abort(grpc.StatusCode.NOT_FOUND, "it was just unloaded")
        return bytes(made("ModelMetadataResponse", name=name).SerializeToString())

    def ModelConfig(self, message: bytes, _: grpc.ServicerContext) -> bytes:  # noqa: N802
        answer = made("ModelConfigResponse")
        answer.config.name = made("ModelConfigRequest").FromString(message).name
        return bytes(answer.SerializeToString())


@pytest.fixture
def triton() -> Iterator[Triton]:
    made = Triton()
    yield made
    made.server.stop(0).wait()


@pytest.fixture
def learning() -> Iterator[Callable[..., tuple[Learner, ModelBook]]]:
    learners: list[Learner] = []

    def start(port: int, *, every: float = 0.01) -> tuple[Learner, ModelBook]:
        book = ModelBook()
        learner = Learner(TritonDesk(f"127.0.0.1:{port}"), book, every=every, soonest=0.001)
        assert (learner.asked, learner.age, book.current.complete) == (False, None, False)
        learner.start()
        learners.append(learner)
        return learner, book

    yield start
    for each in learners:
        each.stop()
        assert not each._thread.is_alive()


Start = Callable[..., tuple[Learner, ModelBook]]


def test_it_learns_and_learns_again(triton: Triton, learning: Start) -> None:
    learner, book = learning(triton.port)
    wait_until(lambda: learner.asked)
    assert book.current.models.keys() == {"echo"}
    assert book.current.models["echo"].versions == ("1",)
    triton.models.append("chat")
    wait_until(lambda: book.current.models.keys() == {"echo", "chat"})
    triton.models.remove("echo")
    wait_until(lambda: book.current.models.keys() == {"chat"})
    assert learner.age is not None
    assert learner.detail == "1 known"


def test_knowledge_that_has_not_changed_is_not_swapped(triton: Triton, learning: Start) -> None:
    _, book = learning(triton.port)
    wait_until(lambda: triton.rounds > 1)
    first, rounds = book.current, triton.rounds
    wait_until(lambda: triton.rounds > rounds + 2)
    assert book.current is first


def test_a_doubt_begins_a_round_at_once(triton: Triton, learning: Start) -> None:
    learner, book = learning(triton.port, every=3600.0)
    wait_until(lambda: learner.asked)
    triton.models.append("chat")
    book.doubt()
    wait_until(lambda: "chat" in book.current.models)


def test_a_model_that_cannot_be_asked_about_is_unlearnt(triton: Triton, learning: Start) -> None:
    triton.models.append("gone")
    triton.broken = {"gone"}
    learner, book = learning(triton.port)
    wait_until(lambda: learner.asked)
    assert (book.current.models.keys(), book.current.unlearnt) == ({"echo"}, {"gone"})
    assert "gone: it was just unloaded" in learner.detail
    triton.broken = set()
    wait_until(lambda: not book.current.unlearnt)


@pytest.mark.parametrize("fault", ["restricted", "junk", "away"])
def test_what_was_known_stands_while_the_index_cannot_be_read(
    fault: str, triton: Triton, learning: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warden.models")
    learner, book = learning(triton.port)
    wait_until(lambda: learner.asked)
    known = book.current
    if fault == "away":
        triton.server.stop(0).wait()
    else:
        setattr(triton, fault, True)
    wait_until(lambda: "RepositoryIndex" in learner.detail)
    assert book.current is known
    told = [entry.getMessage() for entry in caplog.records]
    assert told.count("models.unlearnt") == 1
    if fault != "away":
        setattr(triton, fault, False)
        wait_until(lambda: learner.detail == "1 known")
        assert [entry.getMessage() for entry in caplog.records].count("models.current") == 1


def test_a_triton_that_never_was_there_has_not_been_asked(learning: Start) -> None:
    learner, book = learning(free_port())
    wait_until(lambda: "does not answer" in learner.detail)
    assert (learner.asked, learner.age, book.current.complete) == (False, None, False)


def test_a_triton_that_says_no_has_been_asked(triton: Triton, learning: Start) -> None:
    triton.restricted = True
    learner, book = learning(triton.port)
    wait_until(lambda: learner.asked)
    assert not book.current.complete


def test_a_crash_of_one_round_does_not_end_the_learning(
    triton: Triton, learning: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, book = learning(triton.port)
    wait_until(lambda: learner.asked)
    monkeypatch.setattr(learner, "_round", lambda: 1 / 0)
    wait_until(lambda: "ZeroDivisionError" in learner.detail)
    monkeypatch.undo()
    triton.models.append("chat")
    wait_until(lambda: "chat" in book.current.models)
