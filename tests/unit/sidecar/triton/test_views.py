"""What a tenant is shown of the server's answers: its own models and versions, and nothing of how they are run."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.triton.methods import KSERVE, METHODS
from sidecar.triton.protos import message_class
from sidecar.triton.views import EXTENSIONS, shown
from tests.support.kserve import field

OWN = {("chat", "1"), ("chat", "2"), ("vision", "1")}


def sees(model: str, version: str) -> bool:
    return (model, version) in OWN or (not version and model in {name for name, _ in OWN})


def count(statistics: Any) -> None:
    statistics.inference_count = 7


def view(method: str, message: Any) -> Any:
    sent = shown(METHODS[KSERVE + method], message.SerializeToString(), sees, count)
    assert sent is not None
    return type(message).FromString(sent)


def made(message: str, **fields: Any) -> Any:
    return message_class(message)(**fields)


def test_server_metadata_names_only_what_a_tenant_can_use() -> None:
    every = ["classification", "sequence", "model_repository", "model_repository(unload_dependents)",
        "schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data",
        "parameters", "statistics", "trace", "logging", "something_new"]  # fmt: skip
    told = view("ServerMetadata", made("ServerMetadataResponse", name="triton", version="2.51.0", extensions=every))
    assert (told.name, told.version) == ("triton", "2.51.0")
    assert list(told.extensions) == [name for name in every if name in EXTENSIONS]
    assert not {name for name in told.extensions if "memory" in name or "repository" in name}


def test_model_metadata_names_only_its_own_versions() -> None:
    told = view(
        "ModelMetadata", made("ModelMetadataResponse", name="chat", versions=["1", "2", "3"], platform="python")
    )
    assert (list(told.versions), told.platform) == (["1", "2"], "python")


def test_the_index_names_only_its_own_models_and_no_reason() -> None:
    answer = made("RepositoryIndexResponse")
    for name, version, reason in (
        ("chat", "1", ""),
        ("chat", "3", ""),
        ("secret", "1", "x"),
        ("vision", "1", "/mnt/a"),
    ):
        answer.models.add(name=name, version=version, state="UNAVAILABLE", reason=reason)
    told = view("RepositoryIndex", answer)
    assert [(m.name, m.version, m.state, m.reason) for m in told.models] == [
        ("chat", "1", "UNAVAILABLE", ""),
        ("vision", "1", "UNAVAILABLE", ""),
    ]


def test_statistics_are_the_tenants_own() -> None:
    answer = made("ModelStatisticsResponse")
    for name, version in (("chat", "1"), ("secret", "1"), ("chat", "3")):
        each = answer.model_stats.add(name=name, version=version, inference_count=1_000, last_inference=5)
        each.memory_usage.add(type="GPU", id=1, byte_size=2**30)
        each.response_stats["0"].success.count = 9
        each.batch_stats.add(batch_size=8)
    told = view("ModelStatistics", answer)
    assert told == made("ModelStatisticsResponse", model_stats=[{"name": "chat", "version": "1", "inference_count": 7}])


def full(message: Any, depth: int = 0) -> Any:
    """Every field of a message set to something, to its last nested message."""
    for each in message.DESCRIPTOR.fields:
        if each.containing_oneof is not None and message.WhichOneof(each.containing_oneof.name):
            continue
        is_map = each.message_type is not None and each.message_type.GetOptions().map_entry
        if is_map:
            value = each.message_type.fields_by_name["value"]
            key = "s3cret" if each.message_type.fields_by_name["key"].type == value.TYPE_STRING else 1
            if value.message_type is not None:
                full(getattr(message, each.name)[key], depth + 1)
            else:
                getattr(message, each.name)[key] = "s3cret" if value.type == value.TYPE_STRING else 1
        elif each.message_type is not None:
            nested = getattr(message, each.name).add() if each.is_repeated else getattr(message, each.name)
            nested.SetInParent() if not each.is_repeated else None
            if depth < 4:
                full(nested, depth + 1)
        else:
            value = {each.TYPE_STRING: "s3cret", each.TYPE_BYTES: b"s3cret", each.TYPE_BOOL: True}.get(each.type, 1)
            if each.is_repeated:
                getattr(message, each.name).append(value)
            else:
                setattr(message, each.name, value)
    return message


def test_of_a_config_only_what_a_request_needs_is_told() -> None:
    answer = made("ModelConfigResponse")
    full(answer.config)
    told = view("ModelConfig", answer).config
    assert {field.name for field, _ in told.ListFields()} == {
        "name", "platform", "backend", "version_policy", "max_batch_size", "input", "output", "instance_group",
        "model_transaction_policy", "response_cache", "dynamic_batching",
    }  # fmt: skip
    assert {field.name for field, _ in told.instance_group[0].ListFields()} == {"kind", "count"}
    assert "label_filename" not in {field.name for field, _ in told.output[0].ListFields()}
    answer.config.sequence_batching.Clear()
    full(answer.config.sequence_batching)
    sequence = view("ModelConfig", answer).config.sequence_batching
    assert {field.name for field, _ in sequence.ListFields()} <= {
        "direct", "oldest", "max_sequence_idle_microseconds", "control_input",
    }  # fmt: skip
    answer.config.ensemble_scheduling.step.add(model_name="s3cret")
    assert b"s3cret" not in view("ModelConfig", answer).config.ensemble_scheduling.SerializeToString()


def test_of_a_version_policy_only_its_own_versions_are_told() -> None:
    answer = made("ModelConfigResponse")
    answer.config.name = "chat"
    answer.config.version_policy.specific.versions.extend([1, 3, 2])
    assert list(view("ModelConfig", answer).config.version_policy.specific.versions) == [1, 2]


def test_what_a_newer_triton_adds_is_left_out() -> None:
    message = made("ServerMetadataResponse", name="triton").SerializeToString() + field(99, b"s3cret")
    sent = shown(METHODS[KSERVE + "ServerMetadata"], message, sees, count)
    assert sent == made("ServerMetadataResponse", name="triton").SerializeToString()


@pytest.mark.parametrize(
    "method", ["ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex"]
)
@pytest.mark.parametrize("message", [b"\x0a\xff", b"\xff" * 20, b"\x0a\x02\xff\xfe"])
def test_an_answer_that_cannot_be_read_is_shown_to_nobody(method: str, message: bytes) -> None:
    assert shown(METHODS[KSERVE + method], message, sees, count) is None


def test_readiness_is_one_bit_and_stands() -> None:
    assert shown(METHODS[KSERVE + "ModelReady"], b"\x08\x01", sees, count) == b"\x08\x01"
