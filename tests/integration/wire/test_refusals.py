"""Every refusal arrives as DESIGN §6 says: gRPC code, ErrorInfo, RetryInfo where a retry helps, in-band on a stream."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from sidecar.core.reasons import REASONS, Reason
from sidecar.identity import mint
from sidecar.triton.methods import KSERVE
from tests.support.kserve import chat, packed, request
from tests.support.sidecar import Answer, Bare, Sidecar, echo, final, hold, said, slow
from tests.support.stack import StreamCall, eventually, tensor

pytestmark = pytest.mark.integration


def assert_refused(answer: Answer, reason: Reason, sidecar: Sidecar) -> Any:
    """The whole contract of one refusal, and that it was recorded."""
    row, told = REASONS[reason], answer.told()
    assert answer.code == row.code.name
    assert answer.text.startswith(f"[{reason}] ")
    assert (told.reason, told.domain, told.code, told.text) == (reason, "warden", row.code, answer.text)
    assert told.metadata["call_id"].partition("/")[0] == answer.call_id
    assert (told.retry is not None) == row.retryable
    if told.retry is not None:
        assert told.retry > 0
        assert re.search(r"; retry in [0-9.]+s$", answer.text)
    record = sidecar.record(told.metadata["call_id"])
    assert (record["outcome"], record["reason"], record["status"]) == ("refused", reason, row.code)
    return told


CREDENTIALS: dict[Reason, Callable[[Sidecar], list[tuple[str, str]]]] = {
    Reason.CREDENTIAL_MISSING: lambda s: [],
    Reason.CREDENTIAL_AMBIGUOUS: lambda s: [*s.headers().items(), ("x-api-key", "wdn_demo_x_y")],
    Reason.TOKEN_MALFORMED: lambda s: bearer("eyJhbGciOiJub25lIn0.e30."),
    Reason.TOKEN_SIGNATURE: lambda s: bearer(_tampered(s.token("acme"))),
    Reason.TOKEN_EXPIRED: lambda s: bearer(s.token("acme", lifetime=60, ago=600)),
    Reason.TOKEN_NOT_YET_VALID: lambda s: bearer(s.token("acme", ago=-600)),
    Reason.TOKEN_ISSUER: lambda s: bearer(s.token("acme", issuer="https://else.example")),
    Reason.TOKEN_AUDIENCE: lambda s: bearer(s.token("acme", audience="else")),
    Reason.KEY_UNKNOWN: lambda s: bearer(s.headers("acme")["authorization"][7:].replace("_", "_", 1)[:-8] + "00000000"),
    Reason.KEY_EXPIRED: lambda s: bearer(s.issue("acme", expires=datetime.now(UTC) + timedelta(seconds=1))),
    Reason.KEY_REVOKED: lambda s: bearer(s.issue("acme", revoked=True)),
}


def bearer(credential: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {credential}")]


def _tampered(token: str) -> str:
    head, claims, signature = token.split(".")
    return ".".join((head, claims, ("A" if signature[0] != "A" else "B") + signature[1:]))


class TestCredentials:
    @pytest.mark.parametrize("reason", CREDENTIALS, ids=str)
    def test_a_bad_credential_ends_a_unary_call_and_a_stream(
        self, sidecar: Sidecar, bare: Bare, reason: Reason
    ) -> None:
        headers = dict(CREDENTIALS[reason](sidecar))

        def reached() -> Any:  # keys reach the sidecar's snapshot, and expire, within a second or two
            answer = bare.unary(echo(), headers)
            return answer if answer.text.startswith(f"[{reason}]") else None

        answer = eventually(reached, what=str(reason))
        assert_refused(answer, reason, sidecar)
        stream = bare.stream([slow(1, id="x")], headers)
        assert list(stream) == []
        assert_refused(stream.answer(), reason, sidecar)

    def test_another_issuers_key_does_not_verify(self, sidecar: Sidecar, bare: Bare) -> None:
        answer = bare.unary(echo(), dict(bearer(sidecar.token("acme", key=mint.generate_key()))))
        assert_refused(answer, Reason.TOKEN_SIGNATURE, sidecar)

    def test_a_token_is_as_good_as_a_key(self, sidecar: Sidecar, bare: Bare) -> None:
        answer = bare.unary(echo(), dict(bearer(sidecar.token("acme"))))
        assert answer.code == "OK"
        record = sidecar.record(answer.call_id)
        assert (record["tenant"], record["principal"]) == ("acme", "someone@acme.example")


def unary_refusals() -> dict[Reason, tuple[str, bytes, dict[str, str]]]:
    """Reason → tenant, message, more headers: what is refused by what it says, wherever it is said."""
    shared = request("echo", ("text", "BYTES", [1], packed(b"x")))
    shared.inputs[0].parameters["shared_memory_region"].string_param = "theirs"
    twice = request("echo", ("text", "BYTES", [1], packed(b"x")), ("text", "BYTES", [1], packed(b"y")))
    return {
        Reason.TENANT_UNKNOWN: ("nobody", echo(), {}),
        Reason.TENANT_SUSPENDED: ("dormant", chat().SerializeToString(), {}),
        Reason.POLICY_FORBIDS: ("acme", request("rag").SerializeToString(), {"x-data-class": "phi"}),
        Reason.PARAMETER_NOT_ALLOWED: ("acme", shared.SerializeToString(), {}),
        Reason.RESIDENCY_PROCESSING: ("cobalt", chat().SerializeToString(), {}),
        Reason.RESIDENCY_STORAGE: ("stored-in-us", echo(), {}),
        Reason.RESIDENCY_TELEMETRY: ("traced-in-us", echo(), {}),
        Reason.MODEL_NOT_FOUND: ("birch", echo(), {}),
        Reason.REQUEST_MALFORMED: ("acme", request("echo", ("text", "BYTES", [1], b"\x09")).SerializeToString(), {}),
        Reason.REQUEST_AMBIGUOUS: ("acme", twice.SerializeToString(), {}),
        Reason.RATE_TOKENS: ("few-tokens", chat(model="slow", max_tokens=1000).SerializeToString(), {}),
        Reason.MEMORY_KV: ("small-kv", chat(model="slow", max_tokens=1000).SerializeToString(), {}),
        Reason.MEMORY_TENSOR: ("small-tensors", echo(b"x" * 70_000), {}),
    }


REFUSALS = unary_refusals()
BEFORE_READING = {Reason.TENANT_UNKNOWN, Reason.TENANT_SUSPENDED}  # whatever is said, so nothing of it is read
NEVER = {
    Reason.RATE_TOKENS,
    Reason.MEMORY_KV,
    Reason.MEMORY_TENSOR,
}  # here: more than the whole quota, so no retry helps


class TestRefusals:
    @pytest.mark.parametrize("reason", REFUSALS, ids=str)
    def test_a_unary_call(self, sidecar: Sidecar, bare: Bare, reason: Reason) -> None:
        tenant, message, more = REFUSALS[reason]
        answer = bare.unary(message, {**sidecar.headers(tenant), **more})
        told = answer.told()
        assert answer.code == REASONS[reason].code.name
        assert (told.reason, told.domain, told.metadata["call_id"]) == (reason, "warden", answer.call_id)
        assert bool(told.quota) == (reason in NEVER)
        if reason in NEVER:
            assert told.retry is None
        record = sidecar.record(answer.call_id)
        assert (record["outcome"], record["reason"]) == ("refused", reason)

    @pytest.mark.parametrize("reason", sorted(BEFORE_READING), ids=str)
    def test_a_stream_of_who_may_do_nothing(self, sidecar: Sidecar, bare: Bare, reason: Reason) -> None:
        tenant, message, more = REFUSALS[reason]
        stream = bare.stream([message, message], {**sidecar.headers(tenant), **more})
        assert list(stream) == []
        answer = stream.answer()
        assert (answer.code, answer.told().reason) == (REASONS[reason].code.name, reason)
        record = sidecar.record(answer.call_id)
        assert (record["outcome"], record["reason"], record["tenant"]) == ("refused", reason, tenant)

    @pytest.mark.parametrize("reason", sorted(REFUSALS.keys() - BEFORE_READING), ids=str)
    def test_in_band_in_a_living_stream(self, sidecar: Sidecar, bare: Bare, reason: Reason) -> None:
        tenant, message, more = REFUSALS[reason]
        named = _with_id(message, "refused-1")
        stream = bare.stream([named, named], {**sidecar.headers(tenant), **more})
        responses = list(stream)
        answer = stream.answer()
        assert answer.code == "OK"
        assert [r.infer_response.id for r in responses] == ["refused-1"] * 2
        for response in responses:
            assert response.error_message.startswith(f"[{reason}] ")
            parameters = response.infer_response.parameters
            assert parameters["warden_reason"].string_param == reason
            assert final(response)
            elsewhere = {"warden_allowed_regions"} if reason.startswith("RESIDENCY_") else set()
            assert set(parameters) == {"warden_reason", "triton_final_response"} | elsewhere
        record = sidecar.record(f"{answer.call_id}/2")
        assert (record["outcome"], record["reason"]) == ("refused", reason)

    @pytest.mark.parametrize(
        ("tenant", "classes", "elsewhere"),
        [
            ("cobalt", "", "us-east-1"),
            ("one-stricter", "phi", "us-east-1"),
            ("one-stricter", "public,phi", "us-east-1"),
            ("one-stricter", "phi, public", "us-east-1"),
            ("at-odds", "public,phi", ""),
        ],
    )
    def test_a_wrong_place_says_where_to_go(
        self, sidecar: Sidecar, bare: Bare, tenant: str, classes: str, elsewhere: str
    ) -> None:
        """Of several classes each must allow the place, so the strictest decides; "" is nowhere."""
        message = _with_id(chat().SerializeToString() if tenant == "cobalt" else echo(), "there")
        headers = sidecar.headers(tenant, **({"x-data-class": classes} if classes else {}))
        answer = bare.unary(message, headers)
        told = assert_refused(answer, Reason.RESIDENCY_PROCESSING, sidecar)
        assert {**answer.initial, **answer.trailing}["x-warden-allowed-regions"] == elsewhere
        assert (told.metadata["region"], told.metadata["allowed_regions"]) == ("eu-west-1", elsewhere)
        (response,) = bare.stream([message], headers)
        assert response.infer_response.parameters["warden_allowed_regions"].string_param == elsewhere

    @pytest.mark.parametrize(
        ("tenant", "classes"), [("one-stricter", "public"), ("at-odds", "public"), ("acme", "phi")]
    )
    def test_the_right_place_for_a_class(self, sidecar: Sidecar, bare: Bare, tenant: str, classes: str) -> None:
        answer = bare.unary(echo(), sidecar.headers(tenant, **{"x-data-class": classes}))
        assert answer.code == "OK"
        assert "x-warden-allowed-regions" not in {**answer.initial, **answer.trailing}

    def test_a_rate_says_when_to_come_back(self, sidecar: Sidecar, bare: Bare) -> None:
        headers = sidecar.headers("one-a-minute")
        bare.unary(echo(), headers)
        told = assert_refused(bare.unary(echo(), headers), Reason.RATE_REQUESTS, sidecar)
        assert 50 < told.retry <= 60
        assert told.quota
        stream = bare.stream([_with_id(echo(), "again")], headers)
        (response,) = list(stream)
        ms = response.infer_response.parameters["warden_retry_after_ms"].int64_param
        assert 40_000 < ms <= 60_000
        seconds = re.fullmatch(r"\[RATE_REQUESTS\] .*; retry in ([0-9.]+)s", response.error_message)
        assert seconds is not None
        assert abs(float(seconds[1]) * 1000 - ms) < 500  # told to three digits

    def test_a_key_is_held_to_its_own_limits_by_its_name(self, sidecar: Sidecar, bare: Bare) -> None:
        """Each key of that name by itself, and nobody else of its tenant."""
        for _ in range(2):
            headers = dict(bearer(sidecar.issue("keyed")))
            eventually(
                lambda headers=headers: bare.unary(echo(), headers).code == "OK",
                what="the new key is known",
                within_s=30,
            )
            told = assert_refused(bare.unary(echo(), headers), Reason.RATE_REQUESTS, sidecar)
            assert 0 < told.retry <= 60
        token = dict(bearer(sidecar.token("keyed")))
        assert [bare.unary(echo(), token).code for _ in range(3)] == ["OK"] * 3

    def test_a_slot_is_free_again_when_its_call_ends(self, sidecar: Sidecar, bare: Bare) -> None:
        """On one stream: the second message is refused in-band while the first runs; the stream lives on."""
        headers = sidecar.headers("one-slot")
        stream = bare.stream([slow(20, 20, id="first"), slow(1, 1, id="second")], headers)
        by_id: dict[str, list[Any]] = {}
        for response in stream:
            by_id.setdefault(response.infer_response.id, []).append(response)
        (refused,) = by_id["second"]
        assert refused.error_message.startswith("[CONCURRENCY] ")
        assert refused.infer_response.parameters["warden_retry_after_ms"].int64_param > 0
        assert "".join(map(said, by_id["first"])) == "".join(f"word{n} " for n in range(20))
        assert stream.answer().code == "OK"
        assert bare.unary(hold(1), headers).code == "OK"
        holding = bare.stream([slow(100, 20)], headers)
        holding.next()
        told = assert_refused(bare.unary(hold(1), headers), Reason.CONCURRENCY, sidecar)
        assert told.quota
        holding.call.cancel()

    def test_an_unknown_method_and_one_for_others(self, sidecar: Sidecar, bare: Bare) -> None:
        unknown = bare.unary(b"", sidecar.headers(), path=KSERVE + "ModelTrain")
        assert_refused(unknown, Reason.METHOD_UNKNOWN, sidecar)
        for path in ("/else.Service/Method", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
            assert bare.unary(b"", sidecar.headers(), path=path).code == "UNIMPLEMENTED"
        for method in ("TraceSetting", "SystemSharedMemoryUnregister", "LogSettings", "RepositoryModelLoad"):
            answer = bare.unary(b"", sidecar.headers(), path=KSERVE + method)
            assert_refused(answer, Reason.METHOD_NOT_ALLOWED, sidecar)

    def test_an_operator_reads_statistics_and_cannot_infer(self, sidecar: Sidecar, bare: Bare) -> None:
        headers = dict(bearer(sidecar.token("acme", roles=("operator",))))
        assert bare.unary(b"", headers, path=KSERVE + "RepositoryIndex").code == "OK"
        assert_refused(bare.unary(echo(), headers), Reason.METHOD_NOT_ALLOWED, sidecar)

    def test_a_full_queue_and_a_queues_timeout_are_told_apart(self, sidecar: Sidecar, bare: Bare) -> None:
        """Both are UNAVAILABLE at Triton; its queue of one is filled, and what waits there for 0.5 s is rejected."""
        headers, message = sidecar.headers(), hold(900, model="narrow")
        with sidecar.bare() as other:
            running = other.begin(message, headers)  # alone in the model first, so that the next one waits
            eventually(lambda: sidecar.held()["warden_in_flight_calls"] >= 1, what="the first call")
            calls = [other.begin(message, headers) for _ in range(6)]
            errors = [call.exception() for call in (running, *calls)]
        texts = {error.details().partition("]")[0] + "]" for error in errors if error is not None}
        assert texts == {"[UPSTREAM_QUEUE_FULL]", "[UPSTREAM_TIMEOUT]"}
        codes = {error.code().name for error in errors if error is not None}
        assert codes == {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}

    def test_too_large_a_message(self, sidecar: Sidecar, bare: Bare) -> None:
        """On the portable wire gRPC's own library refuses it, with its own code."""
        answer = bare.unary(echo(secrets.token_bytes(2**20) * 257), sidecar.headers())
        if sidecar.wire == "envoy":
            assert_refused(answer, Reason.REQUEST_TOO_LARGE, sidecar)
        else:
            assert answer.code == "RESOURCE_EXHAUSTED"
        sidecar.settles()


