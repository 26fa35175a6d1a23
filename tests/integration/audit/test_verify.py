"""audit.verify against a superuser who rewrites the database: tampering is named, and nothing honest is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

from audit.assemble import Place
from audit.evidence import FaultKind
from audit.fleet import read_notes
from audit.logbook import log_signer, origin_of
from audit.merkle import Frontier
from audit.tlog import parse_checkpoint, parse_note
from audit.verify import Options, Report, ResumeError, verify
from sidecar.cli.evidence import app
from sidecar.core.model import Secret
from tests.support.evidence import Forger, tamper
from tests.support.postgres import Server, query
from tests.support.store import ROOT, FakeJournal, Shipping, completed, event, refused, wait_until


def keys(log: str):
    return log_signer(Secret(ROOT), origin_of("EU", log)).verifier


def check(dsn: str, anchor: Path | None = None, *, later: timedelta = timedelta(), jobs: int = 1) -> Report:
    notes = [] if anchor is None else read_notes(anchor)[-1:]
    return verify(dsn, Options(keys, datetime.now(UTC) + later, notes, jobs=jobs, jobs_from=0), jurisdiction="EU")


def fill(dsn: str, directory: Path, *, calls: int = 12, rounds: int = 3, journal: FakeJournal | None = None) -> str:
    """A log of ``calls`` calls and an event, signed in ``rounds`` heads, in the fleet's log and anchored; its name."""
    source = journal or FakeJournal()
    with Shipping(source, dsn, directory, anchor=directory / "anchor") as shipping:
        status, fleet = shipping.shipper.status, shipping.shipper._parts.fleet
        before = status.rows
        for number in range(1, rounds + 1):
            source.append(*(entry for _ in range(calls // rounds) for entry in completed()))
            if number == rounds:
                source.append(event())
            want = before + number * (calls // rounds) + (number == rounds)
            wait_until(
                lambda want=want: shipping.fault or (status.rows >= want and status.signed_size == status.position)
            )
        assert fleet is not None
    assert shipping.fault is None
    return status.log


@pytest.fixture
def log(dsn: str, tmp_path: Path) -> str:
    made = fill(dsn, tmp_path)
    assert check(dsn, tmp_path / "anchor").shape() | {"logs": 0, "checkpoints": 0, "oldest_read": 0} == {
        "ok": True, "records": 13, "checkpoints": 0, "faults": [], "faults_total": 0, "anchored": True,
        "anchored_size": ANY, "objects": None, "witnessed": None, "unsigned": 0, "uncopied": [], "tensors_lost": 0,
        "resumed": 0, "oldest_read": 0, "logs": 0,
    }  # fmt: skip
    return made


Tamper = Callable[[Forger], None]

TAMPERINGS: list[tuple[str, FaultKind, Tamper]] = [
    ("a column is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_calls SET outcome = 'failed' WHERE position = 3")),
    ("sealed content is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_calls SET prompt_sealed = prompt_sealed || '\\x00' WHERE position = 3")),
    ("content is taken away", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_calls SET output_sealed = NULL WHERE position = 3")),
    ("a digest is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_calls SET prompt_digest = sha256('x') WHERE position = 3")),
    ("an event is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_events SET detail = '{\"n\": 1}' WHERE log IS NOT NULL")),
    ("a row is deleted", FaultKind.DELETION, lambda f: f.sql("DELETE FROM warden.audit_calls WHERE position = 3")),
    ("an event is deleted", FaultKind.DELETION,
     lambda f: f.sql("DELETE FROM warden.audit_events WHERE log IS NOT NULL")),
    ("leaves are deleted", FaultKind.DELETION, lambda f: f.sql("DELETE FROM warden.audit_leaves WHERE first = 4")),
    ("a row is added", FaultKind.INSERTION, lambda f: f.copy_row(3, 99, "added")),
    ("a row is added at another's position", FaultKind.INSERTION, lambda f: f.copy_row(3, 3, "added")),
    ("two rows change places", FaultKind.REORDER,
     lambda f: f.sql("UPDATE warden.audit_calls SET position = 7 - position WHERE position IN (3, 4)")),
    ("row and leaf are rewritten", FaultKind.EDIT, lambda f: f.rewrite(3, tree=False)),
    ("row, leaf, tree and frontier are rewritten", FaultKind.EDIT, lambda f: f.rewrite(3, tree=True)),
    ("row, leaf, tree, frontier and heads are rewritten", FaultKind.REPLACED_CHECKPOINT,
     lambda f: f.rewrite(3, tree=True, sign=True)),
    ("row and leaf are deleted and all that follows moved up", FaultKind.EDIT, lambda f: f.cut_out(3)),
    ("all heads are deleted after a rewriting", FaultKind.EDIT, lambda f: f.rewrite(3, tree=True, heads="delete")),
    ("the tail is cut off", FaultKind.TRUNCATED_TAIL, lambda f: f.truncate(8, heads=False)),
    ("the tail is cut off with its heads", FaultKind.TRUNCATED_TAIL, lambda f: f.truncate(8, heads=True)),
    ("a head is replaced", FaultKind.REPLACED_CHECKPOINT,
     lambda f: f.sql("UPDATE warden.audit_checkpoints SET note = replace(note, '/EU', '/US') WHERE size = 8")),
    ("a head is another size's", FaultKind.REPLACED_CHECKPOINT,
     lambda f: f.sql("UPDATE warden.audit_checkpoints SET size = 7 WHERE size = 8")),
    ("a whole log is dropped", FaultKind.VANISHED_LOG, lambda f: f.drop_log()),
    ("a log is dropped, and the fleet's log cut to match", FaultKind.TRUNCATED_TAIL, lambda f: f.drop_log(fleet=True)),
    ("the fleet's log is emptied", FaultKind.TRUNCATED_TAIL, lambda f: f.drop_fleet()),
    ("an entry of the fleet's log is rewritten", FaultKind.EDIT,
     lambda f: f.sql("UPDATE warden.fleet_entries SET body = replace(body, 'pod-1', 'pod-2') WHERE position = 0")),
    ("rows of a log that is none", FaultKind.INSERTION, lambda f: f.copy_row(3, 0, "added", log="pod-9.ffff")),
    ("the frontier is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.audit_logs SET frontier = set_byte(frontier, 0, 255 - get_byte(frontier, 0))"
                     " WHERE log <> 'fleet'")),
    ("two signed heads of one size", FaultKind.FORK, lambda f: f.fork()),
    ("the usage of an hour is altered", FaultKind.ALTERED_COLUMN,
     lambda f: f.sql("UPDATE warden.usage_hours SET output_tokens = output_tokens - 1")),
    ("the usage of an hour is deleted", FaultKind.ALTERED_COLUMN, lambda f: f.sql("DELETE FROM warden.usage_hours")),
    ("usage that nobody had is added", FaultKind.ALTERED_COLUMN, lambda f: f.sql(
        "INSERT INTO warden.usage_hours (hour, tenant, model, key_id, log, calls)"
        " SELECT min(hour), 'birch', 'chat', '', max(log), 1 FROM warden.usage_hours")),
    ("a bundle is altered", FaultKind.ALTERED_COLUMN, lambda f: f.sql(
        "INSERT INTO warden.bundles (digest, content, first_loaded_at, sidecar)"
        " VALUES ('sha256:00', 'other', now(), 'pod-1')")),
    ("a day is detached and another table put in its place", FaultKind.DELETION, lambda f: f.detach()),
]  # fmt: skip


