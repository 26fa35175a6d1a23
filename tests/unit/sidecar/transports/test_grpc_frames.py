"""gRPC's framing: what a peer may send, and what it may not."""

from __future__ import annotations

import gzip
import random
import time
import zlib
from collections.abc import Callable

import pytest

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.transports.grpc_frames import (
    ENCODINGS,
    INFLATED,
    FrameReader,
    UnsupportedEncoding,
    decode_message,
    encode_message,
    format_timeout,
    frame,
    parse_timeout,
    prefix,
)


def compressed(data: bytes) -> bytes:
    return b"\x01" + len(data).to_bytes(4, "big") + data


def read(data: bytes, *, limit: int = 1000, encoding: str = "identity") -> list[bytes]:
    frames = FrameReader(limit, encoding)
    found = list(frames.feed(data))
    frames.end()
    return found


def test_a_frame_is_a_flag_a_length_and_the_message() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x00\x03abc" == prefix(3) + b"abc"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_each_encoding_offered_is_read(encoding: str, pack: object) -> None:
    assert encoding in ENCODINGS
    data = compressed(pack(b"hello")) + frame(b"plain")  # type: ignore[operator]  # a compressor
    assert read(data, encoding=encoding) == [b"hello", b"plain"]


def test_a_message_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert read(frame(b"x" * 1000)) == [b"x" * 1000]
    with pytest.raises(MalformedRequest) as fault:
        next(FrameReader(1000).feed(prefix(1001)))  # told before any of it was received
    assert fault.value.reason is Reason.REQUEST_TOO_LARGE


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_bomb_is_refused_at_the_limit(encoding: str, pack: object) -> None:
    bomb = compressed(pack(b"\0" * 800_000))  # type: ignore[operator]  # a compressor
    assert len(bomb) < 1000
    with pytest.raises(MalformedRequest) as fault:
        read(bomb, encoding=encoding)
    assert fault.value.reason is Reason.REQUEST_TOO_LARGE
    assert read(compressed(pack(b"\0" * 1000)), encoding=encoding) == [b"\0" * 1000]  # type: ignore[operator]


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\x00\x00\x00\x00",
        b"\xff\x00\x00\x00\x01x",
        compressed(b"not gzip"),
        compressed(gzip.compress(b"x" * 500, mtime=0)[:-9]),
        compressed(b""),
    ],
)
def test_what_is_no_message_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequest) as fault:
        read(data, encoding="gzip")
    assert fault.value.reason is Reason.REQUEST_MALFORMED


@pytest.mark.parametrize("encoding", ["identity", "br", ""])
def test_a_compressed_message_needs_an_encoding_that_was_agreed(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding):
        read(compressed(gzip.compress(b"x")), encoding=encoding)


@pytest.mark.parametrize("size", [1, 4, 5, 7])
def test_an_end_inside_a_message_is_malformed(size: int) -> None:
    with pytest.raises(MalformedRequest, match="inside a message"):
        read(frame(b"abc")[:size])


def test_reading_many_small_messages_of_one_piece_takes_time_in_proportion() -> None:
    """A megabyte of empty messages took 10 s while each copied what was behind it."""
    data = frame(b"") * 200_000
    began = time.perf_counter()
    assert len(read(data)) == 200_000
    assert time.perf_counter() - began < 4


def test_a_message_may_come_in_pieces_behind_another() -> None:
    frames = FrameReader(1000)
    assert list(frames.feed(frame(b"a") + frame(b"bcd")[:6])) == [b"a"]
    assert list(frames.feed(b"")) == []
    assert list(frames.feed(b"cd" + frame(b"e")[:2])) == [b"bcd"]
    assert list(frames.feed(frame(b"e")[2:])) == [b"e"]
    frames.end()


