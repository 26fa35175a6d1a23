"""The message classes come without grpc, and are the client's own whichever is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OURS = "from sidecar.triton import protos"
_THEIRS = "import tritonclient.grpc; from tritonclient.grpc import service_pb2"
_SAME = """
for name in ("ModelInferRequest", "ModelInferResponse", "ModelStreamInferResponse"):
    assert getattr(protos, name) is getattr(service_pb2, name), name
message = protos.ModelInferRequest(model_name="m")
message.parameters["a"].int64_param = 1
assert service_pb2.ModelInferRequest.FromString(message.SerializeToString()) == message
"""


def run(source: str) -> None:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_whole_room_imports_without_grpc() -> None:
    run(
        "import sidecar.triton.reader, sidecar.triton.answers, sys\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] in ('grpc', 'tritonclient', 'asyncio')]\n"
        "assert not loaded, loaded"
    )


@pytest.mark.parametrize("first", [(_OURS, _THEIRS), (_THEIRS, _OURS)], ids=["ours first", "theirs first"])
def test_both_orders_give_one_class(first: tuple[str, str]) -> None:
    run("\n".join(first) + _SAME)
