"""Copies of a journal that is gone become records: each call once, whoever comes back, dies midway or asks twice."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from audit.copying import CopyTo
from audit.files import OsFiles
from audit.journal import Journal, close_all
from audit.objects import LocalObjects
from audit.reassembly import journals_in
from audit.record import Admitted, Entry, Output
from audit.segments import Origin
from sidecar.cli.evidence import app as audit_app
from sidecar.cli.journal import app as journal_app
from sidecar.core.model import Secret
from sidecar.runtime.journals import open_journals
from sidecar.runtime.settings import load
from tests.integration.audit.test_ship_process import SMALL, shipping, write, write_config
from tests.support.postgres import Server, prepare, query
from tests.support.store import ROOT, completed, event, facts, refused, settled, wait_until

pytestmark = pytest.mark.integration
BOTH = ("EU", "US")


class Pod:
    """A configuration, a store, and a journal that comes and goes."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.directory, self.dsn = directory, dsn
        self.copies = directory / "copies"
        self.copies.mkdir()
        self.config = write_config(directory, dsn)
        text = self.config.read_text()
        copy = f"copy: {{outside: {{directory: {self.copies}, jurisdiction: EU, same_volume: true}}}}"
        self.config.write_text(text.replace("key_file: journal.key}", f"key_file: journal.key, {copy}}}", 1))

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @contextmanager
    def opened(self) -> Iterator[Journal]:
        journal = Journal.open(
            self.journal, Secret(ROOT), Origin("pod-1", "eu-west-1", "EU"), SMALL, random=secrets.token_bytes,
            wall_ns=time.time_ns, monotonic=time.monotonic, copies={"outside": CopyTo(LocalObjects(self.copies))},
        )  # fmt: skip
        assert isinstance(journal, Journal), journal
        try:
            yield journal
        finally:
            journal.close()

    def copied(self, *entries: Entry) -> None:
        """Written, copied, and then the node is gone with all that was on it."""
        with self.opened() as journal:
            write(journal, list(entries))
            assert journal.copied().result(60) is None
        shutil.rmtree(self.journal)

    def imported(self, *more: str, code: int = 0) -> list[dict[str, Any]]:
        done = CliRunner().invoke(journal_app, ["import", "--config", str(self.config), "--json", *more])
        assert done.exit_code == code, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def outcomes(self) -> dict[str, str]:
        """Of each call, which must be there once."""
        rows = query(self.dsn, "SELECT call_id, outcome FROM warden.audit_calls")
        assert len({row[0] for row in rows}) == len(rows)
        return {str(call_id): str(outcome) for call_id, outcome in rows}

    def events(self) -> dict[str, int]:
        rows = query(self.dsn, "SELECT kind, count(*) FROM warden.audit_events GROUP BY kind")
        return {str(kind): int(count) for kind, count in rows}

    def verified(self) -> dict[str, Any]:
        done = CliRunner().invoke(audit_app, ["verify", "--json", "--jobs", "1", "--config", str(self.config)])
        assert done.exit_code == 0, (done.output, done.exception)
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@pytest.fixture
def pod(dsn: str, tmp_path: Path) -> Pod:
    return Pod(tmp_path, dsn)


def calls_of(store: str, number: int) -> list[Entry]:
    """Whole calls, whose records the database of ``store`` keeps."""
    return [put_for(entry, store) for _ in range(number) for entry in completed()]


def put_for(entry: Entry, store: str) -> Entry:
    name = "" if store == "EU" else store
    if isinstance(entry, Admitted):
        return Admitted(msgspec.structs.replace(entry.call, store=name))
    return msgspec.structs.replace(entry, store=name)


@contextmanager
def both_opened(config: Path) -> Iterator[dict[str, Journal]]:
    journals = open_journals(load(config), Origin("pod-1", "eu-west-1", "EU"), OsFiles())
    assert isinstance(journals, dict), journals
    try:
        yield {"EU": journals.get("EU") or journals[""], "US": journals["US"]}
    finally:
        assert close_all(journals.values()) == []


def under_way() -> tuple[str, list[Entry]]:
    """A call that a crash cuts off after some output."""
    call = facts()
    return call.call_id, [Admitted(call), Output(call.call_id, call.started_ns + 1_000_000, 0, [b"so far"])]


