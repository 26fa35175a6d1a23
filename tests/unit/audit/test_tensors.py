"""audit.tensors, and what recorder and joiner keep for it: the same tensor is the same bytes, however it came."""

from __future__ import annotations

import hashlib
import struct
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from audit import record
from audit.assemble import CallRecord, Joiner, evidence
from audit.payload import LISTED, Payload, nowhere, object_name, refs_of
from audit.record import Admitted, Digested, Responded
from audit.recorder import RESPONSES
from audit.tensors import inputs_of, outputs_of, payload_of
from sidecar.core.model import AuditLevel, MalformedRequest, Outcome, OutcomeKind, Redaction, TensorRule, Usage, replace
from sidecar.core.recorded import UNWRITTEN_BYTES, Output, Recorded
from sidecar.triton.tensors import DATATYPES, TYPED
from tests.support.journal import open_journal
from tests.support.payloads import PACKED_WORDS, PIXELS, RAW, kept_call, request, response
from tests.support.store import PLACE, facts, settled
from tests.unit.audit.test_recorder import AT, END, admission, kept, recorder

_NUMPY = {"FP32": "<f4", "FP64": "<f8", "BOOL": "<u1"} | {
    f"{kind}{bits}": f"<{kind[0].lower()}{bits // 8}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)
}


@given(st.data(), st.sampled_from(sorted(TYPED)))
def test_a_typed_tensor_is_the_same_bytes_as_a_raw_one(data: Any, datatype: str) -> None:
    """Invariant: Triton keeps both alike, so a record can't tell them apart; NumPy says what the bytes are."""
    if datatype == "BYTES":
        values: list[Any] = data.draw(st.lists(st.binary(max_size=9), max_size=5))
        raw = b"".join(struct.pack("<I", len(each)) + each for each in values)
    else:
        array = np.frombuffer(data.draw(st.binary(min_size=40, max_size=40)), dtype=_NUMPY[datatype])
        array = array % 2 if datatype == "BOOL" else array
        values, raw = array.tolist(), array.tobytes()
        if datatype in {"FP32", "FP64"} and not np.isfinite(array).all():
            return  # a NaN's bits are not kept by Python
    typed, plain = service_pb2.ModelInferRequest(model_name="m"), service_pb2.ModelInferRequest(model_name="m")
    one = typed.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(one.contents, TYPED[datatype]).extend(values)
    plain.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    plain.raw_input_contents.append(raw)
    (told,), (same,) = inputs_of(typed.SerializeToString()), inputs_of(plain.SerializeToString())
    assert told == same
    assert (told.data, told.sha256, told.nbytes) == (raw, hashlib.sha256(raw).digest(), len(raw))


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_outputs_of_every_datatype_are_read(datatype: str) -> None:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="y", datatype=datatype, shape=[1])
    message.raw_output_contents.append(b"\x01" * (DATATYPES[datatype] or 7))
    (told,) = outputs_of(message.SerializeToString(), 3, streaming=False)
    assert (told.response, told.name, told.datatype, told.nbytes) == (3, "y", datatype, DATATYPES[datatype] or 7)


def test_a_stream_is_read_and_what_is_no_message_is_refused() -> None:
    told = outputs_of(response(2.0, streaming=True), 1, streaming=True)
    assert [(each.name, each.data) for each in told] == [("score", struct.pack("<d", 2.0)), ("label", PACKED_WORDS)]
    with pytest.raises(MalformedRequest):
        outputs_of(b"\xff\xff", 0, streaming=False)
    assert [each.data for each in inputs_of(request(typed=True))] == [b"\x01\xff\x7f", PACKED_WORDS]


# --- what a journal's entries become ------------------------------------------------------------------------------


def joined(*entries: record.Entry, joiner: Joiner | None = None) -> CallRecord:
    joiner = joiner or Joiner()
    (found,) = [one for n, entry in enumerate(entries) if (one := joiner.add(PLACE, n, entry)) is not None]
    assert isinstance(found, CallRecord)
    return found


def test_a_call_is_kept_with_each_answer_once() -> None:
    admitted, first, second, end = kept_call(response(1.0), response(2.0))
    found = payload_of(joined(admitted, first, second, first, end))
    assert [each.data for each in found.tensors["inputs"]] == [RAW, PIXELS]
    assert [each.response for each in found.tensors["outputs"]] == [0, 0, 1, 1]
    assert found.unkept == {}


def test_a_call_that_was_not_asked_for_has_none() -> None:
    call = facts(request=request())
    assert payload_of(joined(Admitted(call), settled(call))) == Payload()


def test_what_is_more_than_may_be_held_is_let_go_and_said() -> None:
    joiner = Joiner(open_bytes=300)
    found = joined(*kept_call(b"x" * 400), joiner=joiner)
    assert (found.held, found.responded) == (True, [])
    told = payload_of(found)
    assert [each.data for each in told.tensors["inputs"]] == [RAW, PIXELS]
    tight = payload_of(joined(*kept_call(), joiner=Joiner(open_bytes=10)))
    assert tight.unkept["inputs"] == "held"
    assert [(each.name, each.data) for each in tight.tensors["inputs"]] == [("boxes", None), ("pixels", None)]
    assert joiner.add(PLACE, 9, settled(facts())) is not None
    assert joiner._held == 0


