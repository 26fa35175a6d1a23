"""What a stream needs beside the facts: ids of messages, and what makes Triton tell a call's end."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import MalformedRequest
from sidecar.triton.protos import descriptor
from sidecar.triton.wire import scan, spec_of, text

_SPEC: Final = spec_of(descriptor("ModelInferRequest"))
_STREAM: Final = spec_of(descriptor("ModelStreamInferResponse"))
_RESPONSE: Final = spec_of(descriptor("ModelInferResponse"))
_LONGEST: Final = 128  # characters of an id that are given back, as many as an id may have


def peek_request_id(message: bytes) -> str:
    """The ``id`` of a ModelInferRequest; "" where it can't be read. Nothing else of the message is looked at."""
    try:
        ids = [text(message, found, _SPEC) for found in scan(message, _SPEC) if found.field.name == "id"]
    except MalformedRequest:
        return ""
    return ids[0][:_LONGEST] if ids else ""


def peek_model(message: bytes) -> str:
    """The model's name that a ModelInferRequest gives first; "" where it can't be read."""
    try:
        for found in scan(message, _SPEC):
            if found.field.name == "model_name":
                return text(message, found, _SPEC)
    except MalformedRequest:
        return ""
    return ""


def sent_request_id(message: bytes, suffix: bytes) -> str:
    """The id that Triton reads from a request of ours and what is appended to it: the last one counts (proto3)."""
    try:
        for part in (suffix, message):
            ids = [text(part, found, _SPEC) for found in scan(part, _SPEC) if found.field.name == "id"]
            if ids:
                return ids[-1]
    except MalformedRequest:  # mode observe forwards what can't be read
        return ""
    return ""


def peek_response_id(message: bytes) -> str:
    """The ``infer_response.id`` of a ModelStreamInferResponse; "" where it can't be read."""
    try:
        for outer in scan(message, _STREAM):
            if outer.field.name == "infer_response":
                for found in scan(message, _RESPONSE, outer.start, outer.end):
                    if found.field.name == "id":
                        return text(message, found, _RESPONSE)
    except MalformedRequest:  # a field that a newer Triton has
        return ""
    return ""


# Appended to a request it is one more entry of the map ``parameters`` (field 4): triton_enable_empty_final_response =
# true. Field 4, length-delimited, holding key (1) and InferParameter (2) with bool_param (1).
_KEY: Final = b"triton_enable_empty_final_response"
_ENTRY: Final = b"\x0a" + bytes([len(_KEY)]) + _KEY + b"\x12\x02\x08\x01"
EMPTY_FINAL_SUFFIX: Final = b"\x22" + bytes([len(_ENTRY)]) + _ENTRY