class TestAbsentAndForeign:
    @pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelReady"])
    def test_read_the_same(self, sidecar: Sidecar, bare: Bare, method: str) -> None:
        """Status, text and details are the same bytes but for the call id, also where the model is nowhere."""
        seen = set()
        asked = [("birch", "counter"), ("birch", "no-such")]
        if method != "ModelReady":  # to whom may ask for it, Triton says of an absent model that it isn't ready
            asked.append(("acme", "no-such"))
        for tenant, model in asked:
            message = b"\x0a" + bytes([len(model)]) + model.encode()  # field 1 of each: the model's name
            answer = bare.unary(message, sidecar.headers(tenant), path=KSERVE + method)
            details = answer.trailing["grpc-status-details-bin"].replace(answer.call_id.encode(), b"ID")
            seen.add((answer.code, answer.text, details, frozenset(answer.trailing) - {"grpc-status-details-bin"}))
        assert {code for code, *_ in seen} == {"NOT_FOUND"}
        assert len(seen) == 1

    def test_read_the_same_in_a_stream(self, sidecar: Sidecar, bare: Bare) -> None:
        seen = set()
        for tenant, model in (("birch", "counter"), ("birch", "no-such"), ("acme", "no-such")):
            (response,) = bare.stream([request(model, id="x").SerializeToString()], sidecar.headers(tenant))
            seen.add(response.SerializeToString(deterministic=True))
        assert len(seen) == 1


