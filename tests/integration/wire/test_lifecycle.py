"""The way out, by SIGTERM and by kill -9, and the way in again; a second sidecar; a Triton that isn't there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.ports import free_ports
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import start_triton
from tests.support import h2
from tests.support.postgres import Server
from tests.support.regions import held
from tests.support.sidecar import Launch, Sidecar, echo, ended, hold, said, slow
from tests.support.stack import ROOT, eventually, tensor

pytestmark = pytest.mark.integration


def cli(*arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sidecar.cli.main", *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=timeout, check=False)


def processes_of(sidecar: Sidecar) -> list[str]:
    """The command lines of all processes that name this sidecar's configuration."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (path / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(sidecar.stack.config) in line + environment:
            found.append(line)
    return found


class TestDrain:
    def test_streams_finish_and_new_calls_are_refused(self, own: Launch) -> None:
        sidecar = own(overrides={"bounds": {"grace": "30s"}})
        headers = sidecar.headers()
        with sidecar.bare() as bare:
            streams = [bare.stream([slow(60, 70, id=str(n))], headers) for n in range(20)]
            for stream in streams:
                stream.next()
            unary = bare.begin(hold(4000), headers)
            eventually(lambda: sidecar.metric("warden_in_flight_calls") == 21, what="21 in flight")
            sidecar.stack.process.send_signal(signal.SIGTERM)
            eventually(lambda: sidecar.metric("warden_draining"), what="the drain to begin")
            refused = bare.unary(echo(), headers)
            assert refused.code == "UNAVAILABLE"
            assert (refused.told().reason, refused.told().retry) == ("DRAINING", 1.0)
            late = bare.stream([slow(1)], headers)
            assert late.answer().told().reason == "DRAINING"
            for stream in streams:
                texts = [said(response) for response in stream]
                assert "".join(texts) == "".join(f"word{n} " for n in range(1, 60))
                assert stream.answer().code == "OK"
            assert ended(unary).code == "OK"
        assert sidecar.stack.process.wait(60) == 0
        sidecar.stack.start_warden()
        outcomes = [sidecar.record(f"{stream.answer().call_id}/1")["outcome"] for stream in streams]
        assert outcomes == ["completed"] * 20
        assert sidecar.record(refused.call_id)["reason"] == "DRAINING"

    def test_what_outlasts_the_grace_is_cut_and_told(self, own: Launch) -> None:
        sidecar = own(overrides={"bounds": {"grace": "1s"}})
        headers = sidecar.headers()
        with sidecar.bare() as bare:
            stream, unary = bare.stream([slow(1000, 20)], headers), bare.begin(hold(20_000), headers)
            first = said(stream.next())
            eventually(lambda: sidecar.metric("warden_in_flight_calls") == 2, what="2 in flight")
            sidecar.stack.process.send_signal(signal.SIGTERM)
            read = first + "".join(map(said, stream))
            for answer in (stream.answer(), ended(unary)):
                assert (answer.code, answer.told().reason) == ("UNAVAILABLE", "DRAINING")
        assert sidecar.stack.process.wait(60) == 0
        sidecar.stack.start_warden()
        record = sidecar.record(f"{stream.answer().call_id}/1")
        assert (record["outcome"], record["reason"]) == ("failed", "DRAINING")
        assert record["output"].startswith(read)
        assert len(record["output"]) - len(read) < 200  # some words were on their way


