"""KServe v2's message classes, from the descriptors that ship with ``tritonclient``, without importing grpc."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

# ``tritonclient/grpc/__init__.py`` imports grpc, whose threads and forks don't belong in a process that Envoy hosts.
# The generated modules need none of it: each holds one serialised file descriptor. The pool takes the same bytes
# twice, and a message has one class however often it is asked for: ``import tritonclient.grpc`` will find these.
_FILES: Final = {"model_config_pb2": "model_config.proto", "service_pb2": "grpc_service.proto"}  # in order of import


def _serialized(module: str, source: str) -> bytes:
    package = find_spec("tritonclient")
    if package is None or not package.submodule_search_locations:
        raise ImportError("tritonclient is not installed")
    path = Path(package.submodule_search_locations[0]) / "grpc" / f"{module}.py"
    code = SourceFileLoader(f"tritonclient.grpc.{module}", str(path)).get_code(f"tritonclient.grpc.{module}")
    constants = () if code is None else code.co_consts
    serialized: bytes = max((value for value in constants if isinstance(value, bytes)), key=len, default=b"")
    if not serialized or FileDescriptorProto.FromString(serialized).name != source:
        raise ImportError(f"{path} does not hold the descriptor of {source}")
    return serialized


for _module, _source in _FILES.items():
    descriptor_pool.Default().AddSerializedFile(_serialized(_module, _source))


def descriptor(name: str) -> Descriptor:
    """The descriptor of message ``inference.<name>``."""
    return descriptor_pool.Default().FindMessageTypeByName(f"inference.{name}")


def service() -> ServiceDescriptor:
    """The descriptor of ``inference.GRPCInferenceService``."""
    return descriptor_pool.Default().FindServiceByName("inference.GRPCInferenceService")


def message_class(name: str) -> Any:  # protobuf's classes are made at run time: no type checker knows their fields
    """The class of message ``inference.<name>``."""
    return message_factory.GetMessageClass(descriptor(name))


ModelInferRequest: Final = message_class("ModelInferRequest")
ModelInferResponse: Final = message_class("ModelInferResponse")
ModelStreamInferResponse: Final = message_class("ModelStreamInferResponse")