class TestStockClient:
    def test_shows_reason_and_retry(self, sidecar: Sidecar) -> None:
        with sidecar.client() as client, pytest.raises(InferenceServerException) as refused:
            client.infer("echo", [tensor("text", "BYTES", "x")], headers=sidecar.headers("birch"))
        assert refused.value.status() == "StatusCode.NOT_FOUND"
        assert refused.value.message() == "[MODEL_NOT_FOUND] no such model"

    def test_a_refusal_in_a_stream_reaches_its_callback_and_the_stream_lives(self, sidecar: Sidecar) -> None:
        with StreamCall(sidecar.grpc, "counter", [], request_id="no", headers=sidecar.headers("birch")) as call:
            with pytest.raises(InferenceServerException, match=r"\[MODEL_NOT_FOUND\]"):
                list(call)
            call._client.async_stream_infer("vision", [_image()], request_id="yes", enable_empty_final_response=True)
            (result,) = list(call)
            assert result.get_response().id == "yes"


def _image() -> kserve.InferInput:
    import numpy as np  # noqa: PLC0415

    from tests.support.stack import filled  # noqa: PLC0415

    return filled("image", "FP32", np.zeros((1, 3, 224, 224), dtype=np.float32))


def _with_id(message: bytes, request_id: str) -> bytes:
    return message + b"\x1a" + bytes([len(request_id)]) + request_id.encode()  # field 3


