"""A gRPC call made frame by frame, so that its headers may be what no gRPC client would send."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from sidecar.triton.methods import KSERVE
from tests.support.sidecar import INFER

__all__ = ["INFER", "KSERVE", "Raw", "RawAnswer"]
_TIMEOUT = 10.0  # seconds


@dataclass
class RawAnswer:
    """What came back; ``broken`` where the peer reset the stream or dropped the connection instead of answering."""

    headers: dict[str, str] = field(default_factory=dict)
    broken: str = ""

    @property
    def reason(self) -> str:
        """The reason in ``[REASON] text``; "OK"; or the HTTP status or break that came instead."""
        status = self.headers.get("grpc-status")
        if self.broken or status is None:
            return self.broken or f"HTTP {self.headers.get(':status')}"
        text = unquote(self.headers.get("grpc-message", ""))
        return "OK" if status == "0" else text[1:].partition("]")[0]


class Raw:
    """One HTTP/2 connection; calls one after the other. Nothing is checked, changed or added on the way out."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._authority = address
        self._socket: socket.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = h2.config.H2Configuration(
            client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )  # fmt: skip
        self._h2 = h2.connection.H2Connection(config)
        # As gRPC's own clients send headers. In Python Huffman's coding takes 10 ms of a long token, which is not ours.
        self._h2.encoder.encode = partial(self._h2.encoder.encode, huffman=False)  # type: ignore[method-assign]
        self._h2.initiate_connection()
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())

    def call(
        self,
        message: bytes,
        headers: Sequence[tuple[str | bytes, bytes]],
        *,
        path: str = INFER,
        trailers: Sequence[tuple[str, bytes]] = (),
    ) -> RawAnswer:
        stream = self._h2.get_next_available_stream_id()
        head: list[tuple[str | bytes, str | bytes]] = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self._authority),
            ("content-type", "application/grpc"), ("te", "trailers"), *headers,
        ]  # fmt: skip
        answer = RawAnswer()
        try:
            self._h2.send_headers(stream, head)
            self._h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=not trailers)
            if trailers:
                self._h2.send_headers(stream, list(trailers), end_stream=True)
            self._flush()
            while not self._finished(stream, answer):
                pass
        except (OSError, h2.exceptions.ProtocolError) as fault:
            answer.broken = type(fault).__name__
        return answer

    def _finished(self, stream: int, answer: RawAnswer) -> bool:
        data = self._socket.recv(65536)
        if not data:
            answer.broken = "closed"
            return True
        done = False
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                if event.stream_id == stream:
                    answer.headers |= {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h2.events.DataReceived):
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamReset) and event.stream_id == stream:
                answer.broken = answer.broken or ("" if "grpc-status" in answer.headers else "reset")
                done = True
            elif isinstance(event, h2.events.ConnectionTerminated):
                answer.broken = "terminated"
                done = True
            elif isinstance(event, h2.events.StreamEnded) and event.stream_id == stream:
                done = True
        self._flush()
        return done

    def close(self) -> None:
        self._socket.close()
