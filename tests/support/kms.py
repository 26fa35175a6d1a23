"""A KMS of the tests' own (PyPI moto, as a process), and a door before it that a test makes slow, strict or lying.

moto encrypts with AES-GCM, the encryption context as associated data, and keeps regions apart. It checks no signature
and no permission, lets disabled keys and keys pending deletion work, and never deletes one: what Amazon answers then,
the door says in its words (KMS API reference, Encrypt and Decrypt).
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.awskms import AwsKey, AwsKms
from sidecar.cli.demo.ports import free_ports
from tests.support.store import wait_until

REGION = "eu-central-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}

Answer = tuple[int, dict[str, Any]]
Script = Callable[[str, dict[str, Any]], "Answer | None"]  # (Encrypt or Decrypt, what was asked) → an answer of its own


def refusal(code: str, message: str = "no", status: int = 400) -> Answer:
    return status, {"__type": code, "message": message}


class Kms:
    """The server and its door; ``script`` is what the door says by itself, ``asked`` what came."""

    def __init__(self, directory: Path) -> None:
        (self._port,) = free_ports(1)
        self._log = (directory / "moto.log").open("wb")
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=directory)
        self.script: Script | None = None
        self.asked: list[str] = []
        self._clients: dict[str, Any] = {}
        self._shared: AwsKms | None = None
        self._door = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._door.serve_forever, daemon=True).start()
        wait_until(self._up, seconds=90)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._door.server_port}"

    def key(self, region: str = REGION) -> AwsKey:
        """A new one."""
        import botocore.session  # noqa: PLC0415 — an extra: what needs no KMS runs without it

        client = self._clients.get(region)
        if client is None:  # it takes half a second to make
            client = self._clients[region] = botocore.session.get_session().create_client(
                "kms", region_name=region, endpoint_url=f"http://127.0.0.1:{self._port}",
                aws_access_key_id="x", aws_secret_access_key="y",
            )  # fmt: skip
        return AwsKey(client.create_key()["KeyMetadata"]["Arn"], self.endpoint)

    def cover(self) -> AwsKms:
        """The session's, connected already."""
        self._shared = self._shared or AwsKms(self.key())
        return self._shared

    def _up(self) -> bool:
        assert self.process.poll() is None, "moto ended"
        try:
            return self._forward("GET", "/moto-api/", b"", {})[0] == 200
        except OSError:
            return False

    def _forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        kms = self

        class Door(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                act = self.headers["X-Amz-Target"].rpartition(".")[2]
                kms.asked.append(act)
                own = kms.script(act, json.loads(body)) if kms.script else None
                if own is None:
                    status, data = kms._forward("POST", self.path, body, dict(self.headers))
                else:
                    status, data = own[0], json.dumps(own[1]).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/x-amz-json-1.1")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    return  # who asked has left

            def log_message(self, *_: Any) -> None:
                """Not told."""

        return Door

    def close(self) -> None:
        self._door.shutdown()
        self._door.server_close()
        self.process.kill()
        self.process.wait(10)
        self._log.close()


@pytest.fixture(scope="session")
def kms_server() -> Iterator[Kms]:
    """The session's server."""
    with tempfile.TemporaryDirectory(prefix="warden-kms-") as directory:
        server = Kms(Path(directory))
        try:
            yield server
        finally:
            server.close()


@pytest.fixture
def kms(kms_server: Kms, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kms]:
    """As a test finds it: the door stands open, and there are credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    kms_server.script = None
    kms_server.asked.clear()
    yield kms_server
    kms_server.script = None
