"""Triton's statuses, told apart by their text; what names addresses or others' models is never relayed."""

from __future__ import annotations

import time

import pytest

from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.triton.status import Translated, translate, translate_in_band


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (14, "[request id: 7] Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        (14, "Request timeout expired", Reason.UPSTREAM_TIMEOUT),
        (14, "Request for unknown model: 'x' is not found", Reason.MODEL_NOT_FOUND),
        (5, "Request for unknown model: 'x' has no available versions", Reason.MODEL_NOT_FOUND),
        (14, "This protocol is restricted, expecting header 'x'", Reason.INTERNAL),
        (14, "upstream connect error or disconnect/reset before headers. 10.0.0.7:8001", Reason.UPSTREAM_UNAVAILABLE),
        (14, "no healthy upstream", Reason.UPSTREAM_UNAVAILABLE),
        (4, "upstream request timeout", Reason.UPSTREAM_TIMEOUT),
        (14, "failed to connect to all addresses; last error: ipv4:10.0.0.7:8001", Reason.UPSTREAM_UNAVAILABLE),
        (14, "Socket closed", Reason.UPSTREAM_UNAVAILABLE),
        (14, "recvmsg:Connection reset by peer", Reason.UPSTREAM_UNAVAILABLE),
        (14, "", Reason.UPSTREAM_UNAVAILABLE),
    ],
)
def test_what_triton_or_envoy_says_becomes_a_reason_of_ours(code: int, text: str, reason: Reason) -> None:
    told = translate(code, text)
    assert (told.code, told.message, told.reason) == (REASONS[reason].code, REASONS[reason].public, reason)
    assert "10.0.0.7" not in told.message


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_other_words_stand_with_their_code(code: Code) -> None:
    told = translate(int(code), "unexpected shape for input 'x'")
    assert (told.code, told.message, told.reason) == (code, "unexpected shape for input 'x'", None)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (13, "the model's database said: Connection reset by peer"),
        (3, "Socket closed is no shape"),
        (13, "Exceeds maximum queue size"),
        (2, "upstream connect error"),
        (2, "Request for unknown model of car"),
    ],
)
def test_a_models_own_words_do_not_become_ours_by_what_they_contain(code: int, text: str) -> None:
    assert translate(code, text) == Translated(Code(code), text, None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        ("[request id: 7] Request timeout expired", Reason.UPSTREAM_TIMEOUT),
        ("in ensemble 'e', [request id: 7] Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        ("Request for unknown model: 'x' is not found", Reason.MODEL_NOT_FOUND),
        ("the model says: Exceeds maximum queue size", None),
        ("Connection reset by peer", None),
        ("", None),
    ],
)
def test_in_band_only_tritons_own_beginning_counts(text: str, reason: Reason | None) -> None:
    told = translate_in_band(text)
    expected = Translated(REASONS[reason].code, REASONS[reason].public, reason) if reason else None
    assert told == (expected or Translated(Code.UNKNOWN, text, None))


RAISED = (
    "in ensemble 'rag', Failed to process the request(s) for model 'retrieve_0_0', message: ValueError: no"
    "\n\nAt:\n  /opt/models/retrieve/1/model.py(26): execute\n"
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (RAISED, "in ensemble 'rag', Failed to process the request(s), message: ValueError: no"),
        (
            "Failed to process the request(s) for model instance 'm_0', message: no",
            "Failed to process the request(s), message: no",
        ),
        ("Stub process 'retrieve_0_0' is not healthy.", "Stub process is not healthy."),
        ("for model 'chat', use 'x'", "for model 'chat', use 'x'"),
        ("bad At:\n  /opt/m/model.py(3): execute", "bad"),
        ('boom\nTraceback (most recent call last):\n  File "/a/b.py", line 3', "boom"),
        ("unable to open '/mnt/models/chat/1/model.onnx': denied", "unable to open '(a path)': denied"),
        ("see path=/mnt/a/b.json, or file:///mnt/c/d", "see path=(a path), or (a path)"),
        # Nothing of these is a path, or a traceback.
        ("expected [-1,3]/[1,3], and/or 3 tokens/s at http://x/y/z", None),
        ("At: the end\n\nof text", None),
        ("größer als 100 % — “zu groß”\nund mehr", None),
    ],
)
def test_what_tells_of_the_server_is_left_out(text: str, told: str | None) -> None:
    expected = text if told is None else told
    assert translate(13, text) == Translated(Code.INTERNAL, expected, None)
    assert translate_in_band(text) == Translated(Code.UNKNOWN, expected, None)


@pytest.mark.parametrize("text", ["/-" * 50_000 + "/", "\n" * 100_000, "Stub process '" * 7_000, "At:" * 30_000])
def test_long_texts_take_no_long(text: str) -> None:
    started = time.process_time()
    translate_in_band(text)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("code", [-1, 17, 99])
def test_a_code_outside_the_specification_is_unknown(code: int) -> None:
    assert translate(code, "odd").code is Code.UNKNOWN