# What a restarted sidecar makes of it. It doesn't read rows back, so what leaves the trees alone stands, for verify to
# name; what cuts a log short is as a database that was restored, and is given what it lacks; else it signs no more.
REFUSES = {
    "row, leaf, tree and frontier are rewritten",
    "row, leaf, tree, frontier and heads are rewritten",
    "row and leaf are deleted and all that follows moved up",
    "all heads are deleted after a rewriting",
    "the frontier is altered",
}
HEALS = {
    "the tail is cut off",
    "the tail is cut off with its heads",
    "a whole log is dropped",
    "a log is dropped, and the fleet's log cut to match",
    "the fleet's log is emptied",
}


@pytest.mark.parametrize(("name", "kind", "tamper"), TAMPERINGS, ids=[name for name, *_ in TAMPERINGS])
def test_tampering_is_named_and_no_restarted_sidecar_signs_it(
    dsn: str, tmp_path: Path, log: str, name: str, kind: FaultKind, tamper: Tamper
) -> None:
    forger = Forger(dsn, log)
    leaves = forger.leaves()
    tamper(forger)
    report = check(dsn, tmp_path / "anchor")
    assert not report.ok
    assert {fault.kind for fault in report.faults} >= {kind}, [fault.shape() for fault in report.faults]
    parallel = check(dsn, tmp_path / "anchor", jobs=2)
    assert sorted(map(str, parallel.faults)) == sorted(map(str, report.faults))

    before = heads(dsn, log)
    journal = FakeJournal(Place("pod-1", "journal-2", "eu-west-1", "EU"))
    journal.append(*completed())
    with Shipping(journal, dsn, tmp_path, anchor=tmp_path / "anchor") as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or status.tampered or status.signed_size > len(leaves))
        wait_until(lambda: shipping.fault or status.tampered or shipping.shipper._heads.settled)
    signed = heads(dsn, log) - before
    assert all(root == Frontier().extended(leaves[:size]).root for size, root in signed if size <= len(leaves))
    after = check(dsn, tmp_path / "anchor")
    assert (name in REFUSES, name in HEALS) == (status.tampered, after.ok), [fault.shape() for fault in after.faults]
    if name in REFUSES:
        assert signed == set()
    if name not in HEALS:
        assert {fault.kind for fault in after.faults} >= {kind}


