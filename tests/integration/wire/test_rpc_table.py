"""Every RPC × role × {own, foreign, absent} × {well-formed, malformed}: the answer stated here, on both wires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest

from sidecar.triton.methods import HEALTH, KSERVE, METHODS
from sidecar.triton.protos import message_class, service
from tests.support.kserve import field, packed, request
from tests.support.sidecar import Answer, Bare, Sidecar, answer_of, echo
from tests.support.stack import MODELS, eventually

pytestmark = pytest.mark.integration

ROLES: Final = ("tenant", "operator", "admin")
TENANT: Final = "neighbour"
# All of one length: a name's length is not what is compared. `hold` is Triton's and another's; nobody has `held`.
OWN, FOREIGN, ABSENT = "echo", "hold", "held"
KINDS: Final = {"own": OWN, "foreign": FOREIGN, "absent": ABSENT}
FIELDS: Final = {"ModelReady": "name", "ModelMetadata": "name", "ModelConfig": "name", "ModelStatistics": "name"}

OK, NOT_FOUND = "OK", "MODEL_NOT_FOUND"
ROLE, BAD = "METHOD_NOT_ALLOWED", "REQUEST_MALFORMED"
POLLED = "UNAVAILABLE explicit model load / unload is not allowed if polling is enabled"

# What each role is answered: (own, foreign, absent); one word where it is the same for all three. "=" marks what must
# be the same bytes for foreign as for absent: whatever is no role's to see whole.
_TENANTS: Final = (OK, NOT_FOUND, NOT_FOUND)
_WHOLE: Final = (OK, OK, NOT_FOUND)
_ALL: Final = dict.fromkeys(ROLES, (OK, OK, OK))
_NOBODY: Final = dict.fromkeys(ROLES, (ROLE, ROLE, ROLE))
_ADMINS: Final = {"tenant": (ROLE,) * 3, "operator": (ROLE,) * 3}
EXPECTED: Final[dict[str, Mapping[str, tuple[str, str, str]]]] = {
    "ServerLive": _ALL,
    "ServerReady": _ALL,
    "Check": _ALL,
    "Watch": _ALL,
    "ServerMetadata": _ALL,
    "RepositoryIndex": _ALL,
    "ModelInfer": {"tenant": _TENANTS, "operator": (ROLE,) * 3, "admin": (ROLE,) * 3},
    "ModelStreamInfer": {"tenant": _TENANTS, "operator": (ROLE,) * 3, "admin": (ROLE,) * 3},
    # To whom the whole server is shown, an absent model is not ready, as Triton itself says.
    "ModelReady": {"tenant": _TENANTS, "operator": (OK,) * 3, "admin": (OK,) * 3},
    "ModelMetadata": {"tenant": _TENANTS, "operator": _WHOLE, "admin": _WHOLE},
    "ModelConfig": {"tenant": _TENANTS, "operator": _WHOLE, "admin": _WHOLE},
    "ModelStatistics": {"tenant": _TENANTS, "operator": _WHOLE, "admin": _WHOLE},
    "RepositoryModelLoad": {**_ADMINS, "admin": (POLLED,) * 3},
    "RepositoryModelUnload": {**_ADMINS, "admin": (POLLED,) * 3},
    "TraceSetting": {**_ADMINS, "admin": _WHOLE},
    "LogSettings": {**_ADMINS, "admin": (OK,) * 3},
    **{
        f"{kind}SharedMemory{what}": _NOBODY
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
}
BY_MODEL: Final = frozenset(method.name for method in METHODS.values() if method.by_model)


def test_the_table_is_of_every_rpc() -> None:
    assert len(EXPECTED) == 22
    assert set(EXPECTED) == {method.name for method in METHODS.values()}
    for name, rows in EXPECTED.items():
        assert set(rows) == set(ROLES)
        for role, (_, foreign, absent) in rows.items():
            assert foreign == absent or METHODS[path_of(name)].shows_all(frozenset({role})), (name, role)


def path_of(name: str) -> str:
    return (HEALTH if name in ("Check", "Watch") else KSERVE) + name


def message_of(name: str, model: str) -> bytes:
    """A well-formed request; of a method that names no model, the same for each."""
    if name in ("ModelInfer", "ModelStreamInfer"):
        return (
            echo(b"hi", id="r-1")
            if model == OWN
            else bytes(request(model, ("text", "BYTES", [1], packed(b"hi")), id="r-1").SerializeToString())
        )
    if name in ("Check", "Watch"):
        return b""
    made = message_class(service().methods_by_name[name].input_type.name)()
    if name in BY_MODEL:
        setattr(made, FIELDS.get(name, "model_name"), model)
    return bytes(made.SerializeToString())


# Each is put behind, or before, a well-formed request: (name, before, after, only of inference). What is wrong at the
# top of a message is told before its model is looked at; what is wrong inside it only of a model that is one's own.
MALFORMED: Final = {
    "cut": (b"", b"\x0a\x7f", True),
    "unknown field": (b"", field(60, b"x"), True),
    "bad wire type": (b"\x0b", b"", True),
    "garbage": (b"", b"\xff" * 16, True),
    "bad name": (b"", None, True),
    "inside": (b"", field(5, b"\xff\xff"), False),
    "bad parameter": (b"", field(4, b"\x0a\xff"), False),
}


@dataclass(frozen=True)
class Seen:
    """All of an answer that a client can tell two apart by, without the call's own id."""

    code: str
    text: str
    message: bytes | None
    details: bytes
    headers: frozenset[str]

    @property
    def reason(self) -> str:
        """As the table says it."""
        found = self.text.partition("]")[0].removeprefix("[") if self.text.startswith("[") else ""
        return self.code if self.code == OK else found or f"{self.code} {self.text}"


