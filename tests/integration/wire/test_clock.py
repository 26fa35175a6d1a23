"""A clock that is set back an hour amid calls, under a real sidecar and shipper: all stored, found and verified."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.runtime import shipping
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, echo, final, launch, said, slow
from tests.support.stack import Triton, eventually
from tests.support.victims import Children, serve_for_real, ship_process

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
HOUR = 3600
_time, _time_ns = time.time, time.time_ns


def off() -> int:
    """Seconds that the clock under test is off, as its test has set it."""
    return int(SET.read_text() or "0")


SET = Path()  # in the children: the file that says so


class Off(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(seconds=off())


def set_off(config: str) -> None:
    """Every clock that the wall shows; the monotonic one goes on, as it does."""
    global SET  # noqa: PLW0603 — a child of its own
    SET = Path(config).parent / "clock"
    time.time = lambda: _time() + off()
    time.time_ns = lambda: _time_ns() + off() * 10**9
    shipping.datetime = Off  # type: ignore[attr-defined]


def serve_off(config: str, log: str) -> None:
    set_off(config)
    serve_for_real(config, log)


def ship_off(config: str, log: str) -> None:
    set_off(config)
    ship_process(config, log)


@contextmanager
def running(sidecar: Sidecar, directory: Path) -> Iterator[Children]:
    children = Children(sidecar.stack.config, directory, serve=serve_off, ship=ship_off)
    children.start("serve")
    children.start("ship")
    try:
        eventually(sidecar.stack.is_ready, what="ready", within_s=60)
        yield children
    finally:
        children.kill_all()


def test_an_hour_back_amid_calls(
    otlp: OtlpReceiver, triton: Triton, postgres: Server, bundle: Path, tmp_path: Path
) -> None:
    sidecar = launch(
        tmp_path / "stack", "grpc", Parts(otlp, triton.running.addresses, postgres.create_database()), bundle
    )
    clock = sidecar.stack.config.parent / "clock"
    clock.write_text("0")
    try:
        sidecar.stack.stop_warden()
        with running(sidecar, tmp_path) as children:
            seen = calls(sidecar, clock, children)
            shipped(sidecar, seen)
        judge(sidecar, seen)
    finally:
        sidecar.close()


def calls(sidecar: Sidecar, clock: Path, children: Children) -> dict[str, str]:
    """One before, one amid which the clock is set back, one after; one that a crash cuts off; one once it is right."""
    seen: dict[str, str] = {}
    acme = sidecar.headers()

    def unary(name: str, headers: Any = acme) -> None:
        with sidecar.bare() as bare:
            answer = bare.unary(echo(name.encode()), headers)
            assert answer.code == ("NOT_FOUND" if name == "refused" else "OK"), (name, answer)
            seen[name] = answer.call_id

    unary("before")
    with sidecar.bare() as bare:
        stream = bare.stream([slow(40, 20)], acme)
        responses = iter(stream)
        next(responses)
        clock.write_text(str(-HOUR))
        rest = list(responses)
        assert final(rest[-1])
        seen["amid"] = f"{stream.answer().call_id}/1"
    known(sidecar)
    unary("after")
    unary("refused", sidecar.headers("birch"))
    with sidecar.bare() as bare:
        stream = bare.stream([slow(2000, 20)], acme)
        for count, response in enumerate(stream):
            assert said(response), response
            if count == 20:
                children.kill("serve")
                break
        seen["cut off"] = f"{stream.answer().call_id}/1"
        assert count == 20, stream.answer()
    children.start("serve")
    eventually(sidecar.stack.is_ready, what="ready again", within_s=60)
    known(sidecar)
    unary("restarted")
    clock.write_text("0")
    known(sidecar)
    unary("right again")
    return seen


def known(sidecar: Sidecar) -> None:
    """Keys that were read in what is now the future are believed once they have been looked at again."""

    def served() -> bool:
        with sidecar.bare() as bare:
            return bare.unary(echo(), sidecar.headers()).code == "OK"

    eventually(served, what="keys that are believed", within_s=60)


def shipped(sidecar: Sidecar, seen: dict[str, str]) -> None:
    def stored() -> bool:
        return {record["call_id"] for record in sidecar.search(reveal=False, limit=1000)} >= {*seen.values()}

    eventually(stored, what="every call in the database", within_s=60)
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="nothing left to ship", within_s=60)


def judge(sidecar: Sidecar, seen: dict[str, str]) -> None:
    records = {record["call_id"]: record for record in sidecar.search(limit=1000)}
    assert {name: records[call]["outcome"] for name, call in seen.items()} == {
        "before": "completed", "amid": "completed", "after": "completed", "refused": "refused", "cut off": "aborted",
        "restarted": "completed", "right again": "completed",
    }  # fmt: skip
    amid = records[seen["amid"]]
    assert 500 < amid["duration_ms"] < 60_000, "how long a call took is not the wall clock's to say"
    assert 0 < amid["ttft_ms"] < 60_000
    assert amid["output"] == "".join(f"word{n} " for n in range(40))
    assert records[seen["cut off"]]["output"].startswith("word0 word1 ")
    earlier = {record["call_id"] for record in sidecar.search(until=datetime.now(UTC) - timedelta(seconds=HOUR / 2))}
    assert earlier >= {seen["after"], seen["refused"], seen["cut off"], seen["restarted"]}
    assert not earlier & {seen["before"], seen["amid"], seen["right again"]}
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify", "--config", str(sidecar.stack.config)]
    verified = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert verified.returncode == 0, verified.stdout