def heads(dsn: str, log: str) -> set[tuple[int, bytes]]:
    """Sizes and roots that the log's own key has signed."""
    notes = [
        parse_note(note) for (note,) in query(dsn, "SELECT note FROM warden.audit_checkpoints WHERE log = %s", log)
    ]
    found = [parse_checkpoint(note.text) for note in notes if keys(log).accepts(note)]
    return {(head.size, head.root) for head in found}


def test_an_officers_act_is_in_the_fleets_log(dsn: str, tmp_path: Path) -> None:
    act = "INSERT INTO warden.audit_events (id, at, kind, actor, detail) VALUES ('a', now(), 'audit_search', 'ada', %s)"
    query(dsn, act, '{"n": 0.5, "m": 100.0}')
    fill(dsn, tmp_path)
    assert check(dsn, tmp_path / "anchor").faults == []
    for statement, kind in (
        ("UPDATE warden.audit_events SET actor = 'bob' WHERE id = 'a'", FaultKind.ALTERED_COLUMN),
        ("DELETE FROM warden.audit_events WHERE id = 'a'", FaultKind.DELETION),
    ):
        tamper(dsn, statement)
        assert [fault.kind for fault in check(dsn, tmp_path / "anchor").faults] == [kind]


def test_a_log_that_ended_without_a_word_is_unclosed(dsn: str, tmp_path: Path, log: str) -> None:
    assert check(dsn, later=timedelta(days=30)).faults == []  # it was closed
    tamper(dsn, "DELETE FROM warden.fleet_entries WHERE body LIKE '%closed%'")
    kinds = {fault.kind for fault in check(dsn, later=timedelta(days=30)).faults}
    assert FaultKind.UNCLOSED_LOG in kinds


