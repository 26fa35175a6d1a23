"""Keys and revocations through a real pgbouncer in transaction pooling, where a LISTEN is heard by chance at best."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from sidecar.cli.demo.ports import free_ports
from sidecar.core.reasons import Reason
from sidecar.identity import store
from sidecar.identity.denials import DenyBook
from tests.integration.identity.test_refresh import OFFICE, issue, outcome, refreshing, step
from tests.support import debian
from tests.support.postgres import query
from tests.support.store import wait_until

pytestmark = pytest.mark.integration


@contextmanager
def pooled(dsn: str, directory: Path) -> Iterator[str]:
    """A DSN for the same database, through a pooler with two server connections."""
    binary = debian.require("pgbouncer", "pgbouncer")
    (port,) = free_ports(1)
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    config, users = directory / "pgbouncer.ini", directory / "users.txt"
    users.write_text(f'"{given["user"]}" ""\n')
    config.write_text(
        # auth_type any takes whom the client says it is, so the database's user is named here.
        f"[databases]\n* = user={given['user']} host={given['host']} port={given.get('port', 5432)}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nauth_file = {users}\nunix_socket_dir =\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nserver_reset_query_always = 1\n"
    )
    directory.chmod(0o755)
    command = [str(binary), str(config)]
    if os.geteuid() == 0:  # which pgbouncer refuses to be; the server's own user may reach its socket
        command[1:1] = ["--user", pwd.getpwuid(Path(str(given["host"])).stat().st_uid).pw_name]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    through = f"host=127.0.0.1 port={port} user={given['user']} dbname={given['dbname']}"

    def answers() -> bool:
        try:
            with psycopg.connect(through, connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            assert process.poll() is None, "pgbouncer ended"
            return False

    try:
        wait_until(answers)
        yield through
    finally:
        process.terminate()
        process.wait(10)


def test_keys_and_revocations_arrive_through_a_transaction_pooler(dsn: str, tmp_path: Path) -> None:
    book = DenyBook(max_age=60)
    with pooled(dsn, tmp_path) as through, refreshing(through, refresh=0.2, book=book) as (ring, refresher):
        wait_until(lambda: refresher.status.loads == 1)
        made = issue(dsn)
        wait_until(lambda: outcome(ring, made.key.reveal()) == "ok")
        began = time.monotonic()
        step(dsn, lambda c: store.revoke(c, OFFICE, made.info.id, datetime.now(UTC)))
        wait_until(lambda: outcome(ring, made.key.reveal()) == Reason.KEY_REVOKED)
        step(dsn, lambda c: store.deny_token(c, OFFICE, "i", "j", datetime.now(UTC)))
        wait_until(lambda: book.refuses("i", "j", "acme", 0, time.time()) is not None)
        print(f"\nthrough pgbouncer: a revocation and a denial known after {time.monotonic() - began:.2f} s")
        assert refresher.status.fault == ""
        assert query(dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")[0][0] <= 3
