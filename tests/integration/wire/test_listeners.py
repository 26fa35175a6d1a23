"""Listeners bound to one principal, on both wires: who reaches one is that principal, and is so recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.ports import free_ports
from sidecar.cli.demo.process import StartError
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import start_triton
from sidecar.runtime.compose import IN_KUBERNETES
from tests.support.certificates import Authority, put
from tests.support.postgres import Server
from tests.support.sidecar import Bare, Launch, Sidecar, echo, launch, said, slow
from tests.support.stack import ROOT, Triton, eventually

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bound(
    wire: str,
    bundle: Path,
    otlp: OtlpReceiver,
    triton: Triton,
    postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Sidecar, list[str]]]:
    """A sidecar with TLS on the tenants' port and three bound listeners beside it: acme, one without quota, another."""
    directory = tmp_path_factory.mktemp(f"bound-{wire}")
    pair = Authority("Server CA").server()
    for name, data in zip(("tls.crt", "tls.key"), pair, strict=True):
        put(directory / name, data)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    principals = [
        {"tenant": "acme", "name": "perf"},
        {"tenant": "one-a-minute", "name": "meter"},
        {"tenant": "acme", "name": "ops", "roles": ["operator"]},
    ]
    overrides = {
        "listen": {"tls": {"cert_file": str(directory / "tls.crt"), "key_file": str(directory / "tls.key")}},
        "listeners": [
            {"address": address, "principal": principal}
            for address, principal in zip(addresses, principals, strict=True)
        ],
    }
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "sidecar", wire, parts, bundle, overrides=overrides)
    yield sidecar, addresses
    sidecar.close()


def test_who_sends_no_credential_is_the_principal_and_so_recorded(bound: tuple[Sidecar, list[str]]) -> None:
    sidecar, (perf, *_) = bound
    with Bare(perf) as bare:
        answer = bare.unary(echo(b"hi"), {"x-warden-subject": "the bench"})
        stream = bare.stream([slow(3), slow(3)], {})
        assert [said(response) for response in stream].count("word2 ") == 2
        streamed = stream.answer()
    assert (answer.code, streamed.code) == ("OK", "OK")
    for call_id in (answer.call_id, f"{streamed.call_id}/1", f"{streamed.call_id}/2"):
        record = sidecar.record(call_id)
        assert (record["tenant"], record["principal"], record["outcome"]) == ("acme", "perf", "completed")
        assert record["principal_kind"] == "listener"
        assert record["key_id"] in (None, "")
    assert sidecar.record(answer.call_id)["subject"] == "the bench"
    sidecar.settles()


def test_each_port_is_its_own_principal_with_its_own_roles_and_quotas(bound: tuple[Sidecar, list[str]]) -> None:
    _, (perf, meter, ops) = bound
    with Bare(perf) as one, Bare(meter) as other, Bare(ops) as staff:
        codes = [other.unary(echo(), {}).told().reason if n else other.unary(echo(), {}).code for n in range(2)]
        assert codes == ["OK", "RATE_REQUESTS"]
        assert {one.unary(echo(), {}).code for _ in range(5)} == {"OK"}  # acme's account is another
        assert staff.unary(echo(), {}).told().reason == "METHOD_NOT_ALLOWED"  # an operator prompts no model


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_credential_sent_there_is_ambiguous(bound: tuple[Sidecar, list[str]], header: str) -> None:
    sidecar, (perf, *_) = bound
    value = sidecar.headers("birch")["authorization"]
    with Bare(perf) as bare:
        for answer in (
            bare.unary(echo(), {header: value}),
            bare.stream([slow(1)], {header: value}).answer(),
        ):
            assert (answer.code, answer.told().reason) == ("UNAUTHENTICATED", "CREDENTIAL_AMBIGUOUS")
    assert value not in answer.text


