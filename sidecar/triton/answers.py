"""The messages that the sidecar itself writes: health, and a refusal inside a living stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.triton.protos import ModelStreamInferResponse

__all__ = ["SERVICE_UNKNOWN", "health", "reworded", "server_live", "server_ready", "stream_error"]

# One varint field numbered 1 each: ServerLiveResponse.live, ServerReadyResponse.ready (bool), and
# grpc.health.v1.HealthCheckResponse.status (SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3). False is
# proto3's default: not written.
_FALSE: Final = b""
_TRUE: Final = b"\x08\x01"
_SERVING: Final = b"\x08\x01"
_NOT_SERVING: Final = b"\x08\x02"
SERVICE_UNKNOWN: Final = b"\x08\x03"  # to a Watch only


def server_live(live: bool) -> bytes:  # noqa: FBT001 — the answer is the one thing passed
    """A ServerLiveResponse."""
    return _TRUE if live else _FALSE


def server_ready(ready: bool) -> bytes:  # noqa: FBT001 — as above
    """A ServerReadyResponse."""
    return _TRUE if ready else _FALSE


def health(serving: bool) -> bytes:  # noqa: FBT001 — as above
    """A grpc.health.v1.HealthCheckResponse."""
    return _SERVING if serving else _NOT_SERVING


def reworded(answer: bytes, text: str) -> bytes:
    """A ModelStreamInferResponse of Triton's that it has read already, with another ``error_message``."""
    changed = ModelStreamInferResponse.FromString(answer)
    changed.error_message = text
    serialized: bytes = changed.SerializeToString()
    return serialized


def stream_error(text: str, request_id: str, parameters: Mapping[str, str | int | bool]) -> bytes:
    """A ModelStreamInferResponse that ends one request of a stream: ``error_message``, id, parameters (DESIGN §6)."""
    answer = ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    for name, value in parameters.items():
        parameter = answer.infer_response.parameters[name]
        match value:
            case bool():
                parameter.bool_param = value
            case int():
                parameter.int64_param = value
            case str():
                parameter.string_param = value
    serialized: bytes = answer.SerializeToString()
    return serialized
