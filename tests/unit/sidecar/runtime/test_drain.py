"""The way out: new calls refused, those under way let finish, the rest ended and told, Envoy asked to quit last."""

from __future__ import annotations

import asyncio
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from sidecar.core.governor import Refused
from sidecar.core.model import Outcome, OutcomeKind
from sidecar.core.reasons import Reason
from sidecar.runtime import drain as module
from sidecar.runtime.drain import Drain, EnvoyAdmin, drain_envoy
from sidecar.transports.live import LiveRpcs
from tests.support.core import AT, Stage, a_call


async def test_calls_under_way_may_finish_and_new_ones_are_refused() -> None:
    stage, live = Stage(), LiveRpcs()
    drain = Drain(stage.governor, live, grace=30.0)
    finish = asyncio.Event()

    async def rpc() -> str:
        with live.track():
            recorded = stage.open()
            await finish.wait()
            stage.governor.settle(recorded, Outcome(OutcomeKind.COMPLETED), AT)
            return "finished"

    task = asyncio.ensure_future(rpc())
    while not len(live):
        await asyncio.sleep(0)
    draining = asyncio.ensure_future(asyncio.to_thread(drain.run))
    assert await asyncio.to_thread(drain.began.wait, 5)
    while not stage.governor.turns_away(a_call().credential, AT):
        await asyncio.sleep(0)
    refused = stage.governor.open(a_call("new"), AT)
    assert isinstance(refused, Refused)
    assert refused.denial.reason is Reason.DRAINING
    assert not draining.done()
    finish.set()
    assert await task == "finished"
    await asyncio.wait_for(draining, 5)


async def test_calls_that_outlast_the_grace_are_cut() -> None:
    live = LiveRpcs()
    drain = Drain(Stage().governor, live, grace=0.05)

    async def rpc() -> None:
        with live.track():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(rpc())
    while not len(live):
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.to_thread(drain.run), 5)
    assert task.cancelled()
    assert len(live) == 0


def test_a_call_that_never_settles_does_not_hold_the_drain_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CUT", 0.05)
    stage = Stage()
    stage.open()
    began = time.monotonic()
    Drain(stage.governor, LiveRpcs(), grace=0.05).run()
    assert time.monotonic() - began < 5


# --- Envoy --------------------------------------------------------------------------------------------------------


class Admin(socketserver.UnixStreamServer):
    """An admin endpoint that remembers what it was asked, and answers 200 or, once ``broken``, nonsense."""

    def __init__(self, path: Path) -> None:
        self.asked: list[str] = []
        self.broken = False
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Admin

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *args: object) -> None:
        """Tests are quiet."""

    def do_POST(self) -> None:
        self.server.asked.append(self.path)
        if self.server.broken:
            self.wfile.write(b"no HTTP at all\r\n\r\n")
            return
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with Admin(tmp_path / "admin.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_envoy_is_asked_over_its_socket(admin: Admin, tmp_path: Path) -> None:
    connected = []
    assert EnvoyAdmin(tmp_path / "admin.sock").post("/x", connected=lambda: connected.append(list(admin.asked))) == 200
    assert (admin.asked, connected) == (["/x"], [[]])


def test_an_envoy_that_does_not_answer_is_an_oserror(admin: Admin, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        EnvoyAdmin(tmp_path / "absent.sock").post("/x")
    admin.broken = True
    with pytest.raises(OSError, match="/x cannot be read"):
        EnvoyAdmin(tmp_path / "admin.sock").post("/x")


def test_the_way_out_asks_clients_to_leave_first_and_envoy_to_quit_last(admin: Admin, tmp_path: Path) -> None:
    seen: list[object] = []

    class Watched(Drain):
        def run(self) -> None:
            seen.append(list(admin.asked))

    drain_envoy(
        Watched(Stage().governor, LiveRpcs(), 1.0),
        EnvoyAdmin(tmp_path / "admin.sock"),
        lambda: seen.append("finished"),
        lambda: seen.append("cleaned"),
    )
    assert seen == [["/drain_listeners?graceful&skip_exit"], "finished", "cleaned"]
    assert admin.asked[-1] == "/quitquitquit"


def test_calls_may_finish_even_if_envoy_does_not_answer(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watched(Drain):
        def run(self) -> None:
            seen.append("drained")

    drain = Watched(Stage().governor, LiveRpcs(), 1.0)
    with pytest.raises(OSError, match="No such file"):
        drain_envoy(drain, EnvoyAdmin(tmp_path / "absent"), lambda: seen.append("finished"), lambda: None)
    assert seen == ["drained", "finished"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_blocked_signal_is_seen_by_who_waits_for_it_and_nobody_else(number: signal.Signals) -> None:
    program = (
        "from sidecar.runtime import drain\n"
        "drain.block_signals()\n"
        "print('ready', flush=True)\n"
        "print(drain.wait_for_signal().name)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.read() == f"{number.name}\n"
    assert process.returncode == 0
