"""Asks Triton a question of the sidecar's own, from a thread: readiness, what it serves, how it is set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyqwest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from sidecar.core.reasons import Code
from sidecar.transports.grpc_frames import decode_message, frame
from sidecar.transports.upstream import Metadata, Restricted
from sidecar.triton import protos
from sidecar.triton.methods import KSERVE

__all__ = ["RESTRICTED", "TritonDesk", "Unanswered"]

TIMEOUT: Final = 2.0  # seconds
RESTRICTED: Final = "This protocol is restricted"  # Triton's words where the secret is missing or another
_ANSWER_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Triton did not answer, or refused: its gRPC code and words (``code`` None: nobody answered at all)."""

    code: Code | None
    detail: str

    @property
    def restricted(self) -> bool:
        return RESTRICTED in self.detail


class TritonDesk:
    """One HTTP/2 client without TLS by prior knowledge, as gRPC speaks it on loopback. Not for several threads."""

    def __init__(self, address: str, restricted: Restricted | None = None, *, timeout: float = TIMEOUT) -> None:
        self._origin = f"http://{address}"
        self._secret: Metadata = () if restricted is None else restricted.metadata()
        self._client = pyqwest.SyncClient(
            pyqwest.SyncHTTPTransport(
                http_version=pyqwest.HTTPVersion.HTTP2,
                connect_timeout=timeout,
                timeout=timeout,
                proxy=(),
                enable_otel=False,
            )
        )

    def ask(self, method: str, *, bare: bool = False, **fields: Any) -> Any | Unanswered:
        """One unary RPC of KServe's service, by name; ``bare``: without the restricted protocols' secret."""
        kind = protos.service().methods_by_name[method]
        request = message_factory.GetMessageClass(kind.input_type)(**fields)
        found = self._call(method, request.SerializeToString(), () if bare else self._secret)
        if isinstance(found, Unanswered):
            return found
        try:
            return message_factory.GetMessageClass(kind.output_type).FromString(found)
        except DecodeError:
            return Unanswered(Code.INTERNAL, f"its answer to {method} cannot be read")

    def _call(self, method: str, message: bytes, metadata: Metadata) -> bytes | Unanswered:
        headers = pyqwest.Headers([("content-type", "application/grpc"), ("te", "trailers"), *metadata])
        try:
            answer = self._client.post(f"{self._origin}{KSERVE}{method}", headers=headers, content=frame(message))
        except (OSError, TimeoutError, pyqwest.ReadError, pyqwest.WriteError, pyqwest.RemoteProtocolError) as fault:
            return Unanswered(None, f"Triton does not answer: {type(fault).__name__}")
        for fields in (answer.trailers, answer.headers):
            status = fields.get("grpc-status")
            if status is not None and status != "0":
                code = int(status) if status.isascii() and status.isdigit() else Code.UNKNOWN
                known = Code(code) if code in Code.__members__.values() else Code.UNKNOWN
                return Unanswered(known, decode_message(fields.get("grpc-message", ""))[:1000])
        content = bytes(answer.content)
        if not 5 <= len(content) <= _ANSWER_BYTES or content[0] != 0:
            return Unanswered(None, f"what answers is no Triton: HTTP {answer.status}")
        return content[5:]