class TestServerLost:
    def test_ends_the_process_that_would_serve_nobody(self, own: Launch) -> None:
        """A path that is not UTF-8 ends grpc.aio's server; Kubernetes starts another once its process has ended."""
        sidecar = own()
        with sidecar.bare() as bare:
            under_way = bare.begin(hold(5_000), sidecar.headers())
            eventually(lambda: sidecar.metric("warden_in_flight_calls") == 1, what="1 in flight")
            headers = [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
            h2.ends(sidecar.grpc, b"/x\xff", headers, within_s=30)
            if sidecar.wire == "envoy":
                assert bare.unary(echo(), sidecar.headers()).code == "OK"
                return
            answer = ended(under_way)
            assert answer.code == "OK"
            assert sidecar.stack.process.wait(60) == 1
        sidecar.stack.start_warden()
        with sidecar.bare() as bare:
            assert bare.unary(echo(), sidecar.headers()).code == "OK"
        assert sidecar.record(answer.call_id)["outcome"] == "completed"


class TestKill:
    def test_leaves_no_process_and_no_listener(self, own: Launch) -> None:
        sidecar = own()
        process = sidecar.stack.process
        eventually(lambda: len(processes_of(sidecar)) >= 2, what="serve and ship")
        with sidecar.bare() as bare:
            stream = bare.stream([slow(1000, 10)], sidecar.headers())
            stream.next()
            process.kill()
            process.wait()
            assert stream.answer().code == "UNAVAILABLE"
        eventually(
            lambda: (left := processes_of(sidecar)) == [] or print(left), what="no process of the killed sidecar"
        )
        host, port = sidecar.grpc.split(":")
        with pytest.raises(OSError):  # noqa: PT011 — refused, whatever the errno
            socket.create_connection((host, int(port)), timeout=2)
        sidecar.stack.start_warden()
        with sidecar.bare() as bare:
            assert bare.unary(echo(), sidecar.headers()).code == "OK"


class TestSecondSidecar:
    def test_on_the_same_journal_or_port_is_refused(self, own: Launch) -> None:
        sidecar = own()
        settings = json.loads(sidecar.stack.config.read_text())
        spare_grpc, spare_admin = (f"127.0.0.1:{port}" for port in free_ports(2))
        journal = {**settings, "listen": {"grpc": spare_grpc, "admin": spare_admin}}
        port = json.loads(sidecar.stack.config.read_text())
        port["listen"]["admin"] = spare_admin
        port["audit"]["journal"]["directory"] = "journal-2"
        admin = json.loads(sidecar.stack.config.read_text())
        admin["listen"]["grpc"] = spare_grpc
        admin["audit"]["journal"]["directory"] = "journal-3"
        for name, wrong, said_ in (
            ("journal", journal, "journal"),
            ("port", port, sidecar.grpc),
            ("admin", admin, sidecar.stack.admin),
        ):
            config = sidecar.stack.directory / f"{name}.yaml"
            config.write_text(json.dumps(wrong))
            second = cli("serve", "--config", config, "--wire", sidecar.wire)
            assert second.returncode == 2, second.stderr
            assert said_ in second.stderr, second.stderr
            assert "Traceback" not in second.stderr
        with sidecar.bare() as bare:
            assert bare.unary(echo(), sidecar.headers()).code == "OK"


class TestMissingTriton:
    def test_calls_are_refused_at_once_and_go_on_when_it_comes(
        self, own: Launch, otlp: OtlpReceiver, postgres: Server, tmp_path: Path
    ) -> None:
        repository = tmp_path / "models"
        shutil.copytree(ROOT / "examples" / "models" / "echo", repository / "echo")
        shutil.copytree(ROOT / "tests" / "support" / "models" / "slow", repository / "slow")
        triton = start_triton(tmp_path / "triton", repository)
        regions = held(os.getpgid(triton.process.pid))  # not those of Tritons that start meanwhile
        assert regions
        try:
            sidecar = own(parts=Parts(otlp, triton.addresses, postgres.create_database()))
            headers = sidecar.headers()
            with sidecar.bare() as bare:
                stream = bare.stream([slow(1000, 20, id="cut")], headers)
                stream.next()
                os.killpg(triton.process.pid, signal.SIGKILL)  # with its models' processes
                triton.process.wait()
                for region in regions:
                    Path(region).unlink(missing_ok=True)
                *_, last = stream
                assert last.error_message.startswith("[UPSTREAM_UNAVAILABLE]"), last.error_message
                assert last.infer_response.id == "cut"
                assert stream.answer().code == "OK"
                assert sidecar.record(f"{stream.answer().call_id}/1")["reason"] == "UPSTREAM_UNAVAILABLE"
                began = time.monotonic()
                answer = bare.unary(echo(), headers)
                assert time.monotonic() - began < 20
                assert (answer.code, answer.told().reason) == ("UNAVAILABLE", "UPSTREAM_UNAVAILABLE")
                assert answer.told().retry is not None
                assert triton.addresses.grpc not in answer.text
                eventually(lambda: not sidecar.stack.readyz()["ready"], what="not ready any more")
                assert sidecar.metric("warden_upstream_up") == 0
                ports = [int(a.rpartition(":")[2]) for a in (triton.addresses.grpc, triton.addresses.http)]
                triton = start_triton(tmp_path / "triton", repository, grpc_port=ports[0], http_port=ports[1])
                eventually(lambda: bare.unary(echo(), headers).code == "OK", what="calls to go on", within_s=30)
                eventually(lambda: sidecar.stack.readyz()["ready"], what="ready again")
        finally:
            triton.stop()


class TestPostgresAway:
    def test_no_call_is_slower_or_refused_and_nothing_is_missing(self, own: Launch, postgres: Server) -> None:
        sidecar = own()
        headers = sidecar.headers()
        with sidecar.bare() as bare:
            before = [_timed(bare, headers) for _ in range(50)]
            postgres.stop()
            try:
                down_until = time.monotonic() + 3
                during = []
                while time.monotonic() < down_until:
                    during.append(_timed(bare, headers))
                eventually(lambda: sidecar.metric("warden_ship_database_up") == 0, what="ship to notice")
                assert sidecar.stack.readyz()["ready"]
            finally:
                postgres.start()
        assert {code for code, _, _ in during} == {"OK"}
        median = sorted(seconds for _, seconds, _ in during)[len(during) // 2]
        assert (
            median < 3 * sorted(seconds for _, seconds, _ in before)[25] + 0.1
        )  # and not what a database that is away takes
        wanted = {call_id for _, _, call_id in before + during}
        found = eventually(
            lambda: (got := _ids_of(sidecar)) >= wanted and got, what="every record in the database", within_s=30
        )
        assert len(found & wanted) == len(wanted)

    def test_keys_too_old_to_trust_are_refused_and_tokens_are_not(self, own: Launch, postgres: Server) -> None:
        sidecar = own(overrides={"identity": {"keys": {"max_age": "2s"}}})
        token = {"authorization": f"Bearer {sidecar.token('acme')}"}
        with sidecar.bare() as bare:
            assert bare.unary(echo(), sidecar.headers()).code == "OK"
            postgres.stop()
            try:
                answer = eventually(
                    lambda: (found := bare.unary(echo(), sidecar.headers())).code != "OK" and found,
                    what="keys to be too old",
                )
                assert (answer.code, answer.told().reason) == ("UNAVAILABLE", "KEYS_UNAVAILABLE")
                assert answer.told().retry is not None
                assert bare.unary(echo(), token).code == "OK"
            finally:
                postgres.start()
            eventually(lambda: bare.unary(echo(), sidecar.headers()).code == "OK", what="keys to come back")


def _timed(bare: Any, headers: dict[str, str]) -> tuple[str, float, str]:
    began = time.monotonic()
    answer = bare.unary(echo(), headers)
    return answer.code, time.monotonic() - began, answer.call_id


def _ids_of(sidecar: Sidecar) -> set[str]:
    return {record["call_id"] for record in sidecar.search(reveal=False, limit=10_000)}


@contextmanager
def _shipping_stopped(sidecar: Sidecar) -> Iterator[None]:
    """What is shipped makes room again; so nothing is."""
    children = (path.read_text().split() for path in Path(f"/proc/{sidecar.pid}/task").glob("*/children"))
    (ship,) = [int(pid) for pids in children for pid in pids]
    os.kill(ship, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(ship, signal.SIGCONT)


class TestFullJournal:
    def test_nothing_is_forwarded_that_cannot_be_recorded(self, own: Launch, triton: Any) -> None:
        journal = {"max_bytes": "256KiB", "segment_bytes": "64KiB", "tenant_share": 1.0}
        sidecar = own(overrides={"audit": {"journal": journal}})
        headers = sidecar.headers()
        with sidecar.bare() as bare, _shipping_stopped(sidecar):

            def full() -> Any:
                answers = [ended(call) for call in [bare.begin(echo(b"x" * 2000), headers) for _ in range(20)]]
                return next((answer for answer in answers if answer.code != "OK"), None)

            refused = eventually(full, what="the journal to be full", within_s=30)
            assert (refused.code, refused.told().reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
            assert refused.told().retry is not None
            served = triton.metric("nv_inference_request_success", model="echo")
            assert {bare.unary(echo(), headers).code for _ in range(20)} == {"UNAVAILABLE"}
            (response,) = bare.stream([slow(1, id="x")], headers)
            assert response.error_message.startswith("[AUDIT_UNAVAILABLE]")
            # Triton's own counters are refreshed every 500 ms (--metrics-interval-ms is for the GPU's; these are live).
            assert triton.metric("nv_inference_request_success", model="echo") == served
            assert sidecar.metric("warden_unrecorded_entries_total") > 0
            assert sidecar.metric("warden_journal_state", state="full") == 1
            assert not sidecar.stack.readyz()["ready"]
        sidecar.settles()


class TestObserve:
    def test_everything_goes_through_and_is_recorded(self, own: Launch) -> None:
        sidecar = own(overrides={"mode": "observe"})
        with sidecar.bare() as bare:
            answers = {
                "CREDENTIAL_MISSING": bare.unary(echo(), {}),
                "MODEL_NOT_FOUND": bare.unary(echo(), sidecar.headers("birch")),
                "TENANT_UNKNOWN": bare.unary(echo(), sidecar.headers("nobody")),
                "TOKEN_MALFORMED": bare.unary(echo(), {"authorization": "Bearer a.b.c"}),
            }
            assert {answer.code for answer in answers.values()} == {"OK"}
            stream = bare.stream([slow(2)], {})
            assert "".join(map(said, stream)) == "word0 word1 "
            for reason, answer in answers.items():
                record = sidecar.record(answer.call_id)
                assert (record["outcome"], record["would_refuse"]) == ("completed", reason)
                assert sidecar.metric("warden_refusals_total", reason=reason, enforced="false") >= 1
            assert sidecar.record(answers["CREDENTIAL_MISSING"].call_id)["tenant"] == "(observed)"
            assert sidecar.record(answers["MODEL_NOT_FOUND"].call_id)["tenant"] == "birch"

    def test_what_isolation_renames_is_renamed_and_what_could_end_triton_is_refused(self, own: Launch) -> None:
        sidecar = own(overrides={"mode": "observe"})
        with sidecar.client() as client:
            result = client.infer(
                "mirror", [tensor("i32", "INT32", 1)], request_id="mine", priority=1, headers=sidecar.headers()
            )
            seen = json.loads(result.as_numpy("report")[0])
            assert seen["id"] == sidecar.sent("mine", model="mirror")
            assert result.get_response().id == "mine"
            number = kserve.InferInput("number", [1, 1], "INT32").set_data_from_numpy(np.ones((1, 1), np.int32))
            for _ in range(20):  # a heap that was written to may take a while to show it
                with pytest.raises(InferenceServerException, match=r"REQUEST_MALFORMED.*sequence_id: must be a number"):
                    client.infer("counter", [number], sequence_id="five", sequence_start=True)
            assert client.is_server_ready()
        assert sidecar.metric("warden_refusals_total", reason="REQUEST_MALFORMED", enforced="true") == 20
        with sidecar.bare() as bare:
            assert bare.unary(echo(), {}).code == "OK"


class TestConfiguration:
    def test_five_mistakes_are_all_named_with_their_lines(self, tmp_path: Path) -> None:
        config = tmp_path / "warden.yaml"
        config.write_text(
            "sidecar: {name: pod, region: eu-west-1}\n"
            "mode: enforced\n"
            "listen:\n  grpc: nowhere\n"
            "policy: {bundel: bundle}\n"
            "identity: {}\n"
            "audit:\n  journal: {directory: j, key_file: k, max_bytes: many}\n"
            "  database: {dsn: 'postgresql://x/y', jurisdiction: EU}\n"
            "bounds:\n  grace: -3s\n"
        )
        for command, status in ((("config", "check", config), 1), (("serve", "--config", config), 2)):
            done = cli(*command)
            assert done.returncode == status
            told = done.stdout + done.stderr
            for line, what in ((2, "mode"), (4, "grpc"), (5, "bundel"), (8, "max_bytes"), (11, "grace")):
                assert any(f":{line}:" in each and what in each for each in told.splitlines()), (line, what, told)
            assert "Traceback" not in told
