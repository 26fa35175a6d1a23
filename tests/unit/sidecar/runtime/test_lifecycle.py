"""One sidecar without a wire: how it starts, what it tells, what it leaves in its journal."""

from __future__ import annotations

import json
import logging
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from audit.follow import Follower
from audit.journal import FaultKind, JournalFault
from audit.record import Event, decode
from audit.recorder import JournalRecorder
from audit.seal import load_root_key
from sidecar.cli.demo.ports import free_ports
from sidecar.core.model import Denial, Secret
from sidecar.core.reasons import Reason
from sidecar.runtime import lifecycle
from sidecar.runtime.compose import StartError
from sidecar.runtime.lifecycle import Sidecar
from sidecar.runtime.settings import load
from tests.support.config import write
from tests.support.policy import DEMO_BUNDLE
from tests.support.store import wait_until
from tests.support.telemetry import recorded

NO_AUDIT = Denial(Reason.AUDIT_UNAVAILABLE, internal="disk full")
WAITS = (("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.02; done"), {"PATH": "/usr/bin:/bin"})


@dataclass
class Running:
    """A started sidecar and where its admin server listens."""

    sidecar: Sidecar
    admin: int
    directory: Path

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def metric(self, name: str) -> str:
        (line,) = [line for line in self.ask("/metrics")[1].splitlines() if line.startswith(name)]
        return line.rpartition(" ")[2]

    def events(self) -> list[Event]:
        """Those of its journal, once it has stopped."""
        root = load_root_key(self.directory / "keys" / "journal.key")
        assert isinstance(root, Secret)
        follower = Follower(self.directory / "journal", root, sequence=0)
        try:
            found = [decode(data) for _, data, _ in follower]
        finally:
            follower.close()
        return [entry for entry in found if isinstance(entry, Event)]


STARTED_AND_STOPPED = ["journal_opened", "sidecar_started", "bundle_loaded", "sidecar_stopped"]


