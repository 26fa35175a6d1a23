"""The self-check against real Tritons: one that is careless and one that is as it should be (but for its age)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from audit.roles import RoleKind
from sidecar.cli.config import app
from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.ports import free_port
from sidecar.cli.demo.stack import JURISDICTION
from sidecar.cli.demo.triton import RunningTriton, start_triton
from sidecar.runtime.selfcheck import _read, local_addresses
from tests.support import config
from tests.support.postgres import own_dsn, query
from tests.support.stack import ROOT

pytestmark = pytest.mark.integration
SECRET = "a-secret-of-this-pod-0123456789"


def models(directory: Path) -> Path:
    for name in ("echo", "embed"):
        shutil.copytree(ROOT / "examples" / "models" / name, directory / name)
    return directory


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTriton]:
    directory = tmp_path_factory.mktemp("careless")
    repository = models(directory / "models")
    shutil.rmtree(repository / "embed" / "2")  # the canary's version
    flags = [
        "--grpc-address=0.0.0.0", "--model-control-mode=explicit", "--load-model=*", "--reuse-grpc-port=true",
        "--grpc-header-forward-pattern=.*", "--log-verbose=1",
    ]  # fmt: skip
    running = start_triton(directory / "triton", repository, extra_flags=flags)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory, otlp: OtlpReceiver) -> Iterator[RunningTriton]:
    directory = tmp_path_factory.mktemp("careful")
    running = start_triton(directory / "triton", models(directory / "models"), secret=SECRET, otlp_url=otlp.http_url)
    yield running
    running.stop()


def check(directory: Path, dsn: str, triton: str, ports: list[int], **section: Any) -> tuple[int, dict[str, Any], str]:
    """`warden config check --live --json`: its exit code, what it prints, and the findings by severity and name."""
    audit = {**config.document(directory)["audit"], "database": {"dsn": dsn, "jurisdiction": JURISDICTION}}
    telemetry = {"otlp": {"endpoint": "http://127.0.0.1:1", "jurisdiction": "EU"}}
    file = config.write(
        directory, triton={"grpc": triton, "other_ports": ports, **section}, telemetry=telemetry, audit=audit
    )
    done = CliRunner().invoke(app, ["check", str(file), "--live", "--json"])
    return done.exit_code, json.loads(done.stdout), done.stderr


def ports(running: RunningTriton) -> list[int]:
    return [int(each.rpartition(":")[2]) for each in (running.addresses.http, running.addresses.metrics)]


def test_everything_that_is_amiss_is_found_and_it_is_a_no(careless: RunningTriton, dsn: str, tmp_path: Path) -> None:
    code, told, _ = check(tmp_path, dsn, careless.addresses.grpc, ports(careless))
    found = {each["name"]: each for each in told["findings"]}
    expected = {
        "model-control-explicit", "header-forwarding", "grpc-port-reused", "cancel-race", "tracing-off", "log-verbose",
        "restricted-secret-none", "canary-version-absent", "prefix-cache-shared",
    }  # fmt: skip
    if local_addresses(_read("/proc/net/fib_trie"), _read("/proc/net/if_inet6")):
        expected.add("reachable-from-outside")
        grpc = careless.addresses.grpc.rpartition(":")[2]
        assert f":{grpc}" in found["reachable-from-outside"]["detail"]
        assert f":{ports(careless)[0]}" not in found["reachable-from-outside"]["detail"]
    assert {name for name in found if name != "alias-target-absent"} == expected
    assert "2.51" in found["cancel-race"]["detail"]
    assert "embed:2" in found["canary-version-absent"]["detail"]
    assert (code, told["ok"], told["problems"]) == (1, False, [])


def test_a_careful_one_lacks_but_a_later_release_and_keeps_its_secret(
    careful: RunningTriton, dsn: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    section = {"restricted_secret": {"key": "warden", "file": str(secret)}}
    code, told, _ = check(tmp_path, dsn, careful.addresses.grpc, ports(careful), **section)
    assert {each["name"]: each["severity"] for each in told["findings"]} == {
        "cancel-race": "critical", "prefix-cache-shared": "warning",
    }  # fmt: skip
    assert (code, told["ok"]) == (1, False)
    assert SECRET not in json.dumps(told)


def test_with_another_secret_its_questions_are_not_answered(careful: RunningTriton, dsn: str, tmp_path: Path) -> None:
    code, told, _ = check(tmp_path, dsn, careful.addresses.grpc, ports(careful))
    found = {each["name"]: each["detail"] for each in told["findings"]}
    assert "restricted" in found["unanswered"]
    assert code == 0


def test_a_triton_or_a_database_that_is_not_there_is_a_dependency(dsn: str, tmp_path: Path) -> None:
    code, told, stderr = check(tmp_path, dsn, f"127.0.0.1:{free_port()}", [])
    assert code == 3
    assert (told["ok"], told["findings"], told["problems"]) == (False, [], [])
    assert "Triton at 127.0.0.1" in stderr
    assert "does not answer" in stderr
    code, told, stderr = check(tmp_path, f"postgresql://127.0.0.1:{free_port()}/none", f"127.0.0.1:{free_port()}", [])
    assert code == 3
    assert len(told["away"]) == 2
    assert "audit.database: " in stderr


@pytest.mark.parametrize("wrong", ["jurisdiction", "no tables", "older", "newer", "nobody", "stranger"])
def test_a_database_that_cannot_be_used_is_a_problem(dsn: str, wrong: str, tmp_path: Path) -> None:
    match wrong:
        case "jurisdiction":
            query(dsn, "UPDATE warden.database_facts SET value = 'US' WHERE key = 'jurisdiction'")
            says = "belongs to jurisdiction 'US', not 'EU'"
        case "no tables":
            query(dsn, "DROP SCHEMA warden CASCADE")
            says = "run `warden db upgrade`"
        case "older":
            query(dsn, "UPDATE warden.alembic_version SET version_num = '0001'")
            says = "run `warden db upgrade`"
        case "newer":
            query(dsn, "UPDATE warden.alembic_version SET version_num = '9999'")
            says = "is at revision 9999, which this release does not know"
        case "nobody":
            dsn, says = make_conninfo(dsn, user="nobody_here"), "does not exist"
        case "stranger":
            query(dsn, "DROP ROLE IF EXISTS stranger")
            query(dsn, "CREATE ROLE stranger LOGIN")
            dsn, says = make_conninfo(dsn, user="stranger"), "permission denied"
    code, told, _ = check(tmp_path, dsn, f"127.0.0.1:{free_port()}", [])
    assert (code, told["ok"]) == (1, False)
    assert len(told["problems"]) == 1
    assert "audit.database: " in told["problems"][0]
    assert says in told["problems"][0]


def test_a_sidecars_own_login_is_let_in(dsn: str, tmp_path: Path) -> None:
    code, told, _ = check(tmp_path, own_dsn(dsn, RoleKind.SIDECAR, "pod-1"), f"127.0.0.1:{free_port()}", [])
    assert (code, told["problems"], len(told["away"])) == (3, [], 1)  # but for Triton


def test_a_file_with_mistakes_is_told_before_triton_is_asked(tmp_path: Path) -> None:
    file = config.write(tmp_path, policy={"bundle": str(tmp_path / "none")})
    done = CliRunner().invoke(app, ["check", str(file), "--live"])
    assert done.exit_code == 1
    assert "no such directory" in done.stderr
