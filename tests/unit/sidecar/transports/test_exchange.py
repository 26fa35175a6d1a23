"""One governed call without I/O: each ending settles, with the outcome that it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sidecar.core.governor import Mode
from sidecar.core.model import RESTRICTED, Denial, Forward
from sidecar.core.reasons import Code, Reason
from sidecar.transports.exchange import CRASHED, DRAINED, Exchange, UpstreamEnd
from tests.support import kserve
from tests.support.core import FakePorts, later
from tests.support.wire import MODEL_INFER, World

REQUEST: bytes = kserve.chat(b"hello").SerializeToString()
NOT_TOLD = "the model failed; its own words are in the record of call call-1"
NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, retry_after=1.0)


def opened(world: World) -> Exchange:
    exchange = Exchange(world.services, world.context(MODEL_INFER).call(REQUEST))
    assert isinstance(exchange.open(), Forward)
    assert exchange.unsettled
    return exchange


ENDINGS: list[tuple[str, Callable[[Exchange], object], tuple[str, str]]] = [
    ("complete", lambda e: e.complete(), ("completed", "")),
    ("ended well", lambda e: e.ended(UpstreamEnd(0)), ("completed", "")),
    ("ended badly", lambda e: e.ended(UpstreamEnd(3, "bad shape")), ("failed", "")),
    ("errored", lambda e: e.errored("out of memory"), ("failed", "")),
    ("drained", lambda e: e.failed(DRAINED), ("failed", "DRAINING")),
    ("crashed", lambda e: e.failed(CRASHED), ("failed", "INTERNAL")),
    ("cancelled", lambda e: e.failed(Denial(Reason.CLIENT_CANCELLED)), ("cancelled", "CLIENT_CANCELLED")),
]


@pytest.mark.parametrize(("ending", "outcome"), [row[1:] for row in ENDINGS], ids=[row[0] for row in ENDINGS])
def test_every_ending_settles_with_its_outcome(ending: Callable[[Exchange], object], outcome: tuple[str, str]) -> None:
    world = World()
    exchange = opened(world)
    ending(exchange)
    assert not exchange.unsettled
    assert list(world.outcomes.values()) == [outcome]
    world.assert_even()


@pytest.mark.parametrize("ending", [row[1] for row in ENDINGS], ids=[row[0] for row in ENDINGS])
def test_a_second_ending_is_a_bug(ending: Callable[[Exchange], object]) -> None:
    world = World()
    exchange = opened(world)
    exchange.complete()
    with pytest.raises(RuntimeError):
        ending(exchange)
    world.assert_even()


def test_an_end_that_cannot_be_recorded_is_not_told_as_ok() -> None:
    world = World(ports=FakePorts(denials={"journal settled": NO_AUDIT}))
    assert opened(world).ended(UpstreamEnd(0)).code == Code.UNAVAILABLE
    assert opened(world).complete() == NO_AUDIT


@pytest.mark.parametrize(
    ("denial", "recorded"),
    [
        (Denial(Reason.INTERNAL, "told", internal="not told"), "not told"),
        (Denial(Reason.INTERNAL, "told"), "told"),
        (Denial(Reason.INTERNAL), ""),
    ],
)
def test_the_record_has_what_the_client_is_not_told(denial: Denial, recorded: str) -> None:
    world = World()
    opened(world).failed(denial)
    _, settled = world.ports.entries[-1]
    assert settled[2].internal == recorded  # type: ignore[index]  # call, output, outcome, usage


def test_a_refused_call_holds_nothing_and_names_its_request() -> None:
    world = World(ports=FakePorts(denials={"authorise": Denial(Reason.POLICY_FORBIDS)}))
    message = kserve.chat(b"hello")
    message.id = "mine"
    exchange = Exchange(world.services, world.context(MODEL_INFER).call(message.SerializeToString()))
    refused = exchange.open()
    assert isinstance(refused, Denial)
    assert refused.reason is Reason.POLICY_FORBIDS
    assert not exchange.unsettled
    assert exchange.request_id == "mine"


def test_an_observed_call_that_could_not_be_read_still_names_its_request() -> None:
    world = World(mode=Mode.OBSERVE)
    message = kserve.chat(b"hello")
    message.id = "mine"
    message.raw_input_contents.pop()  # a tensor without its payload
    exchange = Exchange(world.services, world.context(MODEL_INFER).call(message.SerializeToString()))
    assert isinstance(exchange.open(), Forward)
    assert exchange.request_id == "mine"


def test_tritons_words_stand_where_no_reason_of_ours_fits() -> None:
    status = opened(World()).ended(UpstreamEnd(3, "classification output tensor too large"))
    assert (status.code, status.message, status.details) == (3, "classification output tensor too large", b"")


def test_where_a_model_raised_is_for_the_record_only() -> None:
    world = World()
    words = "ValueError: no\n\nAt:\n  /opt/models/inner/1/model.py(26): execute\n"
    assert opened(world).ended(UpstreamEnd(13, words)).message == NOT_TOLD
    _, settled = world.ports.entries[-1]
    outcome = settled[2]  # type: ignore[index]  # call, output, outcome, usage
    assert (outcome.quoted.reveal().decode(), outcome.internal) == (words, "")
    assert "inner" not in repr(outcome)


def test_what_may_be_told_again_is_no_secret_of_the_record() -> None:
    world = World()
    words, told = "[request id: abc] Request was cancelled", "[request id: <id_unknown>] Request was cancelled"
    assert opened(world).ended(UpstreamEnd(1, words)).message == told
    outcome = world.ports.entries[-1][1][2]  # type: ignore[index]
    assert (outcome.quoted.reveal().decode(), outcome.internal) == (
        words,
        "[request id: <id_unknown>] Request was cancelled",
    )


def test_mode_observe_changes_no_error() -> None:
    assert opened(World(mode=Mode.OBSERVE)).ended(UpstreamEnd(13, "ValueError: no")).message == "ValueError: no"


def test_a_restricted_protocol_alarms_and_names_no_header() -> None:
    world = World()
    status = opened(world).ended(
        UpstreamEnd(14, "This protocol is restricted, expecting header 'triton-grpc-protocol-k'")
    )
    assert (status.code, "triton-grpc" in status.message) == (Code.INTERNAL, False)
    assert world.ports.entries[-1][1][2].rule == RESTRICTED  # type: ignore[index]


def test_an_in_band_error_is_told_as_a_reason_of_ours_where_there_is_one() -> None:
    assert opened(World()).errored("out of memory") is None
    assert opened(World()).errored("Exceeds maximum queue size") == Denial(Reason.UPSTREAM_QUEUE_FULL, retry_after=1.0)
    unrecorded = World(ports=FakePorts(denials={"journal settled": NO_AUDIT}))
    assert opened(unrecorded).errored("Exceeds maximum queue size") == NO_AUDIT


def test_a_full_queue_may_be_tried_again() -> None:
    status = opened(World()).ended(UpstreamEnd(14, "Exceeds maximum queue size"))
    assert status.code == Code.RESOURCE_EXHAUSTED
    assert status.message.endswith("retry in 1s")


def test_what_a_cancelled_call_holds_is_held_until_triton_has_ended_it() -> None:
    world = World()
    exchange = opened(world)
    exchange.forwarded = True
    exchange.failed(Denial(Reason.CLIENT_CANCELLED))
    assert len(world.ports.held) == 1
    world.stage.governor.sweep(later(499))
    assert world.stage.governor.running_on == 1
    world.stage.governor.sweep(later(500))
    assert not world.ports.held


@pytest.mark.parametrize("ending", [row[1] for row in ENDINGS[:4]], ids=[row[0] for row in ENDINGS[:4]])
def test_what_triton_ended_itself_is_given_back_at_once(ending: Callable[[Exchange], object]) -> None:
    world = World()
    exchange = opened(world)
    exchange.forwarded = True
    ending(exchange)
    assert not world.ports.held


@pytest.mark.parametrize("mode", Mode)
def test_an_error_names_an_aliased_model_as_its_client_does(mode: Mode) -> None:
    text = "unexpected inference input 'text_input' for model 'chat-small'"
    worlds = [World(ports=FakePorts(aliases={"chat": "chat-small"}), mode=mode) for _ in range(2)]
    told = [opened(worlds[0]).ended(UpstreamEnd(3, text)), opened(worlds[1]).erred(text)]
    assert {each.message for each in told} == {"unexpected inference input 'text_input' for model 'chat'"}
