"""Headers as anybody may send them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.model import Denial
from sidecar.transports.context import read
from tests.support.core import AT
from tests.support.wire import BOUNDS, MODEL_INFER, World

NAMES = st.sampled_from(
    [
        "authorization",
        "x-api-key",
        "x-api-key-bin",
        "grpc-timeout",
        "grpc-encoding",
        "x-data-class",
        "x-warden-subject",
        "x-warden-conversation",
        "traceparent",
        "tracestate",
        "other",
    ]
)
VALUES = st.one_of(
    st.text(max_size=60),
    st.binary(max_size=60),
    st.from_regex(r"[0-9]{1,9}[HMSmunx]", fullmatch=True),
    st.from_regex(r"0[01]-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True),
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_any_headers_are_read_without_raising(pairs: list[tuple[str, bytes | str]]) -> None:
    """Invariant: what can't be read refuses the call; a deadline is never beyond the bound; the trace is whole."""
    world = World()
    context = read(world.services, MODEL_INFER, pairs, "")
    assert AT.mono_ns <= context.deadline_ns <= AT.mono_ns + BOUNDS.call_timeout * 1e9
    assert len(context.trace.traceparent) == 55
    named = [name for name, _ in pairs if name in ("authorization", "x-api-key", "x-api-key-bin")]
    if len(named) != 1:
        assert isinstance(context.credential, Denial)
    for name in ("x-data-class", "x-warden-subject", "x-warden-conversation", "grpc-timeout"):
        if [key for key, _ in pairs].count(name) > 1:
            assert context.fault is not None