def kinds(events: list[Event]) -> list[str]:
    """But for the issuer's keys, which its own thread tells of whenever it has them."""
    return [event.kind for event in events if event.kind != "issuer_keys_changed"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(**changes: Any) -> Running:
        grpc, admin, triton = free_ports(3)
        listen = {"grpc": f"127.0.0.1:{grpc}", "admin": f"127.0.0.1:{admin}"}
        path = write(tmp_path, listen=listen, triton={"grpc": f"127.0.0.1:{triton}"}, **changes)
        sidecar = Sidecar(load(path), WAITS)
        sidecar._probe._every = 0.01
        sidecar.start()
        running.append(Running(sidecar, admin, tmp_path))
        return running[-1]

    yield start
    for each in running:
        if not each.sidecar._stopping.is_set():
            each.sidecar.stop()
        each.sidecar._probe.stop()
        each.sidecar.rooms.jwks_refresher.stop()


def test_a_sidecar_without_triton_lives_and_is_not_ready(start: Callable[..., Running]) -> None:
    running = start()
    assert running.ask("/livez")[0] == 200
    status, told = running.ask("/readyz")
    assert status == 503
    assert not running.sidecar.is_ready()
    assert "upstream" in told
    assert running.metric("warden_upstream_up") == "0.0"
    assert float(running.metric("warden_buffer_limit_bytes")) == 2**30


def test_a_sidecar_is_ready_with_triton_and_no_more_once_it_drains(start: Callable[..., Running]) -> None:
    running = start()
    running.sidecar._probe.stop()
    running.sidecar._probe.ready = True
    assert running.ask("/readyz")[0] == 503  # nobody has said yet what the models are
    running.sidecar._learner.asked = True
    assert running.ask("/readyz")[0] == 200
    assert running.sidecar.services.ready()
    running.sidecar.drain.run()
    assert running.ask("/readyz")[0] == 503
    assert not running.sidecar.is_ready()
    assert running.metric("warden_draining") == "1.0"


def test_the_journal_says_what_was_in_force_and_how_it_ended(start: Callable[..., Running]) -> None:
    running = start()
    digest = running.sidecar.rooms.policies.current().digest
    running.sidecar.stop()
    events = running.events()
    assert kinds(events) == STARTED_AND_STOPPED
    assert events[2].detail == {
        "digest": digest, "previous": "", "mode": "enforce", "changes": "", "source": str(DEMO_BUNDLE),
    }  # fmt: skip


def test_stopping_ends_the_shipper_and_frees_the_journal_and_the_port(start: Callable[..., Running]) -> None:
    first = start()
    wait_until(lambda: first.sidecar._shipper._process is not None)
    first.sidecar.stop()
    process = first.sidecar._shipper._process
    assert process is not None
    assert process.returncode is not None
    second = start()
    assert second.ask("/livez")[0] == 200


def test_a_changed_bundle_is_taken_up_and_recorded(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RELOAD", 0.02)
    bundle = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    running = start(policy={"bundle": "bundle"})
    policies = running.sidecar.rooms.policies
    before = policies.current().digest
    models = bundle / "models.yaml"
    good = models.read_text()
    models.write_text(good + "\nsurprise: [")
    wait_until(lambda: 'warden_bundle_loads_total{result="failure"} 1.0' in running.ask("/metrics")[1], seconds=90)
    assert policies.current().digest == before
    models.write_text(good + "\n# a change\n")
    wait_until(lambda: policies.current().digest != before, seconds=90)
    wait_until(lambda: 'warden_bundle_loads_total{result="success"} 2.0' in running.ask("/metrics")[1], seconds=90)
    running.sidecar.stop()
    loads = [event.detail for event in running.events() if event.kind == "bundle_loaded"]
    assert [load["previous"] for load in loads] == ["", before]
    assert loads[1]["changes"] == "files: ~models.yaml"


def whole(path: Path, text: str) -> None:
    """As the kubelet writes it: nobody reads half of it, which would be one more doubt."""
    partial = path.with_name(f"{path.name}.new")
    partial.write_text(text)
    partial.replace(path)


def test_doubt_where_it_is_closes_the_sidecar_until_it_passes(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RELOAD", 0.02)
    running = start()
    labels, policies = tmp_path / "node-labels", running.sidecar.rooms.policies
    good = labels.read_text()
    whole(labels, good.replace("eu-west-1", "us-east-1"))
    wait_until(lambda: policies.current().place.doubt)
    running.sidecar._probe.ready = running.sidecar._learner.asked = True
    assert not running.sidecar.is_ready()
    told = json.loads(running.ask("/readyz")[1])
    assert "us-east-1" in str(told)
    assert running.metric("warden_location_certain") == "0.0"
    whole(labels, good)
    wait_until(lambda: not policies.current().place.doubt)
    assert running.metric("warden_location_certain") == "1.0"
    running.sidecar.stop()
    located = [(event.kind, bool(event.detail["doubt"])) for event in running.events() if "location" in event.kind]
    assert located == [("location_doubted", True), ("location_agreed", False)]


def test_a_refused_bundle_is_told_where_one_looks(
    start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RELOAD", 0.02)
    bundle = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    running = start(policy={"bundle": "bundle"})
    assert running.metric("warden_bundle_refused") == "0.0"
    plans = bundle / "plans.yaml"
    good = plans.read_text()
    plans.write_text(good.replace("burst: 400", "burst: 0"))
    wait_until(lambda: running.metric("warden_bundle_refused") == "1.0", seconds=90)
    assert "plans.yaml:3" in running.ask("/readyz")[1]
    plans.write_text(good)
    wait_until(lambda: running.metric("warden_bundle_refused") == "0.0", seconds=90)
    assert "plans.yaml" not in running.ask("/readyz")[1]


def test_a_load_that_met_a_full_disk_is_recorded_at_a_later_look(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RELOAD", 0.02)
    written, refusals = JournalRecorder.tell, [NO_AUDIT]

    def tell(self: JournalRecorder, store: str, kind: str, *args: Any) -> Denial | None:
        return refusals.pop() if kind == "bundle_loaded" and refusals else written(self, store, kind, *args)

    monkeypatch.setattr(JournalRecorder, "tell", tell)
    running = start()
    wait_until(lambda: not running.sidecar._policy._in_force._loads)
    assert running.metric("warden_unrecorded_entries_total") == "1.0"
    running.sidecar.stop()
    assert kinds(running.events()) == STARTED_AND_STOPPED


def test_a_port_in_use_is_a_start_error(start: Callable[..., Running], tmp_path: Path) -> None:
    first = start()
    other = tmp_path / "other"
    other.mkdir()
    path = write(other, listen={"admin": f"127.0.0.1:{first.admin}"})
    sidecar = Sidecar(load(path), WAITS)
    try:
        with pytest.raises(StartError, match=r"listen\.admin"):
            sidecar.start()
    finally:
        assert sidecar.rooms.journal.close() is None


def test_a_crashed_call_and_a_cut_off_client_are_counted(start: Callable[..., Running]) -> None:
    running = start()
    running.sidecar.services.crashed("call-1", ZeroDivisionError("secret"))
    running.sidecar.services.cut_off("MEMORY_TENSOR")
    assert running.metric("warden_internal_errors_total") == "1.0"
    assert running.metric("warden_clients_cut_off_total") == "1.0"


@pytest.mark.parametrize(("mode", "waits"), [("enforce", True), ("observe", False)])
def test_in_mode_observe_no_call_waits_for_the_disk_and_what_is_not_durable_is_counted(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, mode: str, *, waits: bool
) -> None:
    running, answer = start(mode=mode), Future[Denial | None]()
    monkeypatch.setattr(JournalRecorder, "durable", lambda *_: answer)
    told = running.sidecar.services.durable(recorded())
    assert told is (answer if waits else None)
    answer.set_result(NO_AUDIT)
    assert running.metric("warden_unrecorded_entries_total") == ("0.0" if waits else "1.0")


def test_what_the_journal_turns_to_is_logged_once_with_why(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warden.lifecycle")
    running = start()
    journal = running.sidecar.rooms.journal
    full = journal._headroom
    monkeypatch.setattr(journal, "measure", lambda: None)
    monkeypatch.setattr(journal, "mend", lambda: None)

    def told() -> list[tuple[str, object]]:
        found = [entry for entry in caplog.records if entry.getMessage() == "journal.state"]
        return [(str(entry.__dict__["warden"]["state"]), entry.__dict__["warden"]["detail"]) for entry in found]

    journal._headroom = 0
    wait_until(lambda: len(told()) == 1)
    journal._headroom = full
    wait_until(lambda: len(told()) == 2)
    with journal._lock:
        journal._fail(JournalFault(FaultKind.IO, "the disk is gone"))
    wait_until(lambda: len(told()) == 3)
    running.sidecar._journals.tell()
    assert told() == [("full", None), ("ok", None), ("faulted", "the disk is gone")]


def test_a_fault_of_one_sweep_does_not_end_the_sweeping(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []

    def sweep(_: object) -> None:
        swept.append(len(swept))
        if len(swept) == 1:
            raise ZeroDivisionError

    running = start()
    monkeypatch.setattr(running.sidecar.rooms.governor, "sweep", sweep)
    wait_until(lambda: len(swept) >= 3)
    assert running.metric("warden_internal_errors_total") == "1.0"


def test_a_fault_of_what_is_told_of_the_journal_does_not_keep_output_from_it(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[object] = []

    def mended() -> tuple[()]:
        raise ZeroDivisionError

    running = start()
    monkeypatch.setattr(running.sidecar.rooms.recorder, "mended", mended)
    monkeypatch.setattr(running.sidecar.rooms.governor, "sweep", swept.append)
    wait_until(lambda: float(running.metric("warden_internal_errors_total")) >= 2)
    wait_until(lambda: len(swept) >= 2)


def test_readiness_tells_each_check_for_operators(start: Callable[..., Running]) -> None:
    running = start()
    _, told = running.ask("/readyz")
    checks = json.loads(told) if told.startswith("{") else told
    for name in ("upstream", "models", "journal", "draining", "bundle", "mode", "jwks https://issuer.example"):
        assert name in str(checks)
