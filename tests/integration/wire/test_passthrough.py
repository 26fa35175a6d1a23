"""What Triton says reaches the client, and what must not reach Triton doesn't."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from sidecar.triton.protos import ModelInferResponse
from tests.support.kserve import request
from tests.support.sidecar import Bare, Sidecar, echo, failing, final, said, slow, withheld
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

# pb_utils.TritonError → gRPC's name for it (facts/triton.md §6).
CODES = {
    "UNKNOWN": "UNKNOWN",
    "INTERNAL": "INTERNAL",
    "NOT_FOUND": "NOT_FOUND",
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "UNSUPPORTED": "UNIMPLEMENTED",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
    "CANCELLED": "CANCELLED",
}


class TestStatuses:
    @pytest.mark.parametrize("error", CODES)
    def test_tritons_code_passes_and_a_models_own_words_stay_in_the_record(
        self, sidecar: Sidecar, bare: Bare, triton: Triton, error: str
    ) -> None:
        message = failing(error, "größer als 100 % — “zu groß”\nund mehr")
        with Bare(triton.grpc) as direct:
            from_triton = direct.unary(message, {})
        answer = bare.unary(message, sidecar.headers())
        assert answer.code == from_triton.code == CODES[error]
        assert "größer" in from_triton.text
        assert answer.text == withheld(answer.call_id)
        record = sidecar.record(answer.call_id)
        assert record["outcome"] == "failed"
        assert "größer" in record["error"]

    def test_an_in_band_error_ends_its_message_and_not_the_stream(self, sidecar: Sidecar, bare: Bare) -> None:
        messages = [failing("INTERNAL", "no", stream=True, after=2, id="bad"), slow(2, id="good")]
        by_id: dict[str, list[Any]] = {}
        stream = bare.stream(messages, sidecar.headers())
        for response in stream:
            by_id.setdefault(response.infer_response.id, []).append(response)
        answer = stream.answer()
        assert answer.code == "OK"
        assert [r.error_message for r in by_id["bad"]] == ["", "", withheld(f"{answer.call_id}/1")]
        assert [said(r) for r in by_id["good"]] == ["word0 ", "word1 ", ""]
        record = sidecar.record(f"{answer.call_id}/1")
        assert record["outcome"] == "failed"
        assert sidecar.record(f"{answer.call_id}/2")["outcome"] == "completed"

    def test_a_decoupled_model_cannot_be_called_unary(self, sidecar: Sidecar, bare: Bare) -> None:
        answer = bare.unary(slow(1), sidecar.headers())
        assert answer.code == "UNIMPLEMENTED"
        assert "decoupled" in answer.text

    def test_the_empty_final_response_comes_to_whom_asks_for_it(self, sidecar: Sidecar, bare: Bare) -> None:
        wanting, not_wanting = failing("INTERNAL", "x", stream=True), request("echo")
        del not_wanting
        asked = list(bare.stream([slow(1)], sidecar.headers()))
        assert [final(r) for r in asked] == [False, True]
        (error,) = bare.stream([wanting], sidecar.headers())
        assert error.error_message.startswith("the model failed; ")


class TestMetadata:
    def test_triton_sees_only_what_is_on_the_list(self, sidecar: Sidecar, bare: Bare, triton: Triton) -> None:
        """A header that changes how Triton answers streams isn't forwarded: its code would come through.

        The sidecar honours it itself (test_streams.py): Triton 2.51 dies of it now and then.
        """
        headers = sidecar.headers(triton_grpc_error="true")
        message = failing("INTERNAL", "as asked", stream=True)
        with Bare(triton.grpc) as direct:
            assert direct.stream([message], {"triton_grpc_error": "true"}).answer().code == "INTERNAL"
        answer = bare.stream([message], headers).answer()
        assert (answer.code, answer.text) == ("UNKNOWN", withheld(f"{answer.call_id}/1"))

    def test_every_answer_carries_its_call_id(self, sidecar: Sidecar, bare: Bare) -> None:
        ids = {
            bare.unary(echo(), sidecar.headers()).call_id,
            bare.unary(echo(), {}).call_id,
            bare.unary(failing("INTERNAL", "x"), sidecar.headers()).call_id,
            bare.stream([], sidecar.headers()).answer().call_id,
            bare.unary(b"", {}, path="/inference.GRPCInferenceService/ServerLive").call_id,
        }
        assert len(ids) == 5

    def test_who_is_acted_for_is_recorded(self, sidecar: Sidecar, bare: Bare) -> None:
        headers = sidecar.headers(
            **{"x-warden-subject": "pat@acme.example", "x-warden-conversation": "c-7", "x-data-class": "phi"}
        )
        answer = bare.unary(echo(), headers)
        record = sidecar.record(answer.call_id)
        assert (record["subject"], record["conversation"], record["data_class"]) == ("pat@acme.example", "c-7", "phi")

    def test_the_record_says_what_was_asked_and_answered(self, sidecar: Sidecar, bare: Bare) -> None:
        stream = bare.stream([slow(3, prompt=b"a long story")], sidecar.headers())
        answer = stream.answer()
        record = sidecar.record(f"{answer.call_id}/1")
        assert record["prompt"] == "a long story"
        assert record["output"] == "word0 word1 word2 "
        assert (record["model"], record["model_version"], record["region"]) == ("slow", "1", "eu-west-1")
        assert (record["outcome"], record["status"], record["key_id"] != "") == ("completed", 0, True)


class TestCompression:
    @pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    def test_of_requests_on_a_stream_and_unary(self, sidecar: Sidecar, bare: Bare, algorithm: grpc.Compression) -> None:
        text = b"compress me " * 10_000
        answer = bare.unary(echo(text), sidecar.headers(), compression=algorithm)
        assert ModelInferResponse.FromString(answer.message).raw_output_contents[0][4:] == text
        call = bare.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(
            iter([slow(1, prompt=text)]), metadata=tuple(sidecar.headers().items()), compression=algorithm, timeout=30
        )
        assert len(list(call)) == 2


class TestVersions:
    def test_the_answer_says_which_version_and_an_absent_one_is_tritons_to_refuse(
        self, sidecar: Sidecar, bare: Bare
    ) -> None:
        answer = bare.unary(echo(model_version="1"), sidecar.headers())
        assert ModelInferResponse.FromString(answer.message).model_version == "1"
        absent = bare.unary(echo(model_version="7"), sidecar.headers())
        assert absent.code == "NOT_FOUND"
        assert eventually(lambda: sidecar.record(absent.call_id), what="its record")["outcome"] == "failed"
