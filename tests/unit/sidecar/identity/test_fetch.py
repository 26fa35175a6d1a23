"""Fetching over a real loopback server: bounds on size, time and redirects."""

from __future__ import annotations

import gzip
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sidecar.identity import fetch as fetch_module
from sidecar.identity.fetch import MAX_BYTES, FileFetch, Unchanged, UrlFetch, fetch_from
from tests.support.certificates import Authority, put

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] — a handshake that the client gave up
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}/jwks"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def body(data: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(ConnectionError):  # the client has read as much as it wants
            handler.wfile.write(data)

    return answer


def redirect(to: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/there":
            body(b"found")(handler)
            return
        handler.send_response(302)
        handler.send_header("location", to)
        handler.end_headers()

    return answer


def fetched(answer: Answer) -> bytes | Unchanged | str:
    with serving(answer) as url:
        return UrlFetch(url, lambda: 0.0)()


def test_the_bytes_once_then_unchanged_until_forgotten() -> None:
    with serving(body(b"keys")) as url:
        fetch = UrlFetch(url, lambda: 0.0)
        assert fetch() == b"keys"
        assert isinstance(fetch(), Unchanged)
        fetch.forget()
        assert fetch() == b"keys"


def test_no_more_is_read_than_the_bound() -> None:
    assert fetched(body(b"k" * MAX_BYTES)) == b"k" * MAX_BYTES
    assert "longer than" in str(fetched(body(b"k" * (MAX_BYTES + 1))))


def test_a_server_that_drips_is_left() -> None:
    ticks = itertools.count(0, 6.0)  # each look at the clock finds six seconds gone
    with serving(body(b"k" * 300)) as url:
        assert "still sending" in str(UrlFetch(url, lambda: float(next(ticks)))())


@pytest.mark.parametrize("dripped", [b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HT"])
def test_a_server_that_drips_is_cut_off_wherever_it_is(monkeypatch: pytest.MonkeyPatch, dripped: bytes) -> None:
    """Each byte comes within the timeout of a step, so only a bound on all of it ends this; what came is no answer."""
    monkeypatch.setattr(fetch_module, "TIMEOUT", 0.1)
    gone = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            handler.wfile.write(dripped)
            for byte in itertools.repeat(b"a"):
                handler.wfile.write(byte)
                handler.wfile.flush()
                if gone.wait(0.01):
                    return

    with serving(drip) as url:
        try:
            fetch = UrlFetch(url, time.monotonic)
            assert isinstance(fetch(), str)
            assert fetch._last is None
        finally:
            gone.set()


def test_what_is_compressed_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(50_000_000))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-encoding", "gzip")
        handler.end_headers()
        handler.wfile.write(bomb)

    assert fetched(answer) == bomb  # 50 KB, which is no JWK set


def test_https_is_fetched_from_whom_the_machine_trusts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    for name, data in zip(("crt", "key"), authority.server(), strict=True):
        put(tmp_path / name, data)
    put(tmp_path / "ca", authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with serving(body(b"keys"), context) as url:
        assert "CERTIFICATE_VERIFY_FAILED" in str(UrlFetch(url, lambda: 0.0)())
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        assert UrlFetch(url, lambda: 0.0)() == b"keys"


def test_an_error_status_is_a_fault() -> None:
    assert "HTTP 500" in str(fetched(lambda handler: handler.send_error(500)))


def test_a_redirect_of_the_same_scheme_is_followed() -> None:
    assert fetched(redirect("/there")) == b"found"


@pytest.mark.parametrize("to", ["https://127.0.0.1/there", "file:///etc/passwd", "http://issuer.example/jwks"])
def test_a_redirect_elsewhere_is_not(to: str) -> None:
    assert "HTTP 302" in str(fetched(redirect(to)))


def test_a_loop_of_redirects_ends() -> None:
    assert "HTTP 302" in str(fetched(redirect("/jwks")))


def test_nobody_listening_is_a_fault() -> None:
    with serving(body(b"")) as url:
        gone = url
    assert isinstance(UrlFetch(gone, lambda: 0.0)(), str)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    fetch = FileFetch(path)
    assert "No such file" in str(fetch())
    path.write_bytes(b"one")
    assert fetch() == b"one"
    assert isinstance(fetch(), Unchanged)
    path.write_bytes(b"two")
    assert fetch() == b"two"
    path.unlink()
    assert isinstance(fetch(), str)


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"k" * (MAX_BYTES * 2))
    data = FileFetch(path)()
    assert isinstance(data, bytes)
    assert len(data) == MAX_BYTES + 1  # enough for the parser to refuse it


def test_a_location_is_a_file_unless_it_is_a_url() -> None:
    assert isinstance(fetch_from("keys.json", lambda: 0.0), FileFetch)
    assert isinstance(fetch_from("https://issuer.example/jwks", lambda: 0.0), UrlFetch)
