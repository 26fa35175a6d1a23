"""How Redis is reached: passwords, certificates, wrong servers; what is wrong is told at start, or by config check."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar.cli.main import build
from sidecar.quotas.reach import Access, connect, look
from tests.integration.quotas.test_leases import server
from tests.support.certificates import Authority
from tests.support.config import write
from tests.support.redis import RedisServer, tls_front

__all__ = ["server"]

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("arguments", "url", "says"),
    [
        (["--requirepass", "secret"], "redis://127.0.0.1:{port}/0", "Authentication"),
        (["--requirepass", "secret"], "redis://:wrong@127.0.0.1:{port}/0", "invalid"),
        (["--replicaof", "127.0.0.1", "1"], "redis://127.0.0.1:{port}/0", "read only"),
        ([], "rediss://127.0.0.1:{port}/0", "connecting"),
        (["--maxmemory-policy", "allkeys-lru"], "redis://127.0.0.1:{port}/0", "allkeys-lru"),
    ],
)  # fmt: skip
def test_a_redis_that_cannot_hold_leases_says_why(tmp_path: Path, arguments: list[str], url: str, says: str) -> None:
    server = RedisServer(tmp_path, *arguments)
    try:
        said = look(Access(url.format(port=server.port)), "eu")
        assert says.lower() in said.lower()
        assert "secret" not in said
    finally:
        server.stop()


def test_a_password_is_read_from_its_file_and_can_be_rotated(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "first")
    (tmp_path / "password").write_text("first\n")
    access = Access(server.url, password_file=tmp_path / "password")
    try:
        assert look(access, "eu") == ""
        server.kill()
        server.arguments = ("--requirepass", "second")
        server.start()
        assert look(access, "eu") != ""
        (tmp_path / "password").write_text("second\n")
        assert look(access, "eu") == ""
    finally:
        server.stop()


def test_tls_to_redis_with_a_certificate_of_ones_own(tmp_path: Path, server: RedisServer) -> None:
    ca = Authority()
    files = {"ca": ca.pem}
    files |= dict(zip(("cert", "key"), ca.server(), strict=True))
    files |= dict(zip(("own-cert", "own-key"), ca.client("spiffe://warden"), strict=True))
    for name, pem in files.items():
        (tmp_path / name).write_bytes(pem)
    with tls_front(server.port, tmp_path / "cert", tmp_path / "key", tmp_path / "ca") as port:
        url = f"rediss://127.0.0.1:{port}/0"
        assert look(Access(url, None, None, tmp_path / "ca", tmp_path / "own-cert", tmp_path / "own-key"), "eu") == ""
        assert look(Access(url, ca_file=tmp_path / "ca"), "eu") != ""  # without one
        assert look(Access(url), "eu") != ""  # nor does the system know its authority


def test_what_names_no_usable_file_is_told_at_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        connect(Access("redis://127.0.0.1:1/0", password_file=tmp_path / "absent"))
    with pytest.raises(ValueError, match="rediss"):
        connect(Access("redis://127.0.0.1:1/0", ca_file=tmp_path))


def test_config_check_live_asks_redis_and_plain_check_only_its_files(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--requirepass", "secret")
    try:
        path = write(tmp_path, quotas={"redis": {"url": server.url}})
        asked = CliRunner().invoke(build("config"), ["config", "check", "--live", str(path)])
        assert asked.exit_code == 1
        assert "1 problem(s)" in asked.output  # neither Triton nor Postgres is there either
        assert "quotas.redis: AuthenticationError" in asked.output
        assert CliRunner().invoke(build("config"), ["config", "check", str(path)]).exit_code == 0
        path = write(tmp_path, quotas={"redis": {"url": server.url, "password_file": "absent"}})
        absent = CliRunner().invoke(build("config"), ["config", "check", str(path)])
        assert absent.exit_code == 1
        assert "quotas.redis: " in absent.output
        assert "absent" in absent.output
    finally:
        server.stop()
