"""What is read of an RPC's headers: once, without raising, and the same for both wires."""

from __future__ import annotations

import pytest

from sidecar.core.model import Credential, Denial
from sidecar.core.reasons import Reason
from sidecar.transports.context import CANCELLED, EXPIRED, governed, read
from sidecar.triton.methods import HEALTH, KSERVE, METHODS, lookup
from tests.support.core import AT, later
from tests.support.wire import MODEL_INFER, World

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_an_rpc_is_read_whole() -> None:
    context = World().context(
        MODEL_INFER,
        ("x-data-class", b"phi"),
        ("x-warden-subject", "Zoe"),
        ("x-warden-conversation", "c/7"),
        ("grpc-encoding", b"gzip"),
        ("grpc-timeout", b"250m"),
        ("traceparent", PARENT),
        ("tracestate", "vendor=1"),
    )
    assert context.fault is None
    assert isinstance(context.credential, Credential)
    assert (context.data_class, context.subject, context.conversation) == ("phi", "Zoe", "c/7")
    assert (context.encoding, context.peer, context.id) == ("gzip", "127.0.0.1:5000", "call-1")
    assert context.deadline_ns == AT.mono_ns + 250_000_000
    assert context.trace.parent_id == "b7ad6b7169203331"
    assert (context.trace.trace_id, context.trace.tracestate) == ("0af7651916cd43dd8448eb211c80319c", "vendor=1")
    assert context.trace.span_id != context.trace.parent_id
    call = context.call(b"m")
    assert (call.id, call.message, call.stream, call.trace) == ("call-1", b"m", None, context.trace)


@pytest.mark.parametrize("name", ["x-data-class", "x-warden-subject", "x-warden-conversation", "grpc-timeout"])
def test_a_header_given_twice_is_ambiguous(name: str) -> None:
    context = World().context(MODEL_INFER, (name, "1S"), (name, "1S"))
    assert context.fault == Denial(Reason.REQUEST_AMBIGUOUS, f"{name} is given 2 times", rule="headers")
    assert (context.data_class, context.subject) == ("", "")
    assert context.call(b"").fault is context.fault


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-data-class", ""),
        ("x-data-class", "a b"),
        ("x-data-class", "phi\n"),
        ("x-data-class", "x" * 65),
        ("x-data-class", "ünsafe"),
        ("x-warden-subject", ""),
        ("x-warden-subject", "x" * 257),
        ("x-warden-subject", "a\x00b"),
        ("x-warden-subject", "alice\n"),
        ("x-warden-conversation", "\x7f"),
        ("x-warden-subject", b"na\xc3\xafve"),
        ("x-warden-subject", "na\u00efve"),
        ("x-warden-conversation", b"\x85"),
        ("grpc-timeout", "1 S"),
        ("grpc-timeout", ""),
    ],
)
def test_a_header_that_cannot_be_read_refuses_the_call(name: str, value: str) -> None:
    context = World().context(MODEL_INFER, (name, value))
    assert context.fault is not None
    assert (context.fault.reason, context.fault.rule) == (Reason.REQUEST_MALFORMED, "headers")
    assert name in context.fault.detail


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        PARENT.upper(),
        PARENT + "\n",
        PARENT + "-extra",
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
    ],
)
def test_a_trace_that_is_not_valid_is_begun_anew(parent: str) -> None:
    trace = World().context(MODEL_INFER, ("traceparent", parent), ("tracestate", "vendor=1")).trace
    assert trace.parent_id is None
    assert (trace.tracestate, trace.sampled) == ("", True)
    assert len(trace.traceparent) == 55


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)])
def test_only_the_lowest_flag_says_sampled(flags: str, sampled: bool) -> None:
    assert World().context(MODEL_INFER, ("traceparent", PARENT[:-2] + flags)).trace.sampled is sampled


@pytest.mark.parametrize("state", ["x" * 513, "a=\tb", "ü=1"])
def test_a_tracestate_that_is_not_valid_is_left_out(state: str) -> None:
    trace = World().context(MODEL_INFER, ("traceparent", PARENT), ("tracestate", state)).trace
    assert (trace.parent_id, trace.tracestate) == ("b7ad6b7169203331", "")


@pytest.mark.parametrize(
    ("headers", "given", "seconds"),
    [
        ((), None, 60.0),  # bounds.call_timeout
        ((("grpc-timeout", "1S"),), None, 1.0),
        ((("grpc-timeout", "99999999H"),), None, 60.0),
        ((("grpc-timeout", "2H"),), None, 60.0),
        ((), 5_000_000_000, 5.0),
        ((), 10**18, 60.0),
        ((("grpc-timeout", "0n"),), None, 0.0),
    ],
)
def test_a_deadline_is_the_clients_but_never_later_than_the_bound(
    headers: tuple[tuple[str, str], ...], given: int | None, seconds: float
) -> None:
    world = World()
    context = read(world.services, MODEL_INFER, headers, "", timeout=given)
    assert context.remaining(AT) == seconds
    assert context.remaining(later(10**6)) == 0.0


def test_a_client_that_leaves_at_its_deadline_has_expired() -> None:
    context = World().context(MODEL_INFER, ("grpc-timeout", "100m"))
    assert context.gone(later(80)) is CANCELLED
    assert context.gone(later(95)) is EXPIRED
    assert context.gone(later(500)) is EXPIRED


def test_each_message_of_a_stream_has_an_id_and_a_span_of_its_own() -> None:
    context = World().context(MODEL_INFER)
    call = context.streamed(3, b"m", later(7), "a" * 16)
    assert (call.id, call.stream, call.arrived) == ("call-1/3", "call-1", later(7))
    assert call.trace is not None
    assert (call.trace.span_id, call.trace.trace_id) == ("a" * 16, context.trace.trace_id)


@pytest.mark.parametrize("credential", [(), (("x-api-key", "a"), ("authorization", "Bearer b"))])
def test_no_credential_and_two_are_denials_of_every_call(credential: tuple[tuple[str, str], ...]) -> None:
    assert isinstance(read(World().services, MODEL_INFER, credential, "").credential, Denial)


def test_all_but_health_is_governed() -> None:
    answered = {path for path, method in METHODS.items() if not governed(method)}
    assert answered == {KSERVE + "ServerLive", KSERVE + "ServerReady", HEALTH + "Check", HEALTH + "Watch"}
    assert governed(lookup("/anything/else"))
