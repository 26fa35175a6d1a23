"""HTTP/2 by hand (RFC 9113), for requests that no client library would send."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK's literal without indexing, of fewer than 127 bytes a part (RFC 7541 §6.2.2)."""
    assert max(len(name), len(value)) < 127
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def ends(address: str, path: bytes, headers: Sequence[tuple[bytes, bytes]] = (), *, within_s: float) -> bytes | None:
    """The answer's data, to one POST without a body; None: it had no end in time. A reset or GOAWAY is an end too."""
    host, _, port = address.rpartition(":")
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"), *headers]
    block = b"".join(literal(*field) for field in fields)
    with socket.create_connection((host, int(port)), within_s) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_STREAM | END_HEADERS, 1, block))
        data = b""
        try:
            for kind, flags, stream, payload in _frames(connection):
                data += payload if kind == DATA else b""
                ended = stream == 1 and (kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM))
                if ended or kind == GOAWAY:
                    return data
        except TimeoutError:
            return None
        return data


def _frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Until the peer closes."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(9)) == 9:
            payload = stream.read(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, payload
