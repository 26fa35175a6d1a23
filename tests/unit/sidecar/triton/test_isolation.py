"""What may not reach Triton is named; what may goes on untouched, with no metadata of the client's."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from sidecar.core.model import (
    NO_FACTS,
    Call,
    Contract,
    Credential,
    Denial,
    Forward,
    Instant,
    Limits,
    ModelProfile,
    Outcome,
    OutcomeKind,
    Principal,
    Secret,
    Undo,
    Usage,
)
from sidecar.core.ports import everything
from sidecar.core.reasons import Reason
from sidecar.triton.isolation import (
    _HARMLESS,
    _ORDINARY,
    FORBIDDEN_PARAMETERS,
    FORBIDDEN_SAMPLING,
    FORBIDDEN_TENSORS,
    LORA_TENSORS,
    Isolation,
    _parameter,
    _tensor,
)
from sidecar.triton.knowledge import Knowledge, ModelBook, ModelFacts
from sidecar.triton.methods import KSERVE, METHODS, lookup
from sidecar.triton.protos import ModelInferRequest, message_class, service
from sidecar.triton.reader import TritonReader
from sidecar.triton.sequences import SequenceTable
from tests.support.core import ACME, AT
from tests.support.kserve import chat, field, packed, request
from tests.support.models import ENSEMBLE, VLLM, described, sequential
from tests.support.reading import admitted, isolated, isolation, reader, verdict

READER = reader()
CHAT = ModelProfile("chat", Contract.VLLM, max_tokens=100)
PLAIN = ModelProfile("m")
LABELLED = ModelProfile("m", classification=True)
TRTLLM = ModelProfile("t", Contract.TRTLLM)


def call(message: Any, method: str = "ModelInfer") -> Call:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return Call("id", lookup(KSERVE + method), Instant(0, 0), data, Credential("api_key", Secret(b"")))


def _output(name: str, data_type: str) -> str:
    return f'[ {{ name: "{name}" data_type: {data_type} dims: [ 1 ] }} ]'


SCORES = described("m", "output " + _output("y", "TYPE_FP32"))


def isolate(
    message: Any,
    profile: ModelProfile = PLAIN,
    *,
    method: str = "ModelInfer",
    knowing: ModelFacts | None = None,
    **more: Any,
) -> Forward | Denial:
    made = call(message, method)
    return isolated(READER if knowing is None else reader(knowing), made, profile, **more)


def refused(message: Any, profile: ModelProfile = PLAIN, **more: Any) -> str:
    denial = isolate(message, profile, **more)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.PARAMETER_NOT_ALLOWED
    assert denial.rule
    return denial.detail


def parameter(name: str, *, on: str = "request", message: Any | None = None) -> Any:
    made = message or request("m", ("x", "INT8", [1], b"a"))
    made.outputs.add(name="y")
    where = {"request": made, "input": made.inputs[0], "output": made.outputs[0]}[on]
    where.parameters[name].int64_param = 1
    return made


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_an_ordinary_request_goes_on_byte_for_byte(method: str) -> None:
    message = chat(b"hello", max_tokens=100, temperature=0.5, stop=["\n"], lora=None)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    made = call(message, method)
    forward = isolated(READER, made, CHAT)
    assert isinstance(forward, Forward)
    assert forward.message is made.message
    assert (forward.metadata, forward.suffix, forward.undo, forward.sequence) == ((), b"", None, None)


@pytest.mark.parametrize("on", ["request", "input", "output"])
@pytest.mark.parametrize("name", ["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"])
def test_shared_memory_anywhere(name: str, on: str) -> None:
    assert name in refused(parameter(name, on=on))


@pytest.mark.parametrize("name", [*FORBIDDEN_PARAMETERS, "triton_x", "triton_", "triton_final_response"])
def test_parameters_that_triton_acts_on(name: str) -> None:
    assert refused(parameter(name)).startswith(f"parameter {name}: ")


@pytest.mark.parametrize("on", ["input", "output"])
def test_tensors_have_no_other_parameters(on: str) -> None:
    assert "binary_data" in refused(parameter("binary_data", on=on))
    allowed = parameter("classification", on=on)
    assert isinstance(isolate(allowed, LABELLED, knowing=SCORES), Forward if on == "output" else Denial)


# --- classification -----------------------------------------------------------------------------------------------


def classified(count: int, kind: str = "int64_param") -> Any:
    made = request("m", ("x", "INT8", [1], b"a"))
    setattr(made.outputs.add(name="y").parameters["classification"], kind, count)
    return made


@pytest.mark.parametrize("contract", Contract)
def test_outputs_are_classified_only_where_they_are_said_to_be_numeric(contract: Contract) -> None:
    """Triton 2.51 dies of SIGFPE, for everybody, where the output holds strings."""
    made = classified(1)
    if contract is not Contract.GENERIC:
        made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        made.raw_input_contents.append(packed(b"x"))
        made.inputs.add(name="max_tokens", datatype="INT32", shape=[1])
        made.raw_input_contents.append(struct.pack("<i", 1))
    unsaid = refused(made, ModelProfile("m", contract), knowing=SCORES)
    assert unsaid.startswith("parameter outputs/y/classification: ")
    said = isolate(made, ModelProfile("m", contract, classification=True), knowing=SCORES)
    assert isinstance(said, Forward if contract is Contract.GENERIC else Denial)


def test_an_output_that_triton_declares_as_text_or_not_at_all_is_not_classified() -> None:
    for output, why in (("[]", "no such output"), (_output("y", "TYPE_STRING"), "holds strings")):
        assert why in refused(classified(1), LABELLED, knowing=described("m", f"output {output}"))


@pytest.mark.parametrize("count", [1, 1000, 1001, 2**32, 2**32 + 1, 2**62, 2**63 - 1])
def test_no_more_classes_than_triton_can_count(count: int) -> None:
    made = classified(count)
    if count <= 1000:
        assert isinstance(isolate(made, LABELLED, knowing=SCORES), Forward)
    else:
        assert refused(made, LABELLED, knowing=SCORES) == "parameter outputs/y/classification: must be 1 to 1000"


# --- tensors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FORBIDDEN_TENSORS, "retention_token_range_starts", "retention_decode_priority"])
@pytest.mark.parametrize("contract", Contract)
def test_tensors_that_reach_past_the_request(name: str, contract: Contract) -> None:
    message = request("m", ("text_input", "BYTES", [1], packed(b"x")), (name, "INT8", [1], b"\x00"))
    assert refused(message, ModelProfile("m", contract)).startswith(f"input {name}: ")


@pytest.mark.parametrize("name", FORBIDDEN_SAMPLING)
def test_sampling_parameters_that_reach_past_the_request(name: str) -> None:
    assert refused(chat(**{name: "x"}), CHAT).startswith(f"parameter {name}: ")
    assert refused(parameter(name, message=chat()), CHAT).startswith(f"parameter {name}: ")
    assert isinstance(isolate(parameter(name)), Forward)  # a generic model's own parameter


def test_a_request_parameter_is_not_hidden_by_a_sampling_parameter() -> None:
    assert "shared_memory_region" in refused(
        parameter("shared_memory_region", message=chat(shared_memory_region=1)), CHAT
    )


def test_more_tokens_than_the_model_gives() -> None:
    assert refused(chat(max_tokens=101), CHAT) == "max_tokens: 101 asked, at most 100 for this model"
    assert isinstance(isolate(chat(max_tokens=None), CHAT), Forward)
    trtllm = ModelProfile("t", Contract.TRTLLM, max_tokens=10)
    ensemble = request(
        "t", ("text_input", "BYTES", [1, 1], packed(b"x")), ("max_tokens", "INT32", [1, 1], struct.pack("<i", 11))
    )
    assert "11 asked, at most 10" in refused(ensemble, trtllm)


CHANGING = {
    "RepositoryModelLoad": field(2, b"m") + field(3, field(1, b"config") + field(2, field(3, b"{}"))),
    "RepositoryModelUnload": field(2, b"m") + field(3, field(1, b"unload_dependents")),
    "TraceSetting": field(1, field(1, b"trace_level") + field(2, field(1, b"TENSORS"))) + field(2, b"m"),
    "LogSettings": field(1, field(1, b"log_file") + field(2, field(3, b"/etc/x"))),
}


@pytest.mark.parametrize("method", CHANGING)
def test_management_carries_no_parameters(method: str) -> None:
    assert method in refused(CHANGING[method], method=method)
    by_model = field(2, b"m") if lookup(KSERVE + method).by_model else b""
    assert isinstance(isolate(by_model, method=method), Forward)


@pytest.mark.parametrize(
    ("name", "kind", "value", "passes"),
    [
        ("unload_dependents", "bool_param", False, True),  # as tritonclient sends it with every unload
        ("unload_dependents", "bool_param", True, True),
        ("unload_dependents", "string_param", "yes", False),
        ("config", "bool_param", True, False),
    ],
)
def test_an_unload_may_say_what_becomes_of_an_ensembles_models(name: str, kind: str, value: Any, passes: bool) -> None:
    message = message_class("RepositoryModelUnloadRequest")(model_name="m")
    setattr(message.parameters[name], kind, value)
    found = isolate(message, method="RepositoryModelUnload")
    assert isinstance(found, Forward if passes else Denial)
    message.parameters["more"].bool_param = True
    assert isinstance(isolate(message, method="RepositoryModelUnload"), Denial)
    assert isinstance(isolate(field(2, b"m") + field(3, b"\xff"), method="RepositoryModelUnload"), Denial)


def test_whatever_takes_parameters_is_held_to_it() -> None:
    taking = {
        method.name
        for method in service().methods
        if {"parameters", "settings"} & set(method.input_type.fields_by_name) and not method.name.endswith("Infer")
    }
    assert taking == set(CHANGING)


def test_every_other_method_goes_on_untouched() -> None:
    for method in METHODS.values():
        if method.name not in CHANGING and method.path.startswith(KSERVE):
            message = field(1, b"m") if method.name.startswith("Model") else b""
            assert isinstance(isolate(message, method=method.name), Forward)


def test_an_unreadable_management_message_is_refused_not_raised() -> None:
    made = call(b"\xff", "LogSettings")
    denial = READER.isolate(made, ACME, NO_FACTS, verdict(PLAIN), AT, everything)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.REQUEST_MALFORMED


# --- knowledge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", ["sequence", "classification", "contract"])
def test_what_is_not_known_yet_is_not_guessed(needs: str) -> None:
    made, profile = request("m", ("x", "INT8", [1], b"a")), LABELLED
    if needs == "sequence":
        made.parameters["sequence_id"].int64_param = 7
    elif needs == "classification":
        made = classified(1)
    else:
        profile = ModelProfile("m", stated=False)
    doubts: list[int] = []
    unknowing = isolation(complete=False)
    unknowing.book.on_doubt(lambda: doubts.append(1))
    denial = isolated(TritonReader(unknowing), call(made), profile)
    assert isinstance(denial, Denial)
    assert (denial.reason, denial.retry_after, doubts) == (Reason.UPSTREAM_UNAVAILABLE, 1.0, [1])
    absent = isolate(made, profile)  # by a reader that knows that there is no such model
    assert isinstance(absent, Denial)
    assert (absent.reason, absent.detail) == (Reason.MODEL_NOT_FOUND, "")
    unlearnt = Isolation(ModelBook(Knowledge.of([], unlearnt=["m"])), Secret(b"k"), SequenceTable(Secret(b"s")))
    again = isolated(TritonReader(unlearnt), call(made), profile)
    assert isinstance(again, Denial)
    assert again.reason is Reason.UPSTREAM_UNAVAILABLE


def test_where_nothing_hangs_on_it_triton_says_what_becomes_of_an_unknown_model() -> None:
    for reading in (READER, TritonReader(isolation(complete=False))):
        assert isinstance(isolated(reading, call(request("m", id="1")), PLAIN), Forward)


def test_a_model_that_the_bundle_does_not_name_is_read_as_its_tensors_speak() -> None:
    unnamed = ModelProfile("chat", stated=False, max_tokens=100)
    made = call(chat(max_tokens=101))
    assert "101 asked" in refused(chat(max_tokens=101), unnamed, knowing=described("chat", VLLM))
    assert reader(described("chat", VLLM)).facts(made.method, made.message, unnamed).prompts == (b"hello",)
    assert reader(described("chat")).facts(made.method, made.message, unnamed).prompts == ()


# --- request ids --------------------------------------------------------------------------------------------------


def sent_id(message: Any, who: Principal = ACME) -> str:
    forward = isolate(message, ModelProfile(message.model_name), who=who)
    assert isinstance(forward, Forward)
    merged = ModelInferRequest.FromString(forward.message + forward.suffix)
    assert forward.undo == (Undo(message.id, sent=merged.id) if message.id else None)
    return str(merged.id)


def test_request_ids_are_one_tenants_own_and_always_the_same() -> None:
    other = replace(ACME, tenant="birch")
    ours = sent_id(request("m", id="1"))
    assert ours == sent_id(request("m", id="1"))
    everybody = {
        ours,
        sent_id(request("m", id="1"), other),
        sent_id(request("n", id="1")),
        sent_id(request("m", id="2")),
    }
    assert len(everybody) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in everybody)
    assert sent_id(request("m")) == sent_id(request("m"), other) == ""
    # What is joined can't be cut elsewhere and be the same.
    assert sent_id(request("m1", id="x"), replace(ACME, tenant="a")) != sent_id(
        request("m", id="1x"), replace(ACME, tenant="a")
    )


# --- sequences ----------------------------------------------------------------------------------------------------

WIDE, NARROW, TEXT = (described("m", sequential(kind)) for kind in ("TYPE_UINT64", "TYPE_INT32", "TYPE_STRING"))


def step(value: int | str, *, start: bool = False, end: bool = False) -> Any:
    made = request("m", ("number", "INT32", [1], bytes(4)))
    if isinstance(value, int):
        made.parameters["sequence_id"].int64_param = value
    else:
        made.parameters["sequence_id"].string_param = value
    for name, said in (("sequence_start", start), ("sequence_end", end)):
        if said:
            made.parameters[name].bool_param = True
    return made


def given(reading: TritonReader, message: Any, who: Principal = ACME) -> Any:
    forward = isolated(reading, call(message), PLAIN, who=who)
    assert isinstance(forward, Forward)
    assert forward.sequence == (
        who.tenant,
        "m",
        message.parameters["sequence_id"].int64_param or message.parameters["sequence_id"].string_param,
    )
    parameter = ModelInferRequest.FromString(forward.message + forward.suffix).parameters["sequence_id"]
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


@pytest.mark.parametrize(("model", "client", "most"), [(WIDE, 5, 2**63), (NARROW, 5, 2**31), (TEXT, "five", None)])
def test_a_sequence_has_an_id_of_its_own_type_and_keeps_it(model: ModelFacts, client: Any, most: int | None) -> None:
    reading, other = reader(model), replace(ACME, tenant="birch")
    ours, theirs = given(reading, step(client, start=True)), given(reading, step(client, start=True), other)
    assert ours != theirs
    assert given(reading, step(client)) == given(reading, step(client, end=True)) == ours
    assert given(reading, step(client, start=True)) == ours  # begun anew, it is the tenant's own that ends
    assert given(reading, step(client), other) == theirs
    assert 0 < ours < most if most else re.fullmatch("[0-9a-f]{128}", ours)


def test_a_start_that_is_not_forwarded_begins_nothing() -> None:
    reading = reader(WIDE)
    for message, begins in ((step(7, start=True), True), (step(7), False), (step(7, start=True), False)):
        forward = isolated(reading, call(message), PLAIN)
        assert isinstance(forward, Forward)
        assert (forward.begins is not None) is begins
    reading.forgone(ACME.tenant, "m", forward, AT)  # it was alive before: it still is
    assert given(reading, step(7))
    begun = isolated(reading, call(step(8, start=True)), PLAIN)
    assert isinstance(begun, Forward)
    reading.forgone(ACME.tenant, "m", begun, AT)
    assert isinstance(isolated(reading, call(step(8)), PLAIN), Denial)


def test_a_sequence_that_is_not_alive_is_refused_in_tritons_words() -> None:
    reading = reader(WIDE)
    given(reading, step(7, start=True))
    for client, who in ((8, ACME), (7, replace(ACME, tenant="birch")), (7 + 2**32, ACME)):
        denial = isolated(reading, call(step(client)), PLAIN, who=who)
        assert isinstance(denial, Denial)
        assert denial.reason is Reason.REQUEST_MALFORMED
        assert "must specify the START flag on the first request of the sequence" in denial.detail


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.REFUSED])
def test_an_end_that_went_well_frees_the_sequence_and_one_that_did_not_leaves_it(kind: OutcomeKind) -> None:
    reading = reader(WIDE)
    given(reading, step(7, start=True))
    forward = isolated(reading, call(step(7, end=True)), PLAIN)
    assert isinstance(forward, Forward)
    reading.ended(admitted(profile=PLAIN, forward=forward), Outcome(kind), Usage(), AT)
    assert isinstance(isolated(reading, call(step(7)), PLAIN), Denial if kind is OutcomeKind.COMPLETED else Forward)


def _class_of(output: str) -> Any:
    message = request("m", ("x", "INT8", [1], b"a"))
    message.outputs.add(name=output).parameters["classification"].int64_param = 1
    return message


def _with(name: str, message: Any) -> Any:
    message.parameters[name].string_param = "x"
    return message


TOLD = described("m", "output " + _output("y", "TYPE_STRING"))


@pytest.mark.parametrize(
    ("message", "profile", "model", "always"),
    [
        (lambda: step("5", start=True), PLAIN, WIDE, True),
        (lambda: step("5", start=True), PLAIN, NARROW, True),
        (lambda: step(5, start=True), PLAIN, TEXT, False),  # Triton says so itself
        (lambda: step("five"), PLAIN, SCORES, False),
        (lambda: _with("headers", step("short", start=True)), PLAIN, TEXT, True),  # it would go as short as it is
        (lambda: _with("headers", step(5, start=True)), PLAIN, WIDE, False),
        (lambda: _class_of("y"), PLAIN, TOLD, True),
        (lambda: _class_of("z"), PLAIN, SCORES, True),
        (lambda: _class_of("y"), PLAIN, SCORES, False),  # numeric: only models.yaml has not said so
        (lambda: ensemble(("stream", "BOOL", [1, 1], b"\x01")), TRTLLM, described("t", ENSEMBLE), True),
        (lambda: request("m", ("context_phase_params", "UINT8", [1], b"a")), PLAIN, SCORES, True),
        (lambda: request("m", ("image_url", "BYTES", [1], packed(b"x"))), PLAIN, SCORES, False),
    ],
)
def test_what_could_end_the_server_is_refused_in_every_mode(
    message: Any, profile: ModelProfile, model: ModelFacts, always: bool
) -> None:
    denial = isolate(message(), profile, knowing=model)
    assert isinstance(denial, Denial)
    assert denial.always is always


@pytest.mark.parametrize(("client", "always"), [("five", True), (5, False)])
def test_of_a_model_that_is_not_known_the_worst_is_taken(client: Any, always: bool) -> None:
    unlearnt = Isolation(ModelBook(Knowledge.of([], unlearnt=["m"])), Secret(b"k"), SequenceTable(Secret(b"s")))
    denial = isolated(TritonReader(unlearnt), call(step(client, start=True)), PLAIN)
    assert isinstance(denial, Denial)
    assert (denial.reason, denial.always) == (Reason.UPSTREAM_UNAVAILABLE, always)


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.REFUSED])
def test_a_start_that_failed_makes_room_for_the_next_one(kind: OutcomeKind) -> None:
    """Triton may have none of it: a model of two slots must not be out of them for its idle time."""
    reading = reader(described("m", sequential("TYPE_UINT64") + "instance_group { count: 2 }"))
    first = isolated(reading, call(step(7, start=True)), PLAIN)
    assert isinstance(first, Forward)
    reading.ended(admitted(profile=PLAIN, forward=first), Outcome(kind), Usage(), AT)
    next_one = isolated(reading, call(step(8, start=True)), PLAIN)
    assert isinstance(next_one, Denial if kind is OutcomeKind.COMPLETED else Forward)


@pytest.mark.parametrize(("model", "client"), [(WIDE, "5"), (NARROW, "5"), (TEXT, 5)])
def test_an_id_of_another_type_is_refused(model: ModelFacts, client: Any) -> None:
    """A string where the model wants a number corrupts the heap of Triton 2.51."""
    denial = isolate(step(client, start=True), knowing=model)
    assert isinstance(denial, Denial)
    assert denial.reason is Reason.REQUEST_MALFORMED
    assert "sequence_id: must be a" in denial.detail


@pytest.mark.parametrize("client", [0, ""])
def test_no_sequence_is_no_sequence(client: Any) -> None:
    forward = isolate(step(client, start=True), knowing=WIDE)
    assert isinstance(forward, Forward)
    assert (forward.suffix, forward.sequence) == (b"", None)


def test_a_model_that_keeps_none_is_given_a_number_that_is_one_tenants_own() -> None:
    def sent(who: Principal) -> int:
        forward = isolate(step(5), knowing=SCORES, who=who)
        assert isinstance(forward, Forward)
        assert forward.sequence is None
        return int(ModelInferRequest.FromString(forward.message + forward.suffix).parameters["sequence_id"].int64_param)

    assert sent(ACME) == sent(ACME) not in (5, sent(replace(ACME, tenant="birch")))
    assert "keeps no sequences" in refused(step("five"), knowing=SCORES)


# --- the queue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int64_param", "uint64_param"])
@pytest.mark.parametrize(
    ("asked", "bound", "sent"), [(1, None, 0), (1, 3, 3), (3, 3, 3), (9, 3, 9), (0, 3, 0), (2**63 - 1, 3, 2**63 - 1)]
)
def test_a_priority_is_no_better_than_the_plans(asked: int, bound: int | None, sent: int, kind: str) -> None:
    made = request("m")
    setattr(made.parameters["priority"], kind, asked)
    assert queued(made, "priority", Limits(priority=bound)) == sent


@pytest.mark.parametrize(
    ("asked", "bound", "sent"), [(5, None, 0), (5, 10, 5), (11, 10, 10), (-1, 10, 10), (-1, None, 0), (0, 10, 0)]
)
def test_a_timeout_is_no_longer_than_the_plans(asked: int, bound: int | None, sent: int) -> None:
    made = request("m")
    made.parameters["timeout"].int64_param = asked
    assert queued(made, "timeout", Limits(queue_timeout_us=bound)) == sent


def queued(message: Any, name: str, limits: Limits) -> int:
    forward = isolate(message, limits=limits)
    assert isinstance(forward, Forward)
    parameter = ModelInferRequest.FromString(forward.message + forward.suffix).parameters[name]
    return int(getattr(parameter, parameter.WhichOneof("parameter_choice")))


# --- adapters, stop, streaming ------------------------------------------------------------------------------------


def ensemble(*tensors: Any, **fields: Any) -> Any:
    most = ("max_tokens", "INT32", [1, 1], struct.pack("<i", 1))
    return request("t", ("text_input", "BYTES", [1, 1], packed(b"x")), most, *tensors, **fields)


def test_adapters_are_granted_by_name_and_no_others_are_told_of() -> None:
    asks = {
        "named in JSON": (chat(lora_name="ours"), CHAT),
        "by number": (ensemble(("lora_task_id", "UINT64", [1, 1], struct.pack("<Q", 7))), TRTLLM),
        "by name": (ensemble(("lora_name", "BYTES", [1, 1], packed(b"ours"))), TRTLLM),
    }
    for message, profile in asks.values():
        assert refused(message, profile) == "lora: this adapter is not among the tenant's loras"
        assert "theirs" not in refused(message, profile, loras=("theirs",))
        assert isinstance(isolate(message, profile, loras=("ours", "7")), Forward)
    assert isinstance(isolate(chat(lora_name=None, n=1), CHAT), Forward)
    as_parameter = chat()
    as_parameter.parameters["lora_name"].string_param = "ours"
    assert "lora" in refused(as_parameter, CHAT)


@pytest.mark.parametrize("name", sorted(LORA_TENSORS))
@pytest.mark.parametrize("contract", [Contract.VLLM, Contract.GENERIC])
def test_adapters_where_the_contract_has_none(name: str, contract: Contract) -> None:
    message = request("m", ("text_input", "BYTES", [1], packed(b"x")), (name, "BYTES", [1], packed(b"ours")))
    assert refused(message, ModelProfile("m", contract), loras=("ours",)).startswith(f"input {name}: ")


@pytest.mark.parametrize("contract", Contract)
def test_a_stop_needs_a_request_id_to_stop(contract: Contract) -> None:
    def stopping(datatype: str, value: bytes, **fields: Any) -> Any:
        return ensemble(("stop", datatype, [1, 1], value), **fields)

    profile = ModelProfile("t", contract)
    assert "input stop: " in refused(stopping("BOOL", b"\x01"), profile)
    assert "input stop: " in refused(stopping("INT8", b"\x00"), profile)  # who knows how the model reads it
    assert isinstance(isolate(stopping("BOOL", b"\x01", id="r"), profile), Forward)
    assert isinstance(isolate(stopping("BOOL", b"\x00"), profile), Forward)


def test_streaming_from_a_model_that_answers_once_is_refused() -> None:
    """Older backends of TensorRT-LLM end the whole server there."""
    message = ensemble(("stream", "BOOL", [1, 1], b"\x01"))
    once = described("t", ENSEMBLE)
    assert "not decoupled" in refused(message, TRTLLM, knowing=once)
    streams = described("t", ENSEMBLE + " model_transaction_policy { decoupled: true }")
    assert isinstance(isolate(message, TRTLLM, knowing=streams), Forward)


@pytest.mark.parametrize(("model", "ordered"), [(described("m"), True), (described("m", VLLM), False)])
def test_answers_come_in_order_where_the_model_is_not_decoupled(model: ModelFacts, ordered: bool) -> None:
    forward = isolate(request("m"), knowing=model)
    assert isinstance(forward, Forward)
    assert forward.ordered is ordered


@pytest.mark.parametrize("contract", Contract)
def test_what_is_passed_over_is_what_no_rule_speaks_of(contract: Contract) -> None:
    allowed = verdict(ModelProfile("m", contract))
    for name in _HARMLESS:
        assert _parameter(name, "x", allowed, contract, None) is None
    for name in _ORDINARY:
        assert _tensor(name, contract) is None