def seen(answer: Answer) -> Seen:
    call = answer.call_id.encode()

    def bare(value: Any) -> Any:
        data = value if isinstance(value, bytes) else str(value).encode()
        return data.replace(call, b"(call)")

    names = (*answer.initial, *answer.trailing)
    return Seen(
        answer.code,
        bare(answer.text).decode(),
        None if answer.message is None else bare(answer.message),
        bare(answer.trailing.get("grpc-status-details-bin", b"")),
        frozenset(name for name in names if name not in ("x-envoy-upstream-service-time", "date", "server")),
    )


def ask(bare: Bare, name: str, message: bytes, headers: Mapping[str, str]) -> Seen:
    """One RPC to its end; a Watch to its first message."""
    if name == "Watch":
        call = bare.channel.unary_stream(path_of(name))(message, metadata=tuple(headers.items()), timeout=30)
        try:
            first = next(call)
        except grpc.RpcError:
            return seen(answer_of(call))
        call.cancel()
        return Seen(OK, "", first, b"", frozenset())
    if name == "ModelStreamInfer":
        stream = bare.stream([message], headers)
        found = list(stream)
        answer = answer_of(stream.call)
        if found:
            refused = next((each for each in found if each.error_message), None)
            told = (refused or found[0]).SerializeToString(deterministic=True)
            text = refused.error_message if refused else ""
            code = OK if refused is None else "IN_BAND"
            return Seen(code, text, told, b"", frozenset(answer.initial))
        return seen(answer)
    return seen(bare.unary(message, headers, path=path_of(name), timeout=30))


@pytest.fixture(scope="module")
def headers(sidecar: Sidecar) -> dict[str, dict[str, str]]:
    """A credential for each role. An admin's is a key, because the tokens' issuer may not say that one is."""
    tokens = {role: sidecar.token(TENANT, roles=(role,)) for role in ("tenant", "operator")}
    made = {
        role: {"authorization": f"Bearer {credential}"}
        for role, credential in {**tokens, "admin": sidecar.issue(TENANT, roles=("admin",))}.items()
    }
    with sidecar.bare() as bare:
        eventually(lambda: ask(bare, "LogSettings", b"", made["admin"]).code == OK, what="the admin's key")
    return made


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", EXPECTED)
def test_well_formed(bare: Bare, headers: dict[str, dict[str, str]], name: str, role: str) -> None:
    assert {OWN, FOREIGN} < set(MODELS)
    assert ABSENT not in MODELS
    answers = {kind: ask(bare, name, message_of(name, model), headers[role]) for kind, model in KINDS.items()}
    assert tuple(answer.reason for answer in answers.values()) == EXPECTED[name][role]
    if not METHODS[path_of(name)].shows_all(frozenset({role})) and name not in ("ServerMetadata", "Watch"):
        assert answers["foreign"] == answers["absent"]


def _can_be_wrong(name: str, wrong: str) -> bool:
    _, after, at_the_top = MALFORMED[wrong]
    return (at_the_top or name in ("ModelInfer", "ModelStreamInfer")) and (after is not None or name in BY_MODEL)


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name in EXPECTED for wrong in MALFORMED if _can_be_wrong(name, wrong)]
)
@pytest.mark.parametrize("role", ROLES)
def test_malformed(bare: Bare, headers: dict[str, dict[str, str]], name: str, role: str, wrong: str) -> None:
    before, after, at_the_top = MALFORMED[wrong]
    answers = {}
    for kind, model in KINDS.items():
        good = message_of(name, model if after is not None else model + "/..")
        answers[kind] = ask(bare, name, before + good + (after or b""), headers[role])
    expected = EXPECTED[name][role]
    if expected[0] == ROLE or name in ("ServerLive", "ServerReady"):
        pass  # who may not call it isn't told what is wrong with the message, and theirs isn't even read
    elif at_the_top:
        expected = (BAD, BAD, BAD)
    else:
        expected = (BAD, NOT_FOUND, NOT_FOUND)
    assert tuple(answer.reason for answer in answers.values()) == expected
    assert all("UNKNOWN" not in answer.code for answer in answers.values())
    if wrong != "bad name":  # that is told with the caller's own name in it
        assert answers["foreign"] == answers["absent"]


# --- beside the table -----------------------------------------------------------------------------------------------

ABOUT_A_MODEL: Final = ("ModelMetadata", "ModelConfig", "ModelStatistics")