def test_a_lost_journal_becomes_records_once_and_its_logs_are_closed(pod: Pod) -> None:
    open_id, open_entries = under_way()
    done = [entry for _ in range(20) for entry in completed()]
    pod.copied(*done, *open_entries, refused(), event("posture"))
    (told,) = pod.imported()
    assert (told["state"], told["sidecar"], told["aborted"], told["faults"]) == ("stored", "pod-1", 1, [])
    outcomes = pod.outcomes()
    assert sorted(outcomes.values()) == ["aborted", *["completed"] * 20, "refused"]
    assert outcomes[open_id] == "aborted"
    ((nbytes,),) = query(pod.dsn, f"SELECT output_bytes FROM warden.audit_calls WHERE call_id = '{open_id}'")
    assert nbytes == len(b"so far")
    assert told["records"] == 23
    assert told["closed"] == [told["log"]]
    (again,) = pod.imported()
    assert (again["records"], again["aborted"], again["open"]) == (0, 0, [])
    shutil.rmtree(pod.journal)  # a further pod, that has never heard of it
    (further,) = pod.imported()
    assert (further["records"], further["aborted"]) == (0, 0)
    assert pod.outcomes() == outcomes
    assert pod.verified()["uncopied"] == []


def test_verify_names_sidecars_at_work_that_copy_nothing(pod: Pod) -> None:
    with pod.opened() as journal, shipping(pod.config) as shipper:
        write(journal, [event("journal_opened", copied_to="s3://b"), event("journal_opened", copied_to="")])
        wait_until(lambda: pod.events().get("journal_opened") == 2)
        shipper.kill()
        shipper.wait(30)
    ((log,),) = query(pod.dsn, "SELECT log FROM warden.audit_logs WHERE log <> 'fleet'")
    assert pod.verified()["uncopied"] == [log]


def test_what_was_shipped_before_is_not_stored_again_and_the_old_log_is_closed(pod: Pod) -> None:
    open_id, open_entries = under_way()
    with pod.opened() as journal:
        write(journal, [*completed(), *open_entries, *completed()])
        with shipping(pod.config) as shipper:
            wait_until(lambda: len(pod.outcomes()) == 2)
            shipper.kill()
            shipper.wait(30)
        write(journal, completed())
        assert journal.copied().result(60) is None
    shutil.rmtree(pod.journal)
    ((old,),) = query(pod.dsn, "SELECT log FROM warden.audit_logs WHERE log <> 'fleet'")
    (told,) = pod.imported()
    assert told["records"] == 2
    assert sorted(told["closed"]) == sorted([told["log"], old])
    assert sorted(pod.outcomes().values()) == ["aborted", "completed", "completed", "completed"]
    assert pod.outcomes()[open_id] == "aborted"
    ((closed,),) = query(pod.dsn, f"SELECT closed_at IS NOT NULL FROM warden.journal_cursors WHERE log = '{old}'")
    assert closed is True
    assert pod.verified()["ok"] is True


def test_the_lost_pod_that_comes_back_ships_what_was_never_copied_and_nothing_twice(pod: Pod, tmp_path: Path) -> None:
    call = facts()
    with pod.opened() as journal:
        write(journal, [*completed(), Admitted(call)])
        assert journal.copied().result(60) is None
    shutil.move(pod.journal, tmp_path / "away")
    (told,) = pod.imported()
    assert (told["records"], told["aborted"]) == (2, 1)
    shutil.rmtree(pod.journal)
    shutil.move(tmp_path / "away", pod.journal)  # it was only cut off, and had gone on
    later = completed()
    with pod.opened() as journal:
        write(journal, [settled(call, b"the end"), *later])
        with shipping(pod.config) as shipper:
            wait_until(lambda: len(pod.outcomes()) == 3)
            wait_until(lambda: pod.events().get("settled_without_admission") == 1)
            shipper.send_signal(signal.SIGTERM)
            assert shipper.wait(30) == 0
    assert pod.outcomes()[call.call_id] == "aborted"
    assert sorted(pod.outcomes().values()) == ["aborted", "completed", "completed"]
    assert pod.verified()["ok"] is True


def test_an_import_that_is_killed_again_and_again_ends_exactly_once(pod: Pod) -> None:
    entries = [entry for _ in range(800) for entry in completed()]
    cut = [under_way() for _ in range(1200)]
    command = [sys.executable, "-m", "sidecar.cli.main", "journal", "import", "--config", str(pod.config)]
    pod.copied(*entries, *(entry for _, each in cut for entry in each))
    for n in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = len(pod.outcomes())
        wait_until(lambda process=process, before=before: process.poll() is not None or len(pod.outcomes()) > before)
        process.kill()
        process.wait(30)
        if n == 1:
            shutil.rmtree(pod.journal)  # the next one begins a log of its own
    pod.imported()
    outcomes = list(pod.outcomes().values())
    assert (outcomes.count("completed"), outcomes.count("aborted"), len(outcomes)) == (800, 1200, 2000)
    pod.verified()


