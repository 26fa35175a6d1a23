"""The method table against the protocol's own descriptor, row by row."""

from __future__ import annotations

import pytest

from sidecar.core.model import Action, Disposition
from sidecar.triton.methods import HEALTH, KSERVE, METHODS, PATH_CHARS, ROLES, lookup
from sidecar.triton.protos import service

A, F, R = Disposition.ANSWER, Disposition.FORWARD, Disposition.REFUSE
ROWS = {
    # name: (action, disposition, roles, of these shown the whole server, names a model)
    "ServerLive": (Action.HEALTH, A, "admin operator tenant", "", False),
    "ServerReady": (Action.HEALTH, A, "admin operator tenant", "", False),
    "ModelReady": (Action.METADATA, F, "admin operator tenant", "admin operator", True),
    "ServerMetadata": (Action.METADATA, F, "admin operator tenant", "admin operator", False),
    "ModelMetadata": (Action.METADATA, F, "admin operator tenant", "admin operator", True),
    "ModelInfer": (Action.INFER, F, "tenant", "", True),
    "ModelStreamInfer": (Action.INFER, F, "tenant", "", True),
    "ModelConfig": (Action.MANAGE, F, "admin operator tenant", "admin operator", True),
    "ModelStatistics": (Action.MANAGE, F, "admin operator tenant", "admin operator", True),
    "RepositoryIndex": (Action.MANAGE, F, "admin operator tenant", "admin operator", False),
    "RepositoryModelLoad": (Action.MANAGE, F, "admin", "admin", True),
    "RepositoryModelUnload": (Action.MANAGE, F, "admin", "admin", True),
    "TraceSetting": (Action.MANAGE, F, "admin", "admin", True),
    "LogSettings": (Action.MANAGE, F, "admin", "admin", False),
    "SystemSharedMemoryStatus": (Action.MANAGE, R, "", "", False),
    "SystemSharedMemoryRegister": (Action.MANAGE, R, "", "", False),
    "SystemSharedMemoryUnregister": (Action.MANAGE, R, "", "", False),
    "CudaSharedMemoryStatus": (Action.MANAGE, R, "", "", False),
    "CudaSharedMemoryRegister": (Action.MANAGE, R, "", "", False),
    "CudaSharedMemoryUnregister": (Action.MANAGE, R, "", "", False),
}


def test_every_rpc_of_the_service_has_a_row() -> None:
    names = {method.name for method in service().methods}
    assert len(names) == 20
    assert {path.removeprefix(KSERVE) for path in METHODS if path.startswith(KSERVE)} == names == set(ROWS)
    assert {path for path in METHODS if not path.startswith(KSERVE)} == {HEALTH + "Check", HEALTH + "Watch"}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    method = lookup(KSERVE + name)
    roles, whole = (" ".join(sorted(each)) for each in (method.roles, method.whole))
    assert (method.action, method.disposition, roles, whole, method.by_model) == ROWS[name]
    assert method.whole <= method.roles
    assert method.path == KSERVE + name
    assert method.name == name
    described = service().methods_by_name[name]
    assert method.streaming == (described.client_streaming or described.server_streaming)


def test_where_no_name_means_every_model() -> None:
    assert {method.name for method in METHODS.values() if method.all_models} == {"ModelStatistics", "TraceSetting"}


def test_only_staff_is_shown_the_whole_server() -> None:
    shown = {role: {m.name for m in METHODS.values() if m.shows_all(frozenset({role}))} for role in ROLES}
    assert shown["tenant"] == set()
    assert shown["operator"] < shown["admin"]


def test_health_is_answered_by_the_sidecar() -> None:
    check, watch = lookup("/grpc.health.v1.Health/Check"), lookup("/grpc.health.v1.Health/Watch")
    assert check.disposition is watch.disposition is Disposition.ANSWER
    assert (check.streaming, watch.streaming) == (False, True)


def test_what_is_open_to_nobody_is_refused_and_the_reverse() -> None:
    for method in METHODS.values():
        assert (method.disposition is Disposition.REFUSE) == (not method.roles)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/inference.GRPCInferenceService/modelinfer", "/inference.GRPCInferenceService/modelinfer"),
        ("/inference.GRPCInferenceService/ModelInfer/", "/inference.GRPCInferenceService/ModelInfer/"),
        ("inference.GRPCInferenceService/ModelInfer", "inference.GRPCInferenceService/ModelInfer"),
        ("", ""),
        ("/a\r\nb\x00\x1b[31m é", "/a??b??[31m??"),
        ("/" + "x" * 10_000, "/" + "x" * (PATH_CHARS - 1)),
    ],
)
def test_unknown_paths_are_nobodys_and_safe_to_log(path: str, kept: str) -> None:
    method = lookup(path)
    assert (method.action, method.disposition, method.roles) == (Action.UNKNOWN, Disposition.REFUSE, frozenset())
    assert method.path == kept
