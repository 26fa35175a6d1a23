"""warden journal: reads beside a running writer, shows no content, and says what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit import record
from audit.journal import Journal, write_shipped
from audit.rootkeys import RootKeys
from audit.segments import segments_in
from sidecar.cli.journal import app
from sidecar.telemetry.exposition import AdminServer, Check
from sidecar.telemetry.instruments import PrometheusInstruments, registry
from tests.support import telemetry
from tests.support.journal import ROOT, crash, open_journal

CONFIG = """
sidecar: {name: pod-1, region: eu-west-1}
policy: {bundle: bundle}
identity: {}
audit:
  journal: {directory: journal, key_file: root.key, min_free: 1B}
  database: {dsn: "postgresql://nowhere/", jurisdiction: EU}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "warden.yaml").write_text(CONFIG)
    (tmp_path / "root.key").write_bytes(ROOT.reveal())
    (tmp_path / "root.key").chmod(0o600)
    return tmp_path


@pytest.fixture
def journal(place: Path) -> Iterator[Journal]:
    journal = open_journal(place / "journal")
    prompt = record.Content(6, b"d" * 32, [b"sec", b"ret"])
    facts = record.CallFacts("call-1", 1, 2, "/m", tenant="acme", model="chat", prompt=prompt)
    for entry in (
        record.Admitted(facts),
        record.Output("call-1", 3, 0, [b"\xff"]),
        record.Refused(facts, "RATE_REQUESTS", 8),
        record.Event("e", 4, "drain"),
    ):
        assert isinstance(journal.append(record.encode(entry)), int)
    assert isinstance(journal.append(b"no entry"), int)
    yield journal
    journal.close()


def run(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(app, list(arguments))
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return result.exit_code, lines, result.output


@contextmanager
def sidecar(place: Path, check: Check | None) -> Iterator[None]:
    """The admin port of the configuration, on which a sidecar says ``check`` of its journal (None: nothing)."""
    checks = {} if check is None else {"journal": check}
    made = registry(PrometheusInstruments(telemetry.METHODS))
    server = AdminServer("127.0.0.1:0", made, lambda: checks, lambda: checks)
    server.start()
    try:
        (place / "warden.yaml").write_text(f"{CONFIG}listen: {{admin: '127.0.0.1:{server.port}'}}\n")
        yield
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("check", "code", "state"),
    [
        (Check(ok=True), 0, "ok"),
        (Check(ok=False, detail="pwrite: no space left"), 1, "refusing"),
        (None, 3, "unknown"),
    ],
)
def test_status_is_what_the_running_sidecar_says(
    place: Path, journal: Journal, check: Check | None, code: int, state: str
) -> None:
    with sidecar(place, check):
        got, (found,), _ = run("status", "--json", "--config", str(place / "warden.yaml"))
        _, _, text = run("status", "--config", str(place / "warden.yaml"))
    assert (got, found["state"]) == (code, state)
    assert f"state {state}" in text
    if check is not None:
        assert found["detail"] == check.detail
        assert check.detail in text


def test_status_of_a_sidecar_that_does_not_answer_is_unknown(place: Path, journal: Journal) -> None:
    (place / "warden.yaml").write_text(f"{CONFIG}listen: {{admin: '127.0.0.1:1'}}\n")
    code, (found,), _ = run("status", "--json", "--config", str(place / "warden.yaml"))
    assert (code, found["state"]) == (3, "unknown")
    assert "127.0.0.1:1/readyz" in found["detail"]


def test_a_journal_that_nobody_writes_is_judged_by_its_space(place: Path, journal: Journal) -> None:
    journal.close()
    assert run("status", "--config", str(place / "warden.yaml"))[0] == 0
    (place / "warden.yaml").write_text(CONFIG.replace("min_free: 1B", "min_free: 8000TiB"))
    code, (found,), _ = run("status", "--json", "--config", str(place / "warden.yaml"))
    assert (code, found["state"], found["writer"]) == (1, "full", None)


