"""What a tenant is shown of Triton's answers about models: its own, without what tells of the server or of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError, EncodeError

from sidecar.core.model import Method
from sidecar.core.ports import Sees
from sidecar.triton.methods import KSERVE
from sidecar.triton.protos import message_class

__all__ = ["EXTENSIONS", "Count", "shown"]

Count = Callable[[Any], None]  # fills a ModelStatistics, whose name and version are set, from the tenant's own calls

# Of ServerMetadata's list: what a tenant can use of Triton through the sidecar. A newer Triton's are left out until
# somebody has looked at them.
EXTENSIONS: Final = frozenset(
    {
        "binary_tensor_data",
        "classification",
        "generate",
        "model_configuration",
        "parameters",
        "schedule_policy",
        "sequence",
        "statistics",
    }
)

# What a client needs to make requests (perf_analyzer among them), by message of model_config.proto. All else is left
# out: parameters, file names, GPUs, warm-up samples, the steps of an ensemble, repository agents, metric tags.
_CONFIG: Final[dict[str, tuple[str, ...]]] = {
    "ModelConfig": (
        "name", "platform", "backend", "version_policy", "max_batch_size", "input", "output", "dynamic_batching",
        "sequence_batching", "instance_group", "model_transaction_policy", "response_cache",
    ),
    "ModelInput": (
        "name", "data_type", "format", "dims", "reshape", "is_shape_tensor", "allow_ragged_batch", "optional",
        "is_non_linear_format_io",
    ),
    "ModelOutput": ("name", "data_type", "dims", "reshape", "is_shape_tensor", "is_non_linear_format_io"),
    "ModelSequenceBatching": ("direct", "oldest", "max_sequence_idle_microseconds", "control_input"),
    "ModelInstanceGroup": ("kind", "count"),
}  # fmt: skip


def shown(method: Method, message: bytes, sees: Sees, count: Count, alias: str = "") -> bytes | None:
    """Triton's answer as a tenant is sent it; None where it can't be read, so that nobody is sent it.

    ``sees``: which models, and which of their versions, the caller may know of. ``alias``: what it calls the model.
    """
    view = _VIEWS.get(method.path)
    if view is None:
        return message
    answer_class, narrow = view
    try:
        answer = answer_class.FromString(message)
        answer.DiscardUnknownFields()  # what a newer Triton tells, nobody has looked at yet
        narrow(answer, sees, count)
        if alias:
            _rename(answer, alias)
        narrowed: bytes = answer.SerializeToString()
    except (DecodeError, EncodeError):
        return None
    return narrowed


def _kept(repeated: Any, keep: Callable[[Any], bool]) -> None:
    kept = [item for item in repeated if keep(item)]
    del repeated[:]
    repeated.extend(kept)


def _server(answer: Any, _sees: Sees, _count: Count) -> None:
    _kept(answer.extensions, EXTENSIONS.__contains__)


def _metadata(answer: Any, sees: Sees, _count: Count) -> None:
    _kept(answer.versions, lambda version: sees(answer.name, version))


def _index(answer: Any, sees: Sees, _count: Count) -> None:
    _kept(answer.models, lambda model: sees(model.name, model.version))
    for model in answer.models:
        model.reason = ""  # paths, and the error text of a load


def _config(answer: Any, sees: Sees, _count: Count) -> None:
    config = answer.config
    _only(config, "ModelConfig")
    for tensor in config.input:
        _only(tensor, "ModelInput")
    for tensor in config.output:
        _only(tensor, "ModelOutput")
    for group in config.instance_group:
        _only(group, "ModelInstanceGroup")
    if config.HasField("sequence_batching"):
        _only(config.sequence_batching, "ModelSequenceBatching")
    if config.version_policy.HasField("specific"):
        _kept(config.version_policy.specific.versions, lambda version: sees(config.name, str(version)))


def _rename(answer: Any, alias: str) -> None:
    """Where the answer is about one model. ModelMetadata's name is put behind it with the alias of an inference."""
    if answer.DESCRIPTOR.name == "ModelConfigResponse":
        answer.config.name = alias
    elif answer.DESCRIPTOR.name == "ModelStatisticsResponse":
        for statistics in answer.model_stats:
            statistics.name = alias


def _only(message: Any, name: str) -> None:
    kept = _CONFIG[name]
    for field, _ in message.ListFields():
        if field.name not in kept:
            message.ClearField(field.name)


def _statistics(answer: Any, sees: Sees, count: Count) -> None:
    """Triton's say which models and versions there are; every number in them is of all tenants together."""
    found: Iterable[tuple[str, str]] = [(each.name, each.version) for each in answer.model_stats]
    del answer.model_stats[:]
    for name, version in found:
        if sees(name, version):
            count(answer.model_stats.add(name=name, version=version))


_VIEWS: Final[dict[str, tuple[Any, Callable[[Any, Sees, Count], None]]]] = {
    KSERVE + name: (message_class(answer), narrow)
    for name, answer, narrow in (
        ("ServerMetadata", "ServerMetadataResponse", _server),
        ("ModelMetadata", "ModelMetadataResponse", _metadata),
        ("ModelConfig", "ModelConfigResponse", _config),
        ("ModelStatistics", "ModelStatisticsResponse", _statistics),
        ("RepositoryIndex", "RepositoryIndexResponse", _index),
    )
}
