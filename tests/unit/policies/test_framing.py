"""Messages over a pipe: whole, in order, within bounds of size and of time."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator

import pytest

from policies import framing
from policies.compact import Archive, End, Reply
from policies.framing import MESSAGE_MAX, Broken, Reader, Writer


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # a test closed it


def plenty() -> float:
    return 30.0


def test_what_is_written_is_read_whatever_its_size(pipe: tuple[int, int]) -> None:
    inward, outward = pipe
    messages = [Archive(bytes(size)) for size in (0, 1, 70_000, 3 * 2**20)]
    writer = Writer(outward, plenty)
    writing = threading.Thread(target=lambda: [writer.write(message) for message in (*messages, End())])
    writing.start()
    reader: Reader[Reply] = Reader(inward, Reply, plenty)
    assert [reader.read() for _ in range(5)] == [*messages, End()]
    writing.join()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it ended early"),
        (struct.pack(">I", 300) + b"abc", "it ended early"),
        (struct.pack(">I", 3) + b"abc", "a message that is none"),
        (struct.pack(">I", MESSAGE_MAX + 1), f"a message of {MESSAGE_MAX + 1} bytes"),
        (struct.pack(">I", 8) + b"\x81\xa4type\xa1x", "a message that is none"),
    ],
)
def test_what_can_t_be_read(pipe: tuple[int, int], data: bytes, told: str) -> None:
    inward, outward = pipe
    os.write(outward, data)
    os.close(outward)
    with pytest.raises(Broken, match=told):
        Reader(inward, Reply, plenty).read()


def test_nobody_waits_longer_than_they_may(pipe: tuple[int, int]) -> None:
    inward, outward = pipe
    with pytest.raises(Broken, match="too long"):
        Reader(inward, Reply, lambda: 0.0).read()
    turns = iter([5.0] * 20)
    with pytest.raises(Broken, match="too long"):  # nobody reads: the pipe is full at some point
        Writer(outward, lambda: next(turns, 0.0)).write(Archive(bytes(2**22)))


def test_the_reader_goes(pipe: tuple[int, int]) -> None:
    inward, outward = pipe
    os.close(inward)
    with pytest.raises(Broken, match="ended early"):
        Writer(outward, plenty).write(End())


def test_nor_are_there_messages_without_end(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    inward, outward = pipe
    monkeypatch.setattr(framing, "TOTAL_MAX", 1000)
    writer, reader = Writer(outward, plenty), Reader[Reply](inward, Reply, plenty)
    for _ in range(3):
        writer.write(Archive(bytes(300)))
        reader.read()
    writer.write(Archive(bytes(300)))
    with pytest.raises(Broken, match="more than 1000 bytes in all"):
        reader.read()