def test_what_is_beyond_the_bound_has_its_digest() -> None:
    told = Digested("pixels", "UINT8", [64], 64, b"d" * 32)
    call = facts(keeps=10, digested=[told])
    found = payload_of(joined(Admitted(call), Responded(call.call_id, 1, 0, None, [told]), settled(call)))
    assert found.unkept == {"inputs": "bound", "outputs": "bound"}
    assert [(each.sha256, each.data) for each in found.tensors["inputs"] + found.tensors["outputs"]] == [
        (b"d" * 32, None)
    ] * 2


def test_texts_that_are_to_be_redacted_leave_nothing_not_even_a_digest() -> None:
    found = payload_of(joined(*kept_call(response(), message=request(typed=True), redact=(Redaction("email"),))))
    assert found.unkept == {"inputs": "redacted", "outputs": "redacted"}
    texts = [each for side in found.tensors.values() for each in side if each.datatype == "BYTES"]
    assert [(each.sha256, each.data) for each in texts] == [(b"", None)] * 2
    assert found.tensors["inputs"][0].data == b"\x01\xff\x7f"


def test_a_message_that_cannot_be_read_loses_no_record() -> None:
    found = payload_of(joined(*kept_call(b"\xff", message=b"\xff")))
    assert found.unkept["inputs"] == "unreadable"
    assert [each.name for each in found.tensors["inputs"]] == ["boxes", "pixels"]


def test_the_evidence_of_a_cleaned_record_holds_no_message() -> None:
    assert RAW not in evidence(joined(*kept_call()))


def test_without_a_store_there_are_digests_alone() -> None:
    found = nowhere(payload_of(joined(*kept_call())))
    assert found.unkept == {"inputs": "nowhere", "outputs": "nowhere"}
    assert all(each.sha256 and each.data is None for side in found.tensors.values() for each in side)
    assert LISTED > RESPONSES


@pytest.mark.parametrize(
    "payloads", [[], {"inputs": []}, {"inputs": {"object": ["n"]}}, {"inputs": {"object": ["n", "x", ""]}}]
)
def test_what_no_shipper_wrote_is_no_payload(payloads: Any) -> None:
    with pytest.raises(ValueError, match="no payloads"):
        refs_of(payloads)


def test_an_objects_name_is_plain_whatever_the_calls_id_is() -> None:
    names = {object_name(date(2026, 12, 1), "k" * 32, call, "inputs") for call in ("a/../b", "a", "\ud800", "a\x00")}
    assert len(names) == 4
    assert all(name.startswith(f"tensors/2026-12-01/{'k' * 32}/") and name.isascii() for name in names)


# --- what is journaled --------------------------------------------------------------------------------------------


def asked(
    nbytes: int = 2**20, level: AuditLevel = AuditLevel.FULL, *, message: bytes | None = None, **rule: Any
) -> Any:
    made = admission(level, tensors=TensorRule(nbytes, **rule))
    return replace(made, call=replace(made.call, message=request() if message is None else message))


@pytest.mark.parametrize(
    ("given", "keeps", "whole", "digests"),
    [
        (asked(), 2**20, True, []),
        (asked(10), 10, False, ["boxes", "pixels"]),
        (asked(10, message=b"\xff" * 99), 10, False, []),
        (asked(inputs=False), 2**20, False, []),
        (asked(level=AuditLevel.METADATA), 0, False, []),
        (admission(), 0, False, []),
    ],
)
def test_a_request_is_journaled_whole_or_by_digest(
    tmp_path: Path, given: Any, keeps: int, whole: bool, digests: list[str]
) -> None:
    assert recorder(open_journal(tmp_path)).admitted(given, AT) is None
    (entry,) = kept(tmp_path)
    assert isinstance(entry, Admitted)
    call = entry.call
    assert (call.keeps, call.request == given.call.message, [each.name for each in call.digested]) == (
        keeps,
        whole,
        digests,
    )
    assert all(each.sha256 for each in call.digested)


def ended(directory: Path, output: Output, nbytes: int) -> list[record.Entry]:
    real, call = recorder(open_journal(directory)), Recorded(asked(nbytes), AT)
    assert real.output(call, output, END) is None
    done = Output(0, (), output.messages, output.first, output.before)  # put back, and taken once more
    assert real.settled(call, done, Outcome(OutcomeKind.COMPLETED), Usage(), END) is None
    return kept(directory)


def test_answers_are_journaled_until_their_bound_then_by_digest(tmp_path: Path) -> None:
    answer = response()
    entries = ended(tmp_path, Output(0, (), (answer, answer), 1, len(answer)), 2 * len(answer))
    told = [entry for entry in entries if isinstance(entry, Responded)]
    assert [(each.index, each.message, len(each.tensors)) for each in told[:2]] == [(1, answer, 0), (2, None, 2)]
    assert len(told) == 4  # the joiner keeps each once


def test_of_endless_answers_the_first_are_told(tmp_path: Path) -> None:
    entries = ended(tmp_path, Output(0, (), (response(),) * 3, RESPONSES - 1, 0), 2**20)
    assert {entry.index for entry in entries if isinstance(entry, Responded)} == {RESPONSES - 1}


def test_messages_that_could_not_be_journaled_wait_within_a_bound() -> None:
    assert Output(0, (), (b"x" * UNWRITTEN_BYTES,)).fits
    assert not Output(0, (), (b"x" * UNWRITTEN_BYTES, b"x")).fits
