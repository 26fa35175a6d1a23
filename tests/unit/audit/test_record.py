"""The journal's entries: each reads back as itself, and their layout is fixed, for old journals must stay readable."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.record import (
    Admitted,
    CallFacts,
    Content,
    Entry,
    Event,
    Output,
    Refused,
    Settled,
    Tensor,
    decode,
    encode,
    store_of,
)

FACTS = CallFacts(
    call_id="c-1",
    started_ns=1,
    decided_ns=2,
    method="/m",
    tenant="acme",
    parameters={"temperature": 0.5, "seed": 7, "stream": True, "lora": "x"},
    tensors=[Tensor("text_input", "BYTES", [1], 9)],
    prompt=Content(5, b"\x00" * 32, [b"he", b"llo"]),
)
ENTRIES: list[Entry] = [
    Admitted(FACTS),
    Refused(FACTS, "RATE_TOKENS", 8, "told", "not told"),
    Output("c-1", 3, 0, [b"a", b"", b"\xff"]),
    Settled("c-1", 4, "completed", 0, "", "", 1, [b"b"], 2, b"\x01" * 32, 3, 2, True, False, 2, 90, 10, 20, "1"),
    Event("e-1", 5, "bundle_loaded", "serve", {"digest": "sha256:0", "n": 1, "ok": True, "x": 0.5}),
]
# The places of the fields, frozen: new ones are appended here, none is moved or taken away.
LAYOUT: dict[type[msgspec.Struct], str] = {
    Tensor: "name datatype shape nbytes",
    Content: "nbytes sha256 parts",
    CallFacts: """call_id started_ns decided_ns method tenant principal principal_kind issuer key_id subject
        conversation model version request_id data_class rule bundle level retention_days peer trace_id span_id
        parent_id sampled parameters tensors request_bytes prompt_tokens requested_tokens prompt would_refuse
        may_trace alias routed_version route route_why redact roles narrowed classes would_rule findings searchable
        reserved store actor""",
    Admitted: "call",
    Refused: "call reason status detail internal",
    Output: "call_id at_ns offset texts store",
    Settled: """call_id at_ns outcome status reason internal offset texts output_bytes output_sha256 input_tokens
        output_tokens input_exact output_exact responses response_bytes first_response_ns duration_ns model_version
        model_digest quoted findings holds_until_ns kv_byte_ms store""",
    Event: "id at_ns kind actor detail store",
}
TAGS = {Admitted: "admitted", Refused: "refused", Output: "output", Settled: "settled", Event: "event"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_reads_back_as_itself(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


@pytest.mark.parametrize("kind", LAYOUT, ids=lambda kind: kind.__name__)
def test_fields_keep_their_places(kind: type[msgspec.Struct]) -> None:
    frozen = tuple(LAYOUT[kind].split())
    assert kind.__struct_fields__[: len(frozen)] == frozen


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_an_array_that_begins_with_its_tag(entry: Entry) -> None:
    array = msgspec.msgpack.decode(encode(entry))
    assert array[0] == TAGS[type(entry)]


def test_an_entry_of_an_older_release_reads_with_todays_defaults() -> None:
    older = msgspec.msgpack.encode(["admitted", ["c-1", 1, 2, "/m", "acme"]])
    assert decode(older) == Admitted(CallFacts("c-1", 1, 2, "/m", "acme"))


def test_what_a_newer_release_appends_is_passed_over() -> None:
    newer = msgspec.msgpack.encode(["output", "c-1", 3, 0, [b"a"], "US", "something new"])
    assert decode(newer) == Output("c-1", 3, 0, [b"a"], "US")


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x00", msgspec.msgpack.encode(["unheard-of", 1]), msgspec.msgpack.encode(["output", 5])]
)
def test_what_is_no_entry_is_said_with_the_documented_errors(data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, msgspec.ValidationError)):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_one_of_two_errors(data: bytes) -> None:
    """Invariant: decode never raises anything else."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        decode(data)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_every_entry_says_whose_database_keeps_it(entry: Entry) -> None:
    assert store_of(entry) == ""
    if isinstance(entry, Admitted | Refused):
        named: Entry = msgspec.structs.replace(entry, call=msgspec.structs.replace(entry.call, store="US"))
    else:
        named = msgspec.structs.replace(entry, store="US")
    assert store_of(decode(encode(named))) == "US"