@pytest.mark.parametrize("name", [*ABOUT_A_MODEL, "ModelInfer", "ModelStreamInfer"])
def test_what_is_granted_and_triton_has_not_reads_as_what_is_foreign(
    bare: Bare, headers: dict[str, dict[str, str]], name: str
) -> None:
    granted = ask(bare, name, message_of(name, "ghost"), headers["tenant"])
    assert granted.reason == NOT_FOUND
    assert granted == ask(bare, name, message_of(name, FOREIGN), headers["tenant"])


def test_what_is_granted_and_triton_has_not_is_not_ready(bare: Bare, headers: dict[str, dict[str, str]]) -> None:
    """As Triton says it: clients wait for a model that is loading by asking until it is ready."""
    assert ask(bare, "ModelReady", message_of("ModelReady", "ghost"), headers["tenant"]).message == b""


@pytest.mark.parametrize("name", [*ABOUT_A_MODEL, "ModelReady", "ModelInfer"])
@pytest.mark.parametrize("version", ["2", "999999999999999999"])
def test_a_version_that_is_not_there_reads_the_same(
    bare: Bare, headers: dict[str, dict[str, str]], name: str, version: str
) -> None:
    def answer(model: str) -> Seen:
        made = message_class(service().methods_by_name[name].input_type.name).FromString(message_of(name, model))
        setattr(made, "model_version" if name == "ModelInfer" else "version", version)
        return ask(bare, name, made.SerializeToString(), headers["tenant"])

    assert answer(FOREIGN) == answer(ABSENT)
    assert answer(FOREIGN).reason == NOT_FOUND
    assert answer(OWN).reason == (OK if name == "ModelReady" else NOT_FOUND)


def told(bare: Bare, method: str, headers: Mapping[str, str], **fields: Any) -> Any:
    described = service().methods_by_name[method]
    made = message_class(described.input_type.name)(**fields)
    answer = bare.unary(made.SerializeToString(), headers, path=path_of(method))
    assert (answer.code, answer.text) == (OK, "")
    assert answer.message is not None
    return message_class(described.output_type.name).FromString(answer.message)


def test_a_tenant_is_shown_its_own_and_staff_the_whole_server(bare: Bare, headers: dict[str, dict[str, str]]) -> None:
    index = {role: told(bare, "RepositoryIndex", headers[role]) for role in ROLES}
    assert {model.name for model in index["tenant"].models} == {"echo", "gossip"}
    for role in ("operator", "admin"):
        assert {model.name for model in index[role].models} == set(MODELS)
    every = {role: told(bare, "ServerMetadata", headers[role]) for role in ROLES}
    assert (every["tenant"].name, every["tenant"].version) == ("triton", every["admin"].version)
    hidden = set(every["admin"].extensions) - set(every["tenant"].extensions)
    assert hidden >= {"system_shared_memory", "cuda_shared_memory", "model_repository", "trace", "logging"}
    config = {role: told(bare, "ModelConfig", headers[role], name="gossip").config for role in ROLES}
    assert config["admin"].default_model_filename == "model.py"
    assert not config["tenant"].default_model_filename
    assert not config["tenant"].parameters
    assert config["tenant"].max_batch_size == 8
    assert list(config["tenant"].dynamic_batching.preferred_batch_size) == [2]
    assert (config["tenant"].instance_group[0].count, config["tenant"].instance_group[0].name) == (1, "")


def test_statistics_are_of_ones_own_calls(sidecar: Sidecar, bare: Bare, headers: dict[str, dict[str, str]]) -> None:
    def mine(role: str = "tenant") -> Any:
        (found,) = told(bare, "ModelStatistics", headers[role], name="echo").model_stats
        return found

    before, whole = mine(), mine("operator")
    for _ in range(3):
        assert bare.unary(echo(), headers["tenant"]).code == OK
    for _ in range(2):
        assert bare.unary(echo(), sidecar.headers("acme")).code == OK
    after = mine()
    assert after.version == "1"
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.success.count - before.inference_stats.success.count == 3
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert mine("operator").inference_stats.success.count - whole.inference_stats.success.count >= 5
    named = {each.name for each in told(bare, "ModelStatistics", headers["tenant"]).model_stats}
    assert named == {"echo", "gossip"}
    assert {each.name for each in told(bare, "ModelStatistics", headers["admin"]).model_stats} == set(MODELS)


def test_settings_are_read_and_not_made(bare: Bare, headers: dict[str, dict[str, str]]) -> None:
    assert told(bare, "TraceSetting", headers["admin"]).settings["trace_level"].value == ["TIMESTAMPS"]
    trace = message_class("TraceSettingRequest")()
    trace.settings["trace_level"].value.append("TENSORS")
    answer = bare.unary(trace.SerializeToString(), headers["admin"], path=path_of("TraceSetting"))
    assert answer.told().reason == "PARAMETER_NOT_ALLOWED"
    log = message_class("LogSettingsRequest")()
    log.settings["log_error"].bool_param = False
    answer = bare.unary(log.SerializeToString(), headers["admin"], path=path_of("LogSettings"))
    assert answer.told().reason == "PARAMETER_NOT_ALLOWED"
