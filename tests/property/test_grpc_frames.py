"""gRPC framing under any cutting of the bytes."""

from __future__ import annotations

import gzip
import itertools

from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.model import MalformedRequest
from sidecar.transports.grpc_frames import FrameReader, UnsupportedEncoding, decode_message, encode_message, frame

MESSAGES = st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=8)


def wire(messages: list[tuple[bytes, bool]]) -> bytes:
    out = b""
    for message, packed in messages:
        data = gzip.compress(message)
        out += b"\x01" + len(data).to_bytes(4, "big") + data if packed else frame(message)
    return out


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(MESSAGES, st.lists(st.integers(0, 5000), max_size=20))
def test_any_chunking_gives_the_same_messages(messages: list[tuple[bytes, bool]], places: list[int]) -> None:
    """Invariant: what comes out depends on the bytes only, not on how they arrived; wire_bytes add up to them."""
    data = wire(messages)
    frames = FrameReader(300, "gzip")
    found, taken = [], 0
    for chunk in cut(data, places):
        for message in frames.feed(chunk):
            found.append(message)
            taken += frames.wire_bytes
    frames.end()
    assert found == [message for message, _ in messages]
    assert taken == len(data)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6), st.sampled_from(["identity", "gzip"]))
def test_any_bytes_are_messages_or_malformed(data: bytes, places: list[int], encoding: str) -> None:
    """Invariant: nothing but the two documented exceptions comes out, and no message is over the limit."""
    frames = FrameReader(50, encoding)
    try:
        for chunk in cut(data, places):
            assert all(len(message) <= 50 for message in frames.feed(chunk))
        frames.end()
    except (MalformedRequest, UnsupportedEncoding):
        pass


@given(st.text(max_size=4000))
def test_a_status_text_survives_the_wire(text: str) -> None:
    """Invariant: any text without lone surrogates reads back as itself."""
    if text.encode("utf-8", "replace").decode() == text:
        assert decode_message(encode_message(text)) == text
