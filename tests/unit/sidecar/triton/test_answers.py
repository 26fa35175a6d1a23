"""What the sidecar writes itself, read back with the client's own classes."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from sidecar.triton import answers


def test_a_streams_refusal_reads_back() -> None:
    data = answers.stream_error(
        "[RATE_TOKENS] token budget exceeded; retry in 1.5s",
        "request 7",
        {"warden_reason": "RATE_TOKENS", "warden_retry_after_ms": 1500, "triton_final_response": True},
    )
    message = service_pb2.ModelStreamInferResponse.FromString(data)
    assert message.error_message == "[RATE_TOKENS] token budget exceeded; retry in 1.5s"
    answer = message.infer_response
    assert answer.id == "request 7"
    assert answer.parameters["warden_reason"].string_param == "RATE_TOKENS"
    assert answer.parameters["warden_retry_after_ms"].int64_param == 1500
    assert answer.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
    assert answer.parameters["triton_final_response"].bool_param is True
    assert len(answer.parameters) == 3


def test_an_empty_id_is_given_back_empty() -> None:
    message = service_pb2.ModelStreamInferResponse.FromString(answers.stream_error("no", "", {}))
    assert message.infer_response.id == ""
    assert message.HasField("infer_response")


def test_liveness_and_readiness() -> None:
    for yes in (True, False):
        assert service_pb2.ServerLiveResponse.FromString(answers.server_live(yes)).live is yes
        assert service_pb2.ServerReadyResponse.FromString(answers.server_ready(yes)).ready is yes


def test_health() -> None:
    # grpc.health.v1.HealthCheckResponse{status = 1}: SERVING = 1, NOT_SERVING = 2.
    assert answers.health(True) == bytes([1 << 3, 1])
    assert answers.health(False) == bytes([1 << 3, 2])