def test_what_a_client_says_of_the_address_changes_nothing(bound: tuple[Sidecar, list[str]], own: Launch) -> None:
    """On the tenants' port no header makes a call one of the listener's."""
    principal = {"tenant": "acme", "name": "perf"}
    (port,) = free_ports(1)
    sidecar = own(overrides={"listeners": [{"address": f"127.0.0.1:{port}", "principal": principal}]})
    for headers in ({}, {"x-forwarded-port": str(port)}, {"x-forwarded-host": f"127.0.0.1:{port}"}):
        with sidecar.bare() as bare:
            assert bare.unary(echo(), headers).told().reason == "CREDENTIAL_MISSING"
    with sidecar.bare() as bare:
        assert bare.unary(echo(), sidecar.headers()).code == "OK"
    with Bare(f"127.0.0.1:{port}") as bare:
        assert bare.unary(echo(), {}).code == "OK"
    assert bound  # two sidecars with listeners live side by side


def test_it_is_shown(bound: tuple[Sidecar, list[str]]) -> None:
    sidecar, addresses = bound
    assert sidecar.metric("warden_bound_listeners") == 3
    checks = sidecar.stack.readyz()["checks"]
    told = [checks[f"listener {address}"]["detail"] for address in addresses]
    assert told == [
        "without a credential, as acme/perf (tenant)",
        "without a credential, as one-a-minute/meter (tenant)",
        "without a credential, as acme/ops (operator)",
    ]
    assert sidecar.stack.log.read_text().count('"listener.bound"') == 3


def test_a_port_that_is_taken_is_named(own: Launch, bound: tuple[Sidecar, list[str]]) -> None:
    _, (taken, *_) = bound
    listener = {"address": taken, "principal": {"tenant": "acme", "name": "perf"}}
    with pytest.raises(StartError, match=rf"listeners\[0\]: cannot listen on {taken}"):
        own(overrides={"listeners": [listener]})


def test_under_kubernetes_it_starts_only_where_the_risk_is_stated(own: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IN_KUBERNETES, "10.96.0.1")
    (port,) = free_ports(1)
    listener = {"address": f"127.0.0.1:{port}", "principal": {"tenant": "acme", "name": "perf"}}
    with pytest.raises(StartError, match="every container of this pod could call as acme/perf"):
        own(name="silent", overrides={"listeners": [listener]})
    stated = listener | {"under_kubernetes": "every container of this pod may use it"}
    own(name="stated", overrides={"listeners": [stated]})
    with Bare(str(listener["address"])) as bare:
        assert bare.unary(echo(), {}).code == "OK"


def test_an_admins_listener_carries_what_model_analyzer_does(
    own: Launch, otlp: OtlpReceiver, postgres: Server, tmp_path: Path
) -> None:
    """It sends no credential; it lists, loads, waits for, measures and unloads models."""
    shutil.copytree(ROOT / "examples/models/echo", tmp_path / "models" / "echo")
    running = start_triton(tmp_path / "triton", tmp_path / "models", extra_flags=["--model-control-mode=explicit"])
    try:
        (port,) = free_ports(1)
        listener = {
            "address": f"127.0.0.1:{port}",
            "principal": {"tenant": "acme", "name": "analyzer", "roles": ["tenant", "admin"]},
        }
        parts = Parts(otlp, running.addresses, postgres.create_database())
        sidecar = own(parts=parts, overrides={"listeners": [listener]})
        with kserve.InferenceServerClient(str(listener["address"])) as client:
            assert client.is_server_ready()
            for _ in range(2):
                client.load_model("echo")
                assert {model.name: model.state for model in client.get_model_repository_index().models} == {
                    "echo": "READY"
                }
                assert client.is_model_ready("echo")
                assert client.get_model_config("echo").config.name == "echo"
                eventually(lambda: Bare(str(listener["address"])).unary(echo(), {}).code == "OK", what="an inference")
                assert client.get_inference_statistics("echo").model_stats[0].name == "echo"
                client.unload_model("echo")
                eventually(lambda: not client.is_model_ready("echo"), what="the model's end")
            with pytest.raises(InferenceServerException, match=r"PARAMETER_NOT_ALLOWED.*RepositoryModelLoad"):
                client.load_model("echo", config="{}")
        with sidecar.bare() as bare:  # on the tenants' port nobody is an admin by that
            path = "/inference.GRPCInferenceService/RepositoryModelUnload"
            assert bare.unary(b"\x12\x04echo", sidecar.headers(), path=path).told().reason == "METHOD_NOT_ALLOWED"
    finally:
        running.stop()
