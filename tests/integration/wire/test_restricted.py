"""A Triton that speaks to nobody but the sidecar: its restricted protocols, on both wires (facts/triton.md §1)."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import RunningTriton, start_triton
from tests.support.postgres import Server
from tests.support.sidecar import Launch, echo, said, slow
from tests.support.stack import ROOT, eventually

pytestmark = pytest.mark.integration
SECRET = "a-secret-of-this-pod-0123456789"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    """A Triton that wants SECRET with everything."""
    directory = tmp_path_factory.mktemp("guarded")
    for source in (ROOT / "examples/models/echo", ROOT / "tests/support/models/slow"):
        shutil.copytree(source, directory / "models" / source.name)
    running = start_triton(directory / "triton", directory / "models", secret=SECRET)
    yield running
    running.stop()


@pytest.fixture
def parts(guarded: RunningTriton, otlp: OtlpReceiver, postgres: Server) -> Parts:
    return Parts(otlp, guarded.addresses, postgres.create_database(), SECRET)


def test_nobody_without_the_secret_gets_an_answer_past_the_sidecar(guarded: RunningTriton) -> None:
    with kserve.InferenceServerClient(guarded.addresses.grpc) as client:
        for look in (
            client.is_server_live,
            client.get_server_metadata,
            client.get_model_repository_index,
            client.get_inference_statistics,
            client.get_trace_settings,
            client.get_log_settings,
            client.get_system_shared_memory_status,
            lambda: client.get_model_config("echo"),
            lambda: client.infer("echo", []),
        ):
            with pytest.raises(InferenceServerException, match="restricted, expecting header"):
                look()
        wrong = {"triton-grpc-protocol-warden": SECRET[:-1]}
        with pytest.raises(InferenceServerException, match="restricted, expecting header"):
            client.is_server_live(headers=wrong)
    for path in ("/v2", "/v2/health/ready", "/v2/models/echo", "/v2/repository/index"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{guarded.addresses.http}{path}", timeout=10)
        assert refused.value.code == 403
        refused.value.close()


def test_the_sidecar_sends_it_with_every_rpc(own: Launch, parts: Parts) -> None:
    sidecar = own(parts=parts)
    headers = sidecar.headers()
    assert sidecar.stack.readyz()["ready"]
    with sidecar.bare() as bare:
        assert bare.unary(echo(), headers).code == "OK"
        assert [said(response) for response in bare.stream([slow(2, 0)], headers)][:2] == ["word0 ", "word1 "]
    with sidecar.client() as client:
        assert client.is_server_ready()
        assert client.is_model_ready("echo", headers=headers)
        assert client.get_model_metadata("echo", headers=headers).name == "echo"
    shown = sidecar.stack.log.read_text() + json.dumps(sidecar.stack.readyz()) + sidecar.open_metrics()
    assert SECRET not in shown


def test_with_another_secret_it_is_not_ready_and_says_so(own: Launch, parts: Parts) -> None:
    """What a client sends in its place goes nowhere, and Triton's words about it stay inside."""
    sidecar = own(parts=parts)
    sidecar.stack.stop_warden()
    (sidecar.stack.directory / "keys" / "triton.secret").write_text("another-secret-0123456789")

    def told() -> bool:
        checks = sidecar.stack.readyz().get("checks", {})
        return "triton.restricted_secret" in checks.get("upstream", {}).get("detail", "")

    sidecar.stack.start_warden(told)
    assert not sidecar.stack.readyz()["ready"]
    with sidecar.bare() as bare:
        answer = eventually(
            lambda: (
                (
                    found := bare.unary(echo(), sidecar.headers(**{"triton-grpc-protocol-warden": SECRET}))
                ).text.startswith(
                    "[UPSTREAM_UNAVAILABLE]"  # of no model of it anything could be learnt
                )
                and found
            ),
            what="the key to be known",
        )
    assert "restricted" not in answer.text
    assert sidecar.record(answer.call_id)["reason"] == "UPSTREAM_UNAVAILABLE"
