"""Asks a live Triton, over its own gRPC, what `warden init` needs to know: version, models, tensors, settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf import message_factory

from sidecar.cli.drafting import MODELS_MAX, NOT_LOADED, Model, Server
from sidecar.transports.upstream import Metadata, Restricted
from sidecar.triton import protos

__all__ = ["DEADLINE_S", "Silent", "survey"]

DEADLINE_S: Final = 5.0  # for each question
_MESSAGE_MAX: Final = 64 * 2**20  # bytes: the index of a large repository is more than grpc's 4 MiB
_READY: Final = "READY"


@dataclass(frozen=True, slots=True)
class Silent:
    """Triton did not answer, or not as Triton does; ``detail`` says how."""

    detail: str


def survey(address: str, restricted: Restricted | None = None, *, deadline_s: float = DEADLINE_S) -> Server | Silent:
    """Ask ``address`` (HOST:PORT). Read-only: nothing is loaded, unloaded or changed to find something out.

    ``restricted``: what Triton wants to see with each question, where it was started so.
    """
    # Triton is near: a proxy that the environment names for the way out is not asked.
    options = (("grpc.max_receive_message_length", _MESSAGE_MAX), ("grpc.enable_http_proxy", 0))
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            return _server(_Desk(channel, deadline_s, () if restricted is None else restricted.metadata()))
        except grpc.RpcError as fault:
            return Silent(_words(fault, deadline_s))


@dataclass(frozen=True, slots=True)
class _Desk:
    channel: grpc.Channel
    deadline_s: float
    metadata: Metadata = ()

    def ask(self, method: str, **fields: str) -> Any:
        """One unary RPC of KServe's service. Raises ``grpc.RpcError``."""
        service = protos.service()
        found = service.methods_by_name[method]
        call = self.channel.unary_unary(
            f"/{service.full_name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        return call(
            message_factory.GetMessageClass(found.input_type)(**fields), timeout=self.deadline_s, metadata=self.metadata
        )


def _server(desk: _Desk) -> Server:
    version = desk.ask("ServerMetadata").version
    index = desk.ask("RepositoryIndex").models
    ready = sorted({entry.name for entry in index if entry.state == _READY})
    unready = {
        entry.name: " ".join(filter(None, (entry.state.lower() or NOT_LOADED, _brief(entry.reason))))
        for entry in index
        if entry.name not in ready
    }
    models = tuple(_model(desk, name) for name in ready[:MODELS_MAX])
    return Server(version, models, unready, max(0, len(ready) - MODELS_MAX))


def _model(desk: _Desk, name: str) -> Model:
    metadata = desk.ask("ModelMetadata", name=name)
    config = desk.ask("ModelConfig", name=name).config
    return Model(
        name=name,
        inputs={tensor.name: tensor.datatype for tensor in metadata.inputs},
        outputs={tensor.name: tensor.datatype for tensor in metadata.outputs},
        decoupled=config.model_transaction_policy.decoupled,
        steps=tuple(step.model_name for step in config.ensemble_scheduling.step),
        response_cache=config.response_cache.enable,
        parameters={key: value.string_value for key, value in config.parameters.items()},
    )


def _brief(reason: str) -> str:
    line = next(iter(reason.splitlines()), "")[:120]
    return f"({line})" if line else ""


def _words(fault: Any, deadline_s: float) -> str:
    """What grpc says, and what it mostly means. ``fault`` is a grpc.Call as well, which grpc's types don't say."""
    code, details = fault.code(), fault.details() or ""
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"no answer within {deadline_s:g} s"
        case grpc.StatusCode.UNAVAILABLE if "restricted" in details:
            return f"{details}; name Triton's --grpc-restricted-protocol key and a file with its secret: --restricted"
        case grpc.StatusCode.UNAVAILABLE:
            return f"{details[:300]}; is it up, and is this its gRPC port (8001), not the HTTP one (8000)?"
        case grpc.StatusCode.UNAUTHENTICATED:
            return f"{details[:300]}; that is a sidecar's port, not Triton's own"
        case _:
            return f"{code.name}: {details[:300]}"
