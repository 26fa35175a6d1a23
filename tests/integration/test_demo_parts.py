"""The demo's servers: they start, say what is wrong when they can't, and leave nothing behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sidecar.cli.demo.postgres import THROW_AWAY, RunningPostgres, start_postgres
from sidecar.cli.demo.process import StartError
from sidecar.cli.demo.triton import start_triton
from tests.support.regions import held, regions
from tests.support.stack import ROOT, eventually

pytestmark = pytest.mark.integration

STARTER = """
import pathlib, sys, time
from sidecar.cli.demo.{module} import {function}
running = {function}(pathlib.Path(sys.argv[1]){arguments})
print("up", flush=True)
time.sleep(600)
"""


def killed_after_start(module: str, function: str, directory: Path, arguments: str = "") -> None:
    """Start a part from a process of its own, and kill that process once the part is up."""
    code = STARTER.format(module=module, function=function, arguments=arguments)
    with subprocess.Popen([sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        starter.kill()


def processes_that_name(directory: Path) -> list[str]:
    """The command lines of the living processes that have ``directory`` in theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(directory) in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def postgres_part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPostgres]:
    server = start_postgres(tmp_path_factory.mktemp("pg") / "server", settings=THROW_AWAY)
    yield server
    server.stop()


def execute(dsn: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


class TestPostgres:
    def test_data_outlives_a_stop_and_a_crash(self, postgres_part: RunningPostgres) -> None:
        dsn = postgres_part.dsn
        execute(dsn, "CREATE TABLE kept (n int)")
        execute(dsn, "INSERT INTO kept VALUES (1)")
        postgres_part.stop()
        assert not postgres_part.running
        with pytest.raises(psycopg.OperationalError):
            execute(dsn, "SELECT 1")
        postgres_part.start()
        execute(dsn, "INSERT INTO kept VALUES (2)")
        postgres_part.stop_immediate()
        postgres_part.start()
        assert postgres_part.dsn == dsn
        assert execute(dsn, "SELECT n FROM kept ORDER BY n") == [(1,), (2,)]

    def test_a_wrong_password_is_refused(self, postgres_part: RunningPostgres) -> None:
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(postgres_part.dsn, password="wrong")

    def test_it_listens_on_loopback_only_and_takes_the_settings_given(self, postgres_part: RunningPostgres) -> None:
        assert execute(postgres_part.dsn, "SHOW listen_addresses") == [("127.0.0.1",)]
        assert execute(postgres_part.dsn, "SHOW fsync") == [("off",)]

    def test_a_second_server_in_the_same_directory_is_refused(self, postgres_part: RunningPostgres) -> None:
        with pytest.raises(StartError, match=r'lock file "postmaster.pid" already exists'):
            start_postgres(postgres_part.directory)
        assert execute(postgres_part.dsn, "SELECT 1") == [(1,)]

    def test_a_wrong_setting_is_told_with_the_servers_words(self, tmp_path: Path) -> None:
        with pytest.raises(StartError, match='unrecognized configuration parameter "no_such"'):
            start_postgres(tmp_path / "pg", settings={"no_such": "1"})

    def test_it_ends_when_its_starter_is_killed_and_starts_again(self, tmp_path: Path) -> None:
        directory = tmp_path / "pg"
        killed_after_start("postgres", "start_postgres", directory)
        eventually(lambda: not processes_that_name(directory), what="the server's end")
        again = start_postgres(directory)
        again.stop()


class TestTriton:
    def test_a_model_that_does_not_load_is_told_with_the_reason(self, tmp_path: Path) -> None:
        repository = tmp_path / "models"
        shutil.copytree(ROOT / "examples" / "models" / "echo", repository / "echo")
        (repository / "echo" / "1" / "model.py").write_text("raise RuntimeError('the weights are missing')\n")
        with pytest.raises(StartError, match=r"(?s)Triton ended while starting.*the weights are missing"):
            start_triton(tmp_path / "triton", repository)

    def test_it_and_its_models_end_when_its_starter_is_killed(self, tmp_path: Path) -> None:
        repository = tmp_path / "models"
        shutil.copytree(ROOT / "examples" / "models" / "echo", repository / "echo")
        before = regions()
        killed_after_start(
            "triton", "start_triton", tmp_path / "triton", f", repository=pathlib.Path({str(repository)!r})"
        )
        eventually(lambda: not processes_that_name(tmp_path), what="the end of Triton and its model", within_s=60)
        # Other Tritons of this machine begin and end meanwhile: theirs are in somebody's hands.
        eventually(lambda: not regions() - before - held(), what="the end of its models' shared memory", within_s=60)