def test_status_tells_what_waits_since_when_and_why(place: Path, journal: Journal) -> None:
    journal.close()
    config = str(place / "warden.yaml")
    _, (found,), text = run("status", "--json", "--config", config)
    assert found["ship"] is None
    report = {"lag_records": 7, "oldest_unshipped_at": 0.5, "last_error": "connection refused", "database_up": False}
    (place / "journal" / "ship.json").write_text(json.dumps({"databases": {"EU": report, "US": {}}}))
    _, (found,), _ = run("status", "--json", "--config", config)
    assert set(found["ship"]) == {"EU", "US"}
    assert found["ship"]["EU"] == {
        "database_up": False, "shipped": 0, "waiting": 7, "oldest_at": "1970-01-01T00:00:00.500000+00:00",
        "last_error": "connection refused", "poisoned": 0,
    }  # fmt: skip
    text = " ".join(run("status", "--config", config)[2].split())
    assert "EU: about 7 records wait since 1970-01-01T00:00:00.500000+00:00" in text
    assert "last error: connection refused" in text


def test_status_beside_a_running_writer(place: Path, journal: Journal) -> None:
    write_shipped(place / "journal", 1)
    with sidecar(place, Check(ok=True)):
        code, (found,), _ = run("status", "--json", "--config", str(place / "warden.yaml"))
        _, _, text = run("status", "--config", str(place / "warden.yaml"))
    assert code == 0
    assert (found["state"], found["shipped"], found["writer"]) == ("ok", 1, os.getpid())
    assert found["journal"] == journal.identity
    (segment,) = found["segments"]
    assert (segment["first"], segment["region"], segment["bytes"]) == (0, "eu-west-1", journal.nbytes)
    assert isinstance(journal.append(b"the lock was not taken"), int)
    assert journal.identity in text


def test_inspect_shows_frames_and_no_content(place: Path, journal: Journal) -> None:
    code, rows, text = run("inspect", str(place / "journal"), "--json", "--config", str(place / "warden.yaml"))
    assert code == 0
    assert [(row["sequence"], row["kind"], row["call_id"]) for row in rows] == [
        (0, "admitted", "call-1"), (1, "output", "call-1"), (2, "refused", "call-1"), (3, "event", None),
        (4, "unreadable", None),
    ]  # fmt: skip
    assert "secret" not in text
    assert rows[2]["reason"] == "RATE_REQUESTS"
    assert journal.state == "ok"


def test_inspect_reveals_to_nobody(place: Path, journal: Journal) -> None:
    """Who looks at content, and why, must be on record: only the database can do that."""
    code, rows, text = run(
        "inspect", str(place / "journal"), "--json", "--reveal", "--key-file", str(place / "root.key")
    )
    assert (code, rows) == (2, [])
    assert "--reveal" in text


def test_inspect_says_what_is_torn_and_what_is_damaged(place: Path, journal: Journal) -> None:
    crash(journal)
    segment = next((place / "journal").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data[:-3])
    code, rows, text = run("inspect", str(segment), "--json", "--key-file", str(place / "root.key"))
    assert code == 1
    assert [row["kind"] for row in rows if row["kind"] in ("damaged", "torn")] == ["damaged", "torn"]
    code, _, text = run("inspect", str(segment), "--key-file", str(place / "root.key"))
    assert (code, "torn" in text) == (1, True)


