"""Triton's statuses, told apart by their text; what names addresses or others' models is never relayed."""

from __future__ import annotations

import time

import pytest

from sidecar.core.model import RESTRICTED
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.triton.errors import Said
from sidecar.triton.status import Translated, translate, translate_in_band

SAID = Said(call="c-1", names=frozenset({"x", "m"}))


@pytest.mark.parametrize(
    ("code", "text", "reason"),
    [
        (14, "[request id: 7] Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        (14, "Request timeout expired", Reason.UPSTREAM_TIMEOUT),
        (14, "Request for unknown model: 'x' is not found", Reason.MODEL_NOT_FOUND),
        (5, "Request for unknown model: 'x' has no available versions", Reason.MODEL_NOT_FOUND),
        (3, "Request for unknown model : x", Reason.MODEL_NOT_FOUND),
        (3, "requested model 'x' is not available", Reason.MODEL_NOT_FOUND),
        (3, "requested model version is not available for model 'x'", Reason.MODEL_NOT_FOUND),
        (14, "This protocol is restricted, expecting header 'x'", Reason.INTERNAL),
        (14, "GRPC server is shutting down and has stopped accepting new requests.", Reason.UPSTREAM_UNAVAILABLE),
        (14, "[request id: 7] Server is stopping, scheduler for model has stopped", Reason.UPSTREAM_UNAVAILABLE),
        (14, "Server not ready", Reason.UPSTREAM_UNAVAILABLE),
        (14, "Server exiting", Reason.UPSTREAM_UNAVAILABLE),
        (14, "upstream connect error or disconnect/reset before headers. 10.0.0.7:8001", Reason.UPSTREAM_UNAVAILABLE),
        (14, "no healthy upstream", Reason.UPSTREAM_UNAVAILABLE),
        (4, "upstream request timeout", Reason.UPSTREAM_TIMEOUT),
        (14, "failed to connect to all addresses; last error: ipv4:10.0.0.7:8001", Reason.UPSTREAM_UNAVAILABLE),
        (14, "Socket closed", Reason.UPSTREAM_UNAVAILABLE),
        (14, "recvmsg:Connection reset by peer", Reason.UPSTREAM_UNAVAILABLE),
        (14, "ipv4:10.0.0.7:8001: recvmsg:Connection reset by peer", Reason.UPSTREAM_UNAVAILABLE),
        (14, "Stream removed (recvmsg:Connection reset by peer (104))", Reason.UPSTREAM_UNAVAILABLE),
        (14, "ipv6:[::1]:8001: Socket closed", Reason.UPSTREAM_UNAVAILABLE),
        (14, "", Reason.UPSTREAM_UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("said", [SAID, None])
def test_what_triton_or_envoy_says_becomes_a_reason_of_ours(
    code: int, text: str, reason: Reason, said: Said | None
) -> None:
    told = translate(code, text, said)
    assert (told.code, told.message, told.reason) == (REASONS[reason].code, REASONS[reason].public, reason)
    assert "10.0.0.7" not in told.message + told.words
    assert told.rule == (RESTRICTED if reason is Reason.INTERNAL else "")


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_other_words_stand_with_their_code(code: Code) -> None:
    text = "unexpected inference input 'x' for model 'm'"
    assert translate(int(code), text, SAID) == Translated(code, text, words=text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (13, "the model's database said: Connection reset by peer"),
        (3, "Socket closed is no shape"),
        (13, "Exceeds maximum queue size"),
        (2, "upstream connect error"),
        (2, "Request for unknown model of car"),
        (14, "the prompt was: no healthy upstream"),
    ],
)
def test_a_models_own_words_do_not_become_ours_by_what_they_contain_nor_are_they_told(code: int, text: str) -> None:
    told = translate(code, text, SAID)
    assert (told.code, told.reason, told.words) == (Code(code), None, "")
    assert told.message == "the model failed; its own words are in the record of call c-1"


@pytest.mark.parametrize("code", [3, 13, 14])
def test_who_is_shown_the_whole_server_reads_all_its_words(code: int) -> None:
    text = "failed to load 'x', versions that are not available: /models/x/1"
    assert translate(code, text, None) == Translated(Code(code), text, words=text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        ("[request id: 7] Request timeout expired", Reason.UPSTREAM_TIMEOUT),
        ("in ensemble 'e', [request id: 7] Exceeds maximum queue size", Reason.UPSTREAM_QUEUE_FULL),
        ("Request for unknown model: 'x' is not found", Reason.MODEL_NOT_FOUND),
        ("the model says: Exceeds maximum queue size", None),
        ("Connection reset by peer", None),
    ],
)
def test_in_band_only_tritons_own_beginning_counts(text: str, reason: Reason | None) -> None:
    told = translate_in_band(text, SAID)
    assert told.reason is reason
    assert told.message == (
        REASONS[reason].public if reason else "the model failed; its own words are in the record of call c-1"
    )


@pytest.mark.parametrize("text", ["/-" * 50_000 + "/", "in ensemble '" * 7_000, "expected " * 400, "Got ['" * 600])
def test_long_texts_take_no_long(text: str) -> None:
    started = time.process_time()
    translate_in_band(text, SAID)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("code", [-1, 17, 99])
def test_a_code_outside_the_specification_is_unknown(code: int) -> None:
    assert translate(code, "odd", SAID).code is Code.UNKNOWN
