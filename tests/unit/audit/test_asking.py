"""One question over HTTP: bounded in time as a whole, whatever drips; what is cut off is no answer."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from audit.asking import ask


@contextmanager
def speaking(speak: Callable[[socket.socket, threading.Event], None]) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server that says what ``speak`` says, and then holds the line until the test is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(65536)
                try:
                    speak(client, over)
                except OSError:
                    return  # hung up on
                over.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield http.client.HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=20)
        finally:
            over.set()
            thread.join()


def test_an_answer() -> None:
    with speaking(lambda client, _: client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nword")) as connection:
        assert ask(connection, "GET", "/", None, {}, most=100, within=20) == (200, b"word")


def test_no_more_is_read_than_may_be() -> None:
    def more(client: socket.socket, _: threading.Event) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1000)

    with speaking(more) as connection:
        assert ask(connection, "GET", "/", None, {}, most=100, within=20) == (200, b"x" * 101)


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["in a header", "in a body", "in a body without a length"],
)
def test_who_drips_is_hung_up_on(head: bytes) -> None:
    def drip(client: socket.socket, over: threading.Event) -> None:
        client.sendall(head)
        while not over.wait(0.05):  # far more often than one step may take
            client.sendall(b"x")

    with speaking(drip) as connection, pytest.raises(TimeoutError, match=r"no whole answer within 0\.3 s"):
        ask(connection, "GET", "/", None, {}, most=1 << 20, within=0.3)


def test_who_says_nothing_is_hung_up_on() -> None:
    with speaking(lambda *_: None) as connection, pytest.raises(TimeoutError, match="no whole answer"):
        ask(connection, "GET", "/", None, {}, most=100, within=0.2)