def test_wire_bytes_are_of_the_message_given_last() -> None:
    frames = FrameReader(1000, "gzip")
    packed = compressed(gzip.compress(b"x" * 900))
    sizes = [(len(message), frames.wire_bytes) for message in frames.feed(frame(b"abc") + packed)]
    assert sizes == [(3, 8), (900, len(packed))]


# --- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1H", 3_600_000_000_000),
        ("2M", 120_000_000_000),
        ("3S", 3_000_000_000),
        ("4m", 4_000_000),
        ("5u", 5_000),
        ("6n", 6),
        ("0n", 0),
        ("00000001S", 1_000_000_000),
        ("99999999S", 99_999_999_000_000_000),
        ("99999999H", None),  # eleven thousand years
    ],
)
def test_a_timeout_is_read_in_nanoseconds(text: str, ns: int | None) -> None:
    assert parse_timeout(text) == ns


@pytest.mark.parametrize(
    "text", ["", "S", "1", "1s", "1h", "-1S", "+1S", "1.5S", "123456789S", " 1S", "1S ", "1_0S", "٣S", "²S"]
)
def test_any_other_timeout_is_malformed(text: str) -> None:
    with pytest.raises(MalformedRequest):
        parse_timeout(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (-5, "1m"),
        (0, "1m"),
        (1_500_000, "1m"),
        (10**9, "1000m"),
        (10**14 - 1, "99999999m"),
        (10**14, "100000S"),
        (10**15, "1000000S"),
        (10**20, "99999999S"),
    ],
)
def test_a_timeout_is_written_in_at_most_eight_digits(ns: int, text: str) -> None:
    assert format_timeout(ns) == text


# --- status text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "header"),
    [("plain text", "plain text"), ("100%", "100%25"), ("über\n", "%C3%BCber%0A"), ("\x7f~ ", "%7F~ ")],
)
def test_a_status_text_travels_as_printable_ascii(text: str, header: str) -> None:
    assert encode_message(text) == header
    assert decode_message(header) == text


def test_a_status_text_is_bounded_and_never_fails() -> None:
    assert len(encode_message("x" * 10_000)) == 4096
    assert encode_message("\ud800").isascii()
    assert decode_message("%FF%zz") == "\ufffd%zz"


@pytest.mark.parametrize("size", [0, 1, INFLATED, INFLATED + 1, 5 * INFLATED])
@pytest.mark.parametrize("fill", [bytes, random.Random(1).randbytes], ids=["zeros", "noise"])
def test_a_compressed_message_grows_in_bounded_pieces(size: int, fill: Callable[[int], bytes]) -> None:
    plain = fill(size)
    frames = FrameReader(5 * INFLATED, "gzip")
    found = list(frames.inflate(1, gzip.compress(plain)))
    assert b"".join(found) == plain
    assert max(map(len, found), default=0) <= INFLATED


def test_a_bomb_is_put_out_as_soon_as_it_is_over_the_limit() -> None:
    grown = FrameReader(2 * INFLATED, "gzip").inflate(1, gzip.compress(bytes(100 * INFLATED)))
    assert [len(next(grown)), len(next(grown))] == [INFLATED, INFLATED]
    with pytest.raises(MalformedRequest, match="once decompressed"):
        next(grown)


@pytest.mark.parametrize("message", [b"", b"x", b"x" * 1000])
def test_a_message_that_came_alone_is_what_feeding_it_gives(message: bytes) -> None:
    assert FrameReader(1000).alone(frame(message)) == message == read(frame(message))[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(b"x")[:4],
        frame(b"xy")[:-1],
        frame(b"x") * 2,
        frame(b"x") + b"\x00",
        compressed(b"x"),
        frame(b"x" * 1001),
    ],
)
def test_what_is_anything_else_has_to_be_fed(data: bytes) -> None:
    assert FrameReader(1000).alone(data) is None


def test_no_message_comes_alone_behind_the_half_of_another() -> None:
    frames = FrameReader(1000)
    list(frames.feed(frame(b"xy")[:-1]))
    assert frames.alone(frame(b"z")) is None
