"""The admin server answers what operators ask, and nothing a stranger sends holds it up."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.telemetry import exposition
from sidecar.telemetry.catalogue import CATALOGUE, Kind
from sidecar.telemetry.exposition import AddressUnavailable, AdminServer, Check
from sidecar.telemetry.instruments import PrometheusInstruments, registry
from tests.support import telemetry

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5"


class Admin:
    """A started server, with probes that can be set."""

    def __init__(self) -> None:
        self.checks: Mapping[str, Check] = {"journal": Check(ok=True)}
        self.probe: Callable[[], Mapping[str, Check]] = lambda: self.checks
        made = registry(PrometheusInstruments(telemetry.METHODS))
        self.server = AdminServer("127.0.0.1:0", made, self.asked, self.asked)

    def asked(self) -> Mapping[str, Check]:
        return self.probe()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def raw(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as connection:
            connection.sendall(data)
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
            return received


@pytest.fixture
def admin() -> Iterator[Admin]:
    made = Admin()
    made.server.start()
    yield made
    made.server.stop()


# --- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_are_openmetrics_where_asked_for(admin: Admin) -> None:
    status, headers, body = admin.ask("/metrics", Accept=OPENMETRICS)
    assert status == 200
    assert headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")
    names = {sample.name for family in parse_openmetrics(body.decode()) for sample in family.samples}
    assert {each.name for each in CATALOGUE if each.kind is Kind.COUNTER and "jurisdiction" not in each.labels} <= names


def test_metrics_are_plain_text_otherwise(admin: Admin) -> None:
    status, headers, body = admin.ask("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert any(family.name == "warden_calls" for family in parse_text(body.decode()))


def test_head_sends_no_body(admin: Admin) -> None:
    status, headers, body = admin.ask("/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


# --- probes -------------------------------------------------------------------------------------------------------


def test_ready_says_what_each_check_found(admin: Admin) -> None:
    admin.checks = {"journal": Check(ok=True), "upstream": Check(ok=False, detail="connection refused")}
    status, headers, body = admin.ask("/readyz")
    assert status == 503
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {
        "ready": False,
        "checks": {"journal": {"ok": True, "detail": ""}, "upstream": {"ok": False, "detail": "connection refused"}},
    }
    admin.checks = {"journal": Check(ok=True)}
    status, _, body = admin.ask("/readyz")
    assert (status, json.loads(body)["ready"]) == (200, True)


def test_live_is_its_own_probe(admin: Admin) -> None:
    admin.checks = {}
    status, _, body = admin.ask("/livez?verbose")
    assert (status, json.loads(body)) == (200, {"live": True, "checks": {}})


def test_a_probe_that_fails_is_no_yes(admin: Admin) -> None:
    def broken() -> Mapping[str, Check]:
        raise ValueError("with a secret in it")

    admin.probe = broken
    status, _, body = admin.ask("/readyz")
    assert status == 503
    assert b"secret" not in body


# --- strangers ----------------------------------------------------------------------------------------------------


def test_nothing_else_is_served(admin: Admin) -> None:
    assert admin.ask("/")[0] == 404
    assert admin.ask("/metrics/../etc")[0] == 404
    for method in ("POST", "PUT", "DELETE", "TRACE", "OPTIONS"):
        assert admin.ask("/metrics", method)[0] == 501


def test_a_head_beyond_the_bound_is_refused(admin: Admin) -> None:
    assert admin.raw(b"GET /" + b"a" * (2 * exposition.HEAD_BYTES)).startswith(b"HTTP/1.1 431 ")
    many = b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * exposition.HEAD_BYTES
    try:
        answer = admin.raw(many)
    except (ConnectionResetError, BrokenPipeError):
        answer = b""  # closed with our bytes unread
    assert b" 200 " not in answer
    assert admin.ask("/livez")[0] == 200


def test_a_second_request_on_a_connection_is_not_answered(admin: Admin) -> None:
    answer = admin.raw(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    assert answer.count(b"HTTP/1.1 200") == 1


def test_a_slow_head_is_cut_off(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "HEAD_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", admin.server.port), timeout=10) as connection:
        connection.sendall(b"GET /livez HT")
        assert connection.recv(100) == b""


def test_connections_beyond_the_bound_are_closed_and_then_taken_again(admin: Admin) -> None:
    address = ("127.0.0.1", admin.server.port)
    held = [socket.create_connection(address, timeout=10) for _ in range(exposition.CONNECTIONS)]
    try:
        with socket.create_connection(address, timeout=10) as beyond:
            assert beyond.recv(1) == b""
    finally:
        for connection in held:
            connection.close()
    # The closed ones give their places back; retried because their threads notice in their own time.
    for _ in range(1000):
        try:
            status = admin.ask("/livez")[0]
        except (http.client.RemoteDisconnected, ConnectionError):
            continue
        assert status == 200
        break
    else:
        pytest.fail("no place was given back")


# --- starting and stopping ----------------------------------------------------------------------------------------


def test_a_taken_port_is_named(admin: Admin) -> None:
    second = AdminServer(f"127.0.0.1:{admin.server.port}", registry(PrometheusInstruments(())), dict, dict)
    with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1:{admin.server.port} \(listen\.admin\).*in use"):
        second.start()
    second.stop()


def test_a_stopped_server_gives_its_port_back() -> None:
    first = Admin()
    first.server.start()
    port = first.server.port
    first.server.stop()
    first.server.stop()
    second = AdminServer(f"127.0.0.1:{port}", registry(PrometheusInstruments(())), dict, dict)
    second.start()
    assert second.port == port
    second.stop()


def test_the_room_needs_neither_grpc_nor_a_database() -> None:
    program = (
        "import sys, sidecar.telemetry.exposition, sidecar.telemetry.instruments, sidecar.telemetry.shipfile;"
        "sys.exit(bool({'grpc', 'sqlalchemy', 'psycopg'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
