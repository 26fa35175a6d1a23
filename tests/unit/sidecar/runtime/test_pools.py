"""The pools' thread: what it believes, for how long, and what it makes of a page that is slow, gone or lying."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from sidecar.core.model import Contract, Instant, KvProfile, LivePool, ModelProfile, PoolSize
from sidecar.runtime.pools import STALE, MetricsPage, PoolPoller
from sidecar.triton.gauges import BYTES_MAX

BLOCK = 16 * 1000  # bytes
BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s",model="%s",version="1"} %s\n'
STATED = 7 * BLOCK
SECOND = 1_000_000_000


def page(model: str = "chat", *, active: int = 0, **blocks: object) -> str:
    told = {"max": 100, "used": 10, "free": 90, "tokens_per": 16, **blocks}
    lines = [BLOCKS % (kind, model, value) for kind, value in told.items()]
    lines.append(f'nv_trt_llm_request_metrics{{model="{model}",request_type="active"}} {active}\n')
    return "".join(lines)


class Room:
    """The thread's surroundings: a page to read, the pools it tells, a clock, a bundle."""

    def __init__(self, **profiles: PoolSize) -> None:
        self.text: str | bytes = page()
        self.asked = 0
        self.seconds = 100.0
        self.reserved: dict[str, int] = {}
        self.told: Mapping[str, LivePool] = {"(nothing)": LivePool(0, 0)}
        self.idle: list[tuple[str, int]] = []
        self.needed = False
        kv = KvProfile(bytes_per_token=1000, tokens_per_block=16)
        self.profiles = {
            name: ModelProfile(name, Contract.VLLM, kv, pool=pool)
            for name, pool in (profiles or {"chat": PoolSize(STATED, live=True)}).items()
        }
        self.poller = PoolPoller(
            self._page, lambda: self.profiles, self, lambda model, at: self.idle.append((model, at)) or 0,
            needed=lambda: self.needed, now=lambda: Instant(0, int(self.seconds * 1e9)),
        )  # fmt: skip

    def _page(self) -> bytes | str:
        self.asked += 1
        return self.text.encode() if isinstance(self.text, str) and not self.text.startswith("!") else self.text

    def peak(self, engine: str) -> int:
        return self.reserved.get(engine, 0)

    def tell(self, live: Mapping[str, LivePool]) -> None:
        self.told = live

    def look(self, after: float = 1.0) -> Mapping[str, LivePool]:
        self.seconds += after
        self.poller.look()
        return self.told


def test_an_engines_blocks_become_the_pool() -> None:
    room = Room()
    room.reserved["chat"] = 10 * BLOCK
    assert room.look() == {"chat": LivePool(100 * BLOCK, 10 * BLOCK)} == room.poller.live
    assert (room.poller.faults, room.poller.age) == ({}, 0.0)


def test_what_the_engine_gave_to_others_is_not_given_out_here() -> None:
    room = Room()
    room.reserved["chat"] = 4 * BLOCK
    assert room.look()["chat"].foreign == 6 * BLOCK


def test_what_ended_between_two_looks_is_no_strangers() -> None:
    """The engine counts it still, or did a moment ago; the look after the next tells it apart."""
    room = Room()
    room.reserved["chat"] = 10 * BLOCK
    room.look()
    room.reserved["chat"] = 0
    assert room.look()["chat"].foreign == 0
    assert room.look()["chat"].foreign == 10 * BLOCK


