"""How a sidecar reaches the Redis that holds its leases, and for how long it waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.quotas.script import POD_TTL_MS, SCRIPT

__all__ = ["ANSWER_S", "Access", "Run", "Timely", "connect", "look", "why"]

TIMEOUT_S: Final = 0.1  # for one answer of Redis
CONNECT_S: Final = 0.5  # for a connection to it, TLS included
ANSWER_S: Final = CONNECT_S + 2 * TIMEOUT_S  # for an answer, connection and all

Run = Callable[[Sequence[str], Sequence[str]], list[int]]
"""Runs the script: keys and arguments in, its answer out; raises where Redis is away."""


@dataclass(frozen=True, slots=True)
class Access:
    """How Redis is reached. The files are read again for each connection, so that what they hold can be rotated."""

    url: str = field(repr=False)  # may hold a password
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


def connect(access: Access) -> Run:
    """Raises ``ImportError`` without the extra ``redis``, ``ValueError`` for what can't be used.

    An answer takes ``TIMEOUT_S`` at most, whatever it hangs on: a name that can't be resolved knows no other bound.
    """
    script = _client(access).register_script(SCRIPT)  # sent again where the server has forgotten it (NOSCRIPT)

    def run(keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        return [int(each) for each in script(keys=list(keys), args=list(arguments))]

    return Timely(run)


def _client(access: Access) -> Any:
    import redis  # noqa: PLC0415 — an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.credentials import CredentialProvider  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    class FromFile(CredentialProvider):  # type: ignore[misc,unused-ignore]  # untyped without the extra
        def get_credentials(self) -> tuple[str] | tuple[str, str]:
            assert access.password_file is not None
            password = access.password_file.read_text().strip()
            return (access.username, password) if access.username else (password,)

    more: dict[str, Any] = {}
    if access.password_file is not None:
        access.password_file.read_bytes()  # an OSError now, not at the first round
        more["credential_provider"] = FromFile()
    files = {"ssl_ca_certs": access.ca_file, "ssl_certfile": access.cert_file, "ssl_keyfile": access.key_file}
    given = {name: str(path) for name, path in files.items() if path is not None}
    if given and not access.url.startswith("rediss://"):
        raise ValueError("certificates are for rediss:// alone")
    for path in given.values():
        Path(path).read_bytes()
    return redis.Redis.from_url(
        access.url, socket_timeout=TIMEOUT_S, socket_connect_timeout=CONNECT_S, retry=Retry(NoBackoff(), 0),
        health_check_interval=0, **given, **more,
    )  # fmt: skip


def look(access: Access, prefix: str) -> str:
    """What is amiss with the Redis that would hold leases, "" for nothing: it runs the script, on keys of its own.

    Raises as ``connect`` does. One that evicts keys is told too: a lease that was evicted is handed out again.
    """
    keys = [f"{{warden:{prefix}}}:check:{name}" for name in ("clock", "pods")]
    client = _client(access)
    try:
        client.register_script(SCRIPT)(keys=keys, args=["check", str(POD_TTL_MS), "0"])
        client.delete(*keys)
        policy = str(client.info("memory").get("maxmemory_policy", "noeviction"))
    except Exception as fault:  # noqa: BLE001 — whatever it says, that is what is amiss
        return why(fault)
    finally:
        client.close()
    return "" if policy == "noeviction" else f"maxmemory-policy {policy}: it may evict leases; set noeviction"


def why(fault: BaseException) -> str:
    """Redis's own words, or those of what stands before it."""
    return f"{type(fault).__name__}: {fault}"


class Timely:
    """Runs one thing at a time on a thread of its own, and waits for it no longer than an answer may take."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: queue.SimpleQueue[tuple[Sequence[str], Sequence[str], Future[list[int]]]] = queue.SimpleQueue()
        self._last: Future[list[int]] | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, keys: Sequence[str], arguments: Sequence[str]) -> list[int]:
        if self._last is not None and not self._last.done():
            raise TimeoutError("Redis has still not answered what it was asked before")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="warden-redis", daemon=True)
            self._thread.start()
        self._last = Future()
        self._asked.put((keys, arguments, self._last))
        return self._last.result(ANSWER_S)

    def _serve(self) -> None:
        while True:
            keys, arguments, answer = self._asked.get()
            try:
                answer.set_result(self._run(keys, arguments))
            except BaseException as fault:  # noqa: BLE001 — told to whoever asked
                answer.set_exception(fault)