def test_what_is_left_is_told_with_an_answer_and_with_a_refusal(sidecar: Sidecar, bare: Bare) -> None:
    """draft-ietf-httpapi-ratelimit-headers, in the trailers, or a stream's headers; nothing where there is no limit."""
    with sidecar.bare() as other:
        stream = other.stream([], sidecar.headers("twenty-at-once")).answer()
        assert stream.initial["ratelimit-policy"] == '"requests";q=20;w=200'
        assert stream.initial["ratelimit"] == '"requests";r=20;t=0'
        assert "ratelimit" not in other.stream([], sidecar.headers("acme")).answer().initial
        assert "ratelimit" not in other.stream([], {"authorization": "Bearer nobody"}).answer().initial
    answer = bare.unary(echo(), sidecar.headers("twenty-at-once"))
    assert answer.trailing["ratelimit-policy"] == '"requests";q=20;w=200'
    assert re.fullmatch('"requests";r=19;t=([1-9]|10)', answer.trailing["ratelimit"])
    assert "ratelimit" not in bare.unary(echo(), sidecar.headers("acme")).trailing
    one = sidecar.headers("one-a-minute")
    answers = [bare.unary(echo(), one) for _ in range(2)]
    assert answers[-1].trailing["ratelimit-policy"] == '"requests";q=1;w=60'
    assert re.fullmatch('"requests";r=0;t=([1-5]?[0-9]|60)', answers[-1].trailing["ratelimit"])