def test_models_in_front_of_one_engine_are_told_of_it_once() -> None:
    room = Room(ensemble=PoolSize(STATED, live=True, engine="core"), bls=PoolSize(STATED, live=True, engine="core"))
    room.text = page("core")
    assert set(room.look()) == {"core"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("!does not answer: ConnectionError", "!does not answer: ConnectionError"),
        (page("other"), "its engine is not in Triton's metrics"),
        (page(max="NaN"), "its engine tells no block count and no usage"),
        (page(max=0, used=0, free=0), "0 blocks of 16 tokens are no KV cache"),
        (page(used=101), "101 blocks in use, of 100"),
        (page() + page(), "line 6: nv_trt_llm_kv_cache_block_metrics tells one thing twice"),
        ("", "its engine is not in Triton's metrics"),
    ],
    ids=["gone", "another's", "no number", "absurd", "lying", "twice", "empty"],
)
def test_without_a_word_to_believe_the_bundle_counts(text: str, why: str) -> None:
    room = Room()
    room.text = text
    assert room.look() == {}
    assert room.poller.faults == {"chat": why}


def test_a_page_that_is_gone_a_moment_leaves_what_it_said_and_no_longer_than_that() -> None:
    room = Room()
    room.look()
    room.text = "!does not answer"
    assert set(room.look(STALE - 1)) == {"chat"}
    assert room.poller.age == STALE - 1
    assert room.look(2.0) == {}
    assert room.poller.faults == {"chat": "!does not answer"}
    room.text = page()
    assert set(room.look()) == {"chat"}
    assert room.poller.faults == {}


def test_nobody_is_asked_while_nobody_needs_it() -> None:
    room = Room(chat=PoolSize(STATED))
    assert (room.look(), room.asked, room.poller.age) == ({}, 0, None)
    room.needed = True
    assert (room.look(), room.asked) == ({}, 1)


def test_a_bundle_that_takes_live_back_is_followed_at_once() -> None:
    room = Room()
    room.look()
    room.profiles = {"chat": ModelProfile("chat", Contract.VLLM, KvProfile(1000, 16), pool=PoolSize(STATED))}
    assert room.look() == {}
    assert room.poller.faults == {}


def test_an_engine_is_idle_once_two_looks_in_a_row_say_so() -> None:
    room = Room(chat=PoolSize(STATED), rag=PoolSize(engine="chat"))
    room.needed = True
    room.text = page(used=0, free=100)
    room.look()
    assert room.idle == []
    first = int(room.seconds * 1e9)
    room.look()
    assert room.idle == [("chat", first), ("rag", first)]
    room.text = page(active=1)
    room.look()
    room.text = page(used=0, free=100)
    room.look()
    assert len(room.idle) == 2
    room.text = "!gone"
    room.look()
    room.text = page(used=0, free=100)
    room.look()
    assert len(room.idle) == 2, "what was not seen between says nothing"


# --- the page itself -----------------------------------------------------------------------------------------------


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers each connection as told, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    connection.recv(65536)
                    answer(connection)
                except OSError:
                    pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def told(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n".encode() + body


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    for _ in range(40):
        connection.sendall(b"#")
        threading.Event().wait(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    for _ in range(BYTES_MAX // 2**16 + 2):
        connection.sendall(b"#" * 2**16)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda c: c.sendall(told(b"nv_a 1\n")), b"nv_a 1\n"),
        (lambda c: c.sendall(told(b"no", "503 Busy")), "HTTP 503"),
        (lambda c: c.sendall(told(b"nv_a 1\n", length=700)), "does not answer"),
        (lambda c: None, "does not answer"),
        (lambda c: c.sendall(b"SSH-2.0-OpenSSH\r\n"), "does not answer"),
        (drip, "no whole answer within 0.5 s"),
        (flood, f"more than {BYTES_MAX} bytes"),
    ],
    ids=["good", "not 200", "cut off", "closed", "no HTTP", "drips", "floods"],
)
def test_a_page_is_read_whole_or_not_at_all(answer: Callable[[socket.socket], None], found: bytes | str) -> None:
    with serving(answer) as address:
        text = MetricsPage(address, timeout=0.5)()
    if isinstance(found, bytes):
        assert text == found
    else:
        assert isinstance(text, str)
        assert found in text


def test_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "does not answer" in str(MetricsPage(f"127.0.0.1:{port}")())