def test_a_hole_in_the_copies_is_named_and_what_is_behind_it_stored(pod: Pod) -> None:
    first, second, third = completed(), completed(), completed()
    with pod.opened() as journal:
        for entries in (first, second, third):
            write(journal, entries)
            assert journal.copied().result(60) is None
    shutil.rmtree(pod.journal)
    pieces = sorted(path for path in pod.copies.rglob("*-*") if path.is_file())
    assert len(pieces) == 3
    pieces[1].unlink()
    (told,) = pod.imported()
    assert told["state"] == "stored"
    assert sorted(pod.outcomes().values()) == ["completed", "completed"]
    assert pod.events()["journal_gap"] == 1
    pod.verified()


def test_what_may_not_be_imported_is_passed_over_with_a_word(pod: Pod) -> None:
    with pod.opened() as journal:
        write(journal, completed())
        assert journal.copied().result(60) is None
        (own,) = pod.imported()
        assert own["state"] == "own"
    beat = next(path for path in pod.copies.rglob("alive"))
    beat.write_text(beat.read_text().replace('"stopped":true', '"stopped":false'))
    shutil.rmtree(pod.journal)
    (alive,) = pod.imported(code=1)
    assert (alive["state"], pod.outcomes()) == ("alive", {})
    other = pod.directory / "other.key"
    other.touch(mode=0o600)
    other.write_bytes(os.urandom(32))
    (sealed,) = pod.imported("--lost", "--key-file", str(other), code=1)
    assert sealed["state"] == "failed"
    assert "sealed under root key" in sealed["detail"]
    assert pod.imported("--lost")[0]["state"] == "stored"
    assert pod.imported("--journal", "0" * 32, code=1) == []
    pod.imported("--from", str(pod.directory / "nowhere"), code=2)


def test_a_store_that_is_away_is_named_and_nothing_is_cut_off_that_it_may_know_the_end_of(pod: Pod) -> None:
    """What the other store holds without a hole is stored; the rest, and no call's end by guess, once both answer."""
    other, text = pod.directory / "other", pod.config.read_text()
    more = f"copy: {{other: {{directory: {other}, jurisdiction: EU, same_volume: true}}, "
    pod.config.write_text(text.replace("copy: {", more, 1))
    call = facts()
    with pod.opened() as journal:
        for entries in (completed(), completed(), [*completed(), Admitted(call)]):
            write(journal, entries)
            assert journal.copied().result(60) is None
        shutil.copytree(pod.copies, other)
        write(journal, [settled(call, b"the end"), *completed()])
        assert journal.copied().result(60) is None
    shutil.rmtree(pod.journal)
    away = pod.copies.rename(pod.directory / "away")
    told, named = pod.imported("--lost", code=1)
    assert (told["state"], told["records"], told["aborted"], told["closed"]) == ("partial", 3, 0, [])
    assert (named["state"], named["store"]) == ("away", "outside")
    assert "No such file" in named["detail"]
    assert pod.outcomes().keys() & {call.call_id} == set()
    away.rename(pod.copies)
    (whole,) = pod.imported("--lost")
    assert (whole["state"], whole["records"], whole["aborted"]) == ("stored", 2, 0)
    assert [*pod.outcomes().values()] == ["completed"] * 5
    assert pod.verified()["ok"] is True


def test_a_hole_that_a_store_that_is_away_may_fill_is_left_to_it(pod: Pod) -> None:
    other, text = pod.directory / "other", pod.config.read_text()
    more = f"copy: {{other: {{directory: {other}, jurisdiction: EU, same_volume: true}}, "
    pod.config.write_text(text.replace("copy: {", more, 1))
    with pod.opened() as journal:
        for _ in range(3):
            write(journal, completed())
            assert journal.copied().result(60) is None
    shutil.rmtree(pod.journal)
    shutil.copytree(pod.copies, other)
    sorted(path for path in other.rglob("*-*") if path.is_file())[1].unlink()
    away = pod.copies.rename(pod.directory / "away")
    told, _ = pod.imported(code=1)
    assert (told["state"], told["records"]) == ("partial", 1)
    away.rename(pod.copies)
    assert pod.imported()[0]["records"] == 2
    assert "journal_gap" not in pod.events()
    for store in (pod.copies, other):
        shutil.rmtree(store)
    pod.imported(code=3)


