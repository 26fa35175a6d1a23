"""A call aimed at another model or version than it names: two fields behind the request, one behind each response."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sidecar.core.model import Action, Forward, Method, ResponseFacts, Verdict, replace

__all__ = ["aimed", "renamed"]

# The last of a scalar field is what counts, and messages of one field are merged (protobuf.dev/programming-guides/
# encoding, "Last One Wins"); so neither a request nor a response is copied to change a name in it.
_REQUEST_MODEL: Final = b"\x0a"  # field 1 of every request that names a model, but RepositoryModelLoad's and -Unload's
_REQUEST_VERSION: Final = b"\x12"  # field 2
_RESPONSE_MODEL: Final = b"\x0a"  # field 1 of ModelInferResponse, and of ModelMetadataResponse
_STREAM_RESPONSE: Final = b"\x12"  # field 2 of ModelStreamInferResponse: the ModelInferResponse


def aimed(forward: Forward, verdict: Verdict) -> Forward:
    """``forward`` to the model that answers for an alias, and to the version that was picked."""
    suffix = b""
    if verdict.alias:
        suffix += _REQUEST_MODEL + _text(verdict.profile.name)
    if verdict.route.version:
        suffix += _REQUEST_VERSION + _text(verdict.route.version)
    return replace(forward, suffix=forward.suffix + suffix) if suffix and forward.answer is None else forward


def renamed(facts: ResponseFacts, method: Method, alias: str) -> ResponseFacts:
    """What the client is sent says the name that it asked for. An answer without a model's name stays without."""
    if method.action is Action.INFER and facts.model:
        name = _RESPONSE_MODEL + _text(alias)
        suffix = _STREAM_RESPONSE + _length(name) + name if method.streaming else name
        return replace(facts, message=facts.message + suffix)
    if method.name == "ModelMetadata":
        return replace(facts, message=facts.message + _RESPONSE_MODEL + _text(alias))
    return facts


def _length(data: bytes) -> bytes:
    """A varint; names and versions are short, so two bytes of it are enough (2^14)."""
    size = len(data)
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


@lru_cache(1024)
def _text(value: str) -> bytes:
    data = value.encode()
    return _length(data) + data