def test_a_cursor_that_no_log_moved_is_named_with_what_was_passed_over(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    fill(dsn, tmp_path, journal=journal)
    query(
        dsn,
        "INSERT INTO warden.journal_cursors (journal, log, needed, done)"
        " SELECT journal, 'pod-9.beef', needed + 6, done + 6 FROM warden.journal_cursors",
    )
    journal.append(*completed(), *completed(), *completed(call_id="after"))
    with Shipping(journal, dsn, tmp_path, anchor=tmp_path / "anchor") as shipping:
        wait_until(lambda: shipping.fault or "after" in str(query(dsn, "SELECT call_id FROM warden.audit_calls")))
    assert shipping.fault is None
    (fault,) = check(dsn, tmp_path / "anchor").faults
    assert (fault.kind, "pod-9.beef had read it" in fault.detail) == (FaultKind.DELETION, True)


def test_a_tail_on_a_closed_log_is_named_for_what_it_is(dsn: str, tmp_path: Path, log: str) -> None:
    forger = Forger(dsn, log)
    forger.extend()
    assert check(dsn, tmp_path / "anchor").unsigned == 1  # a sidecar that began again a moment ago looks so
    (fault,) = check(dsn, tmp_path / "anchor", later=timedelta(minutes=11)).faults
    assert (fault.kind, fault.log, fault.position) == (FaultKind.INSERTION, log, 13)
    assert "after the log was closed" in fault.detail


def test_a_log_that_no_sidecar_wrote_is_none_whatever_its_time_and_whoever_takes_it_up(
    dsn: str, tmp_path: Path, log: str
) -> None:
    Forger(dsn, log).invent("pod-9.beef")
    (fault,) = check(dsn, tmp_path / "anchor").faults
    assert (fault.kind, fault.log) == (FaultKind.INSERTION, "pod-9.beef")
    more = FakeJournal(Place("pod-1", "journal-2", "eu-west-1", "EU"))
    fill(dsn, tmp_path, journal=more)  # the fleet's log names what the database says is there
    report = check(dsn, tmp_path / "anchor")
    assert report.unsigned == 3  # and nothing of it counts as signed
    assert {(fault.kind, fault.log) for fault in report.faults} == {
        (FaultKind.ALTERED_COLUMN, "pod-9.beef")
    }  # its usage
    found = check(dsn, tmp_path / "anchor", later=timedelta(hours=25)).faults
    assert (FaultKind.INSERTION, "pod-9.beef") in {(fault.kind, fault.log) for fault in found}


def test_what_nobody_signed_in_the_fleets_log_excuses_nothing(dsn: str, tmp_path: Path, log: str) -> None:
    Forger(dsn, log).forge_drop(3)
    report = check(dsn, tmp_path / "anchor")
    kinds = {(fault.kind, fault.log) for fault in report.faults}
    assert kinds == {(FaultKind.INSERTION, "fleet"), (FaultKind.DELETION, log)}


def test_an_act_of_a_time_to_come_is_none(dsn: str, tmp_path: Path, log: str) -> None:
    act = (
        "INSERT INTO warden.audit_events (id, at, kind, actor, detail, recorded_at)"
        " VALUES ('x', now(), 'hold_released', 'ada', '{}', now() + interval '%s')"
    )
    tamper(dsn, act % "70 years")
    assert [fault.kind for fault in check(dsn, tmp_path / "anchor").faults] == [FaultKind.INSERTION]


def test_without_an_anchor_it_says_so(dsn: str, log: str) -> None:
    assert not check(dsn).anchored


def test_it_resumes_where_it_was(dsn: str, tmp_path: Path, log: str) -> None:
    options = Options(keys, datetime.now(UTC), resume=tmp_path / "progress")
    assert verify(dsn, options, jurisdiction="EU").resumed == 0
    again = verify(dsn, options, jurisdiction="EU")
    assert (again.resumed, again.records, again.faults) == (13, 13, [])
    forged = json.loads((tmp_path / "progress").read_bytes())
    forged["trees"][log][0] -= 1
    (tmp_path / "forged").write_text(json.dumps(forged))
    (tmp_path / "broken").write_text("{")
    for name in ("forged", "broken"):
        with pytest.raises(ResumeError, match=f"{name}: .* remove it to begin anew"):
            verify(dsn, Options(keys, datetime.now(UTC), resume=tmp_path / name), jurisdiction="EU")
    with pytest.raises(ResumeError, match="another root key"):
        verify(dsn, replace(options, resume_key=b"k"), jurisdiction="EU")
    Forger(dsn, log).truncate(8, heads=True)
    kinds = {fault.kind for fault in verify(dsn, options, jurisdiction="EU").faults}
    assert FaultKind.TRUNCATED_TAIL in kinds


def test_everything_is_read_again_in_its_time(dsn: str, tmp_path: Path, log: str) -> None:
    """What was altered behind the place that a run goes on from shows in no run that goes on."""
    at = datetime.now(UTC)
    options = Options(keys, at, resume=tmp_path / "progress", full_every=timedelta(days=7))
    assert verify(dsn, options, jurisdiction="EU").oldest_read == at
    Forger(dsn, log).sql("UPDATE warden.audit_calls SET outcome = 'failed' WHERE position = 3")
    again = verify(dsn, replace(options, now=at + timedelta(days=6)), jurisdiction="EU")
    assert (again.resumed, again.oldest_read, again.faults) == (13, at, [])
    whole = verify(dsn, replace(options, now=at + timedelta(days=7)), jurisdiction="EU")
    assert (whole.resumed, [fault.kind for fault in whole.faults]) == (0, [FaultKind.ALTERED_COLUMN])


def test_what_no_head_is_of_is_no_place_to_go_on_from(dsn: str, tmp_path: Path, log: str) -> None:
    forger = Forger(dsn, log)
    forger.rewrite(3, tree=True)
    for table in ("audit_checkpoints", "fleet_entries"):  # heads of all there is are gone: a tail that is newer
        which = "body LIKE '%%\"closed\"%%' OR body LIKE '%%\"size\":13%%'" if table == "fleet_entries" else "size > 8"
        forger.sql(f"DELETE FROM warden.{table} WHERE {which}")
    options = Options(keys, datetime.now(UTC), resume=tmp_path / "progress")
    for _ in range(2):
        found = verify(dsn, options, jurisdiction="EU").faults
        assert FaultKind.EDIT in {fault.kind for fault in found if fault.log == log}


def test_the_command_tells_a_program_and_a_person(dsn: str, tmp_path: Path, log: str) -> None:
    key = tmp_path / "journal.key"
    key.write_bytes(ROOT)
    key.chmod(0o600)
    config = tmp_path / "warden.yaml"
    config.write_text(
        json.dumps(
            {
                "sidecar": {"name": "pod-1", "region": "eu-west-1"},
                "policy": {"bundle": str(tmp_path)},
                "identity": {},
                "audit": {
                    "journal": {"directory": "journal", "key_file": "journal.key"},
                    "database": {"dsn": dsn, "jurisdiction": "EU"},
                    "anchor": {"file": "anchor"},
                },
            }
        )
    )
    done = CliRunner().invoke(app, ["verify", "--config", str(config), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True), done.output
    tamper(dsn, "DELETE FROM warden.audit_calls WHERE position = 3")
    done = CliRunner().invoke(app, ["verify", "--config", str(config), "--json"])
    (fault,) = json.loads(done.stdout)["faults"]
    assert done.exit_code == 1
    assert (fault["kind"], fault["position"]) == ("deletion", 3)
    told = CliRunner().invoke(app, ["verify", "--config", str(config)])
    assert told.exit_code == 1
    assert "deletion at 3" in told.stdout


def test_honest_histories_raise_no_alarm(postgres: Server, dsn: str, tmp_path: Path) -> None:
    """Restarts, a failover that loses what was shipped, officers' acts: nothing of it looks like tampering."""
    journal = FakeJournal()
    fill(dsn, tmp_path, journal=journal)
    snapshot = postgres.snapshot(dsn)
    fill(dsn, tmp_path, journal=journal)
    query(dsn, "INSERT INTO warden.audit_events (id, at, kind) VALUES ('lost', now(), 'audit_search')")
    fill(dsn, tmp_path, journal=journal)
    postgres.restore(snapshot, dsn)
    journal.append(refused())
    with Shipping(journal, dsn, tmp_path, anchor=tmp_path / "anchor") as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.signed_size >= 41)
    assert shipping.fault is None
    report = check(dsn, tmp_path / "anchor", later=timedelta(days=3))
    assert (report.faults, report.anchored, report.records) == ([], True, 41)
    assert query(dsn, "SELECT count(*) FROM warden.audit_events WHERE id = 'lost'") == [(1,)]
    told = query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'database_rolled_back'")
    assert [detail["size"] for (detail,) in told] == [13]