def test_a_damaged_segment_makes_status_say_no(place: Path, journal: Journal) -> None:
    crash(journal)
    segment = next((place / "journal").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    open_journal(place / "journal").close()
    code, (found,), _ = run("status", "--json", "--config", str(place / "warden.yaml"))
    assert (code, found["damaged"], found["writer"]) == (1, [segment.name], None)


@pytest.mark.parametrize("path", ["absent", "root.key"])
def test_what_is_no_segment_is_named(place: Path, journal: Journal, path: str) -> None:
    code, rows, text = run("inspect", str(place / path), "--key-file", str(place / "root.key"))
    assert code in (1, 2)
    assert rows == []
    assert str(place / path) in text


def test_another_key_is_said(place: Path, journal: Journal) -> None:
    (place / "other.key").write_bytes(b"z" * 32)
    (place / "other.key").chmod(0o600)
    code, _, text = run("inspect", str(place / "journal"), "--key-file", str(place / "other.key"))
    assert code == 2
    assert "root key" in text


def test_a_directory_that_is_not_there_is_a_missing_dependency(place: Path) -> None:
    code, _, text = run("status", "--config", str(place / "warden.yaml"))
    assert code == 3
    assert "journal" in text


# --- root keys ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rotating(place: Path, journal: Journal) -> Path:
    """A journal of some entries under the key file, whose root keys can be renewed."""
    text = CONFIG.replace("key_file: root.key", "key_file: root.key, keys_directory: roots")
    (place / "warden.yaml").write_text(text)
    assert journal.close() is None
    return place


def keys(place: Path) -> tuple[int, dict[str, dict[str, Any]], str]:
    code, rows, out = run("keys", "--config", str(place / "warden.yaml"), "--json")
    return code, {row["id"]: row for row in rows}, out


def test_a_new_root_key_is_in_use_and_the_old_ones_are_needed_until_no_segment_is_under_them(rotating: Path) -> None:
    config = ("--config", str(rotating / "warden.yaml"), "--json")
    first = next(iter(keys(rotating)[1]))
    new = run("rotate-key", *config)[1][0]
    code, found, _ = keys(rotating)
    assert code == 0
    assert [(found[each]["current"], found[each]["unshipped"]) for each in (first, new["id"])] == [
        (False, 1),
        (True, 0),
    ]
    again = open_journal(rotating / "journal", root=RootKeys(ROOT, rotating / "roots"))
    again.append(b"x")
    again.close()
    last = run("rotate-key", *config)[1][0]
    found = keys(rotating)[1]
    assert [found[each]["may_go"] for each in (first, new["id"], last["id"])] == [False, False, False]
    for _, path in segments_in(rotating / "journal"):
        path.unlink()
    assert [keys(rotating)[1][each]["may_go"] for each in (first, new["id"], last["id"])] == [False, True, False]
    plain = CliRunner().invoke(app, ["keys", *config[:2]]).stdout
    assert ("in use" in plain, "may go" in plain, "needed" in plain) == (True, True, True)


def test_a_root_key_that_was_removed_too_early_is_named(rotating: Path) -> None:
    config = ("--config", str(rotating / "warden.yaml"), "--json")
    new = run("rotate-key", *config)[1][0]
    again = open_journal(rotating / "journal", root=RootKeys(ROOT, rotating / "roots"))
    again.append(b"x")
    again.close()
    run("rotate-key", *config)
    Path(new["file"]).unlink()
    code, found, _ = keys(rotating)
    assert (code, found[new["id"]]["missing"], found[new["id"]]["unshipped"]) == (1, True, 1)
    code, (told,), _ = run("status", *config)
    assert (code, told["missing_keys"]) == (1, [new["id"]])
    code, _, out = run("inspect", str(rotating / "journal"), *config)
    assert (code, new["id"] in out) == (2, True)


def test_a_rotation_says_where_it_cannot_be(rotating: Path) -> None:
    config = ("--config", str(rotating / "warden.yaml"))
    code, _, out = run("rotate-key", *config, "--into", str(rotating / "journal" / "keys"))
    assert (code, "journal's own directory" in out) == (2, True)
    (rotating / "file").write_bytes(b"")
    assert run("rotate-key", *config, "--into", str(rotating / "file"))[0] == 3
    assert run("rotate-key", *config, "--into", str(rotating / "secret"), "--json")[1][0]["file"].startswith(
        str(rotating / "secret")
    )
    (rotating / "roots").mkdir()
    (rotating / "roots" / "current").write_text("nonsense")
    code, _, out = keys(rotating)
    assert (code, "names no root key" in out) == (1, True)
    (rotating / "warden.yaml").write_text(CONFIG)
    code, _, out = run("rotate-key", *config)
    assert (code, "keys_directory" in out) == (2, True)