def two_databases(directory: Path, name: str, eu: str, us: str, copies: Path) -> Path:
    """A configuration of a pod of that name; the stores are there for both databases."""
    stores = {each: {"directory": str(copies / each), "jurisdiction": each, "same_volume": True} for each in BOTH}
    for each in ("journal.key", "us/root.key"):
        path = directory / each
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(ROOT if each == "journal.key" else b"u" * 32)
    audit: dict[str, Any] = {
        "journal": {"directory": "journal", "key_file": "journal.key", "copy": {"outside": stores["EU"]}},
        "database": {"dsn": eu, "jurisdiction": "EU"},
        "keys": {"directory": str(copies.parent / "keys/EU")},
        "databases": {
            "US": {
                "dsn": us,
                "key_file": "us/root.key",
                "keys": {"directory": str(copies.parent / "keys/US")},
                "copy": {"outside": stores["US"]},
            },
        },
    }
    path = directory / "warden.yaml"
    sidecar = {"name": name, "region": "eu-west-1"}
    path.write_text(json.dumps({"sidecar": sidecar, "policy": {"bundle": "bundle"}, "identity": {}, "audit": audit}))
    return path


def test_an_import_into_two_databases_is_killed_and_the_pod_comes_back_beside_the_next(
    dsn: str, postgres: Server, tmp_path: Path
) -> None:
    """Each record once, in its database, wherever the import was killed and whoever of the two is first."""
    databases = {"EU": dsn, "US": postgres.create_database()}
    prepare(databases["US"], jurisdiction="US")
    for each in ("pod", "elsewhere", "copies/EU", "copies/US"):
        (tmp_path / each).mkdir(parents=True)
    config = two_databases(tmp_path / "pod", "pod-1", *databases.values(), tmp_path / "copies")
    elsewhere = two_databases(tmp_path / "elsewhere", "pod-2", *databases.values(), tmp_path / "copies")
    command = [sys.executable, "-m", "sidecar.cli.main", "journal", "import", "--lost", "--config", str(elsewhere)]
    expected: dict[str, set[str]] = {each: set() for each in BOTH}
    cut = {each: [facts(store="" if each == "EU" else each) for _ in range(100)] for each in BOTH}

    def stored(each: str) -> list[str]:
        return [str(row[0]) for row in query(databases[each], "SELECT call_id FROM warden.audit_calls")]

    def put_in(journals: dict[str, Journal], each: str, entries: list[Entry]) -> None:
        write(journals[each], entries)
        expected[each] |= {entry.call.call_id for entry in entries if isinstance(entry, Admitted)}

    with both_opened(config) as journals:
        for each, calls in cut.items():
            put_in(journals, each, [*calls_of(each, 100), *map(Admitted, calls)])
            assert journals[each].copied().result(60) is None
    shutil.move(tmp_path / "pod/journal", tmp_path / "volume")

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    enough = secrets.randbelow(300)
    wait_until(lambda: process.poll() is not None or sum(len(stored(each)) for each in BOTH) > enough)
    process.kill()
    process.wait(30)

    shutil.move(tmp_path / "volume", tmp_path / "pod/journal")
    with both_opened(config) as journals, shipping(config) as shipper:
        for each, calls in cut.items():
            ends = [put_for(settled(call, b"the end"), each) for call in calls]
            put_in(journals, each, [*ends, *calls_of(each, 20)])
        again = CliRunner().invoke(journal_app, ["import", "--lost", "--config", str(elsewhere)])
        assert again.exit_code in (0, 1), again.output  # 1: a log that the pod writes is not closed
        wait_until(lambda: all(set(stored(each)) == expected[each] for each in BOTH))
        shipper.send_signal(signal.SIGTERM)
        assert shipper.wait(30) == 0
    for each in BOTH:
        assert sorted(stored(each)) == sorted(expected[each])
        sound = "SELECT count(*) FROM warden.audit_events WHERE kind IN ('journal_gap', 'journal_fault')"
        assert query(databases[each], sound) == [(0,)]


def test_copies_are_deleted_once_they_are_stored_and_old(pod: Pod) -> None:
    pod.copied(*completed())
    assert pod.imported()[0]["deleted"] is False
    old = time.time() - 90_000
    for path in pod.copies.rglob("*"):
        os.utime(path, (old, old))
    assert pod.imported()[0]["deleted"] is True
    assert journals_in(LocalObjects(pod.copies)) == []
    assert len(pod.outcomes()) == 1


def test_a_database_that_stays_away_is_given_up_and_nothing_is_lost(pod: Pod) -> None:
    pod.copied(*completed())
    good = pod.config.read_text()
    pod.config.write_text(good.replace(pod.dsn, "postgresql://nobody@127.0.0.1:1/none"))
    (told,) = pod.imported("--patience", "1s", code=1)
    assert told["state"] == "failed"
    assert "given up after 1 s" in told["detail"]
    pod.config.write_text(good)
    assert pod.imported()[0]["records"] == 1
