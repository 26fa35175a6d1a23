"""Where a JWK set's bytes come from: a file, or an https URL; bounded in size, time and where a redirect may lead."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, Protocol
from urllib.parse import urlsplit

MAX_BYTES: Final = 256 * 1024
MAX_REDIRECTS: Final = 3
TIMEOUT: Final = 5.0  # seconds for each step on the network, and about twice that for all of it
_CUT_EVERY: Final = 0.1  # seconds


class Unchanged:
    """The source still holds what was fetched before."""


class Fetch(Protocol):
    """Called off the request path; blocks. Never raises for what the other side does."""

    def __call__(self) -> bytes | Unchanged | str:
        """The bytes; ``Unchanged``; or in words why there are none."""
        ...

    def forget(self) -> None:
        """What was fetched last was of no use: fetch it whole again next time."""
        ...


def fetch_from(location: str, monotonic: Callable[[], float]) -> Fetch | str:
    """A file's path, an https URL, or an http URL of this very host; else, in words, why not."""
    if "://" not in location:
        return FileFetch(Path(location))
    fault = _url_fault(location)
    return UrlFetch(location, monotonic) if fault is None else fault


class FileFetch:
    """A JWK set in a file; read again when its content changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: bytes | None = None

    def __call__(self) -> bytes | Unchanged | str:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as fault:
            return f"{self._path}: {fault.strerror}"
        if data == self._last:
            return Unchanged()
        self._last = data
        return data

    def forget(self) -> None:
        self._last = None


class UrlFetch:
    """A JWK set over HTTPS. No proxy is taken from the environment."""

    def __init__(self, url: str, monotonic: Callable[[], float]) -> None:
        self._url = url
        self._monotonic = monotonic
        self._last: bytes | None = None

    def __call__(self) -> bytes | Unchanged | str:
        connections: list[http.client.HTTPConnection] = []
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), _Redirects(), _Http(connections), _Https(connections)
        )
        # A peer that drips its headers would never meet the timeout of a single step, nor reach the deadline below.
        done, cut = threading.Event(), threading.Event()
        threading.Thread(target=_watch, args=(done, cut, connections), name="warden-jwks-watchdog", daemon=True).start()
        try:
            answer = self._fetch(opener)
        finally:
            done.set()
        if cut.is_set() and not isinstance(answer, str):  # http.client takes a cut within the headers for their end
            self.forget()
            return f"{self._url}: still sending after {2 * TIMEOUT:.0f} s"
        return answer

    def _fetch(self, opener: urllib.request.OpenerDirector) -> bytes | Unchanged | str:
        request = urllib.request.Request(self._url, headers={"accept": "application/jwk-set+json, application/json"})  # noqa: S310 — the scheme was checked by fetch_from
        deadline = self._monotonic() + 2 * TIMEOUT
        try:
            with opener.open(request, timeout=TIMEOUT) as response:
                data = self._read(response, deadline)
        except urllib.error.HTTPError as fault:
            fault.close()
            return f"{self._url}: HTTP {fault.code}"
        except (OSError, http.client.HTTPException, ValueError) as fault:
            return f"{self._url}: {fault}"
        if isinstance(data, bytes) and data == self._last:
            return Unchanged()
        self._last = data if isinstance(data, bytes) else None
        return data

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes | str:
        """At most one byte over the bound, and not past the deadline however slowly it drips."""
        data = b""
        while len(data) <= MAX_BYTES:
            if self._monotonic() > deadline:
                return f"{self._url}: still sending after {2 * TIMEOUT:.0f} s"
            piece = response.read1(MAX_BYTES + 1 - len(data))
            if not piece:
                return data
            data += piece
        return f"{self._url}: longer than {MAX_BYTES} bytes"

    def forget(self) -> None:
        self._last = None


def _watch(done: threading.Event, cut: threading.Event, connections: Sequence[http.client.HTTPConnection]) -> None:
    """Cut what is not ``done`` in time, again and again: one slow to connect has no socket yet the first time."""
    left = 2 * TIMEOUT
    while not done.wait(left):
        cut.set()
        _cut(tuple(connections))
        left = _CUT_EVERY


def _cut(connections: Sequence[http.client.HTTPConnection]) -> None:
    """End what is still being waited for: whoever reads there reads an end, and says so."""
    for connection in connections:
        sock = connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Http(urllib.request.HTTPHandler):
    """Notes the connections that it makes."""

    def __init__(self, made: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._made = made

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(*given: Any, **named: Any) -> http.client.HTTPConnection:
            self._made.append(http.client.HTTPConnection(*given, **named))
            return self._made[-1]

        return self.do_open(connection, req)


class _Https(urllib.request.HTTPSHandler):
    """The same, over TLS; certificates are verified, by default."""

    def __init__(self, made: list[http.client.HTTPConnection]) -> None:
        super().__init__()
        self._made = made

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(*given: Any, **named: Any) -> http.client.HTTPConnection:
            self._made.append(http.client.HTTPSConnection(*given, **named, context=self._trusted))
            return self._made[-1]

        return self.do_open(connection, req)

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, none to another scheme."""

    max_redirections = MAX_REDIRECTS

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme or _url_fault(newurl) is not None:
            raise urllib.error.HTTPError(req.full_url, code, "a redirect to another scheme", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _url_fault(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.username is not None or not parts.hostname:
        return f"{url}: not a plain URL"
    if parts.scheme == "https" or (parts.scheme == "http" and _loopback(parts.hostname)):
        return None
    return f"{url}: must be https (http only to this host itself)"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
