"""audit.ship on a real Postgres: every ended call is stored exactly once, whatever happens on the way."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import random
import signal
import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row

from audit import store
from audit.assemble import Place
from audit.batch import Batch
from audit.content import ContentSealer
from audit.entries import END_LOST_WORDS
from audit.logbook import log_signer, origin_of
from audit.merkle import Tree
from audit.opening import Opener
from audit.poison import PoisonKeeper
from audit.record import Admitted, Output
from audit.rows import Identity
from audit.ship import Bounds
from audit.spool import read_bundle, spool_bundle
from audit.tlog import parse_checkpoint, parse_note
from audit.vault import commitment, open_column
from sidecar.core.model import Secret
from tests.support.postgres import Server, prepare, query, running_server
from tests.support.store import (
    PLACE,
    ROOT,
    FakeJournal,
    Shipping,
    completed,
    content,
    event,
    facts,
    keys_in,
    refused,
    settled,
    ship_until_killed,
    wait_until,
)

ALL = "SELECT position FROM warden.audit_calls UNION ALL SELECT position FROM warden.audit_events ORDER BY 1"


def positions(dsn: str) -> list[int]:
    return [position for (position,) in query(dsn, ALL)]


def ship(journal: FakeJournal, dsn: str, directory: Path, rows: int, **options: Any) -> Shipping:
    """Ship until the shipper has stored ``rows``."""
    with Shipping(journal, dsn, directory, **options) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows >= rows)
    assert shipping.fault is None
    return shipping


def test_a_call_is_one_row_with_its_content_sealed(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(*completed(subject="patient 7", parameters={"temperature": 0.5}, peer="10.0.0.7", conversation="k"))
    ship(journal, dsn, tmp_path, 1)
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        row = connection.execute("SELECT * FROM warden.audit_calls").fetchone()
    assert row is not None
    assert (row["output_bytes"], row["sidecar"], row["region"]) == (11, PLACE.sidecar, PLACE.region)
    for told in (b"library", b"patient", b"10.0.0.7", b"temperature"):
        assert all(told not in str(value).encode() and told not in raw(value) for value in row.values()), told
    engine, opener = store.connect(dsn, application="test"), Opener(keys_in(tmp_path))
    with store.transaction(engine) as connection:
        opener.load(connection, [row["data_key"]])
        assert opener.keys_of(connection, None, "patient 7") == [row["data_key"]]
        assert opener.keys_of(connection, "acme", "patient 8") == []
    engine.dispose()
    opened = opener.open(row, content=True)
    assert opened.prompt == [b"Where is the ", b"library?"]
    assert opened.output == [b"Over ", b"there."]
    assert opened.identity == Identity("patient 7", "k", "ada", "10.0.0.7", "", {"temperature": 0.5})
    assert row["prompt_digest"] == commitment(opened.salts["prompt"], hashlib.sha256(b"Where is the library?").digest())
    assert journal.shipped_to == 2


def test_words_that_the_client_was_not_told_are_sealed(dsn: str, tmp_path: Path) -> None:
    """They may quote another tenant's prompt: no column, nor the evidence beside altered ones, has them in plain."""
    journal, call = FakeJournal(), facts(key_id="a\x00b")  # altered, so that there is evidence
    words = b"ValueError: ['somebody else's prompt']"
    journal.append(Admitted(call), settled(call, outcome="failed", status=13, quoted=content(words)))
    ship(journal, dsn, tmp_path, 1)
    engine, opener = store.connect(dsn, application="test"), Opener(keys_in(tmp_path))
    with store.transaction(engine) as connection:
        row = dict(connection.execute(sa.text("SELECT * FROM warden.audit_calls")).mappings().one())
        opener.load(connection, [row["data_key"]])
    engine.dispose()
    assert opener.open(row, content=True).error == [words]
    assert row["error_bytes"] == len(words)
    assert "somebody" not in str(row)
    key = opener.record_key(row)
    assert key is not None
    assert b"somebody" not in open_column(key, "evidence", row["evidence_sealed"])


def raw(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


def test_positions_count_calls_and_events_in_order(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused(), event("posture"), *completed(), event("posture"))
    ship(journal, dsn, tmp_path, 4)
    assert positions(dsn) == [0, 1, 2, 3]
    assert query(dsn, "SELECT position FROM warden.audit_events ORDER BY 1") == [(1,), (3,)]


def test_a_call_open_over_a_restart_keeps_its_output(dsn: str, tmp_path: Path) -> None:
    journal, call = FakeJournal(), facts()
    journal.append(Admitted(call), Output(call.call_id, call.started_ns, 0, [b"one "]), refused(), event())
    ship(journal, dsn, tmp_path, 2)
    assert journal.shipped_to == -1  # the open call is still needed
    journal.append(settled(call, b"two", before=b"one "))
    ship(journal, dsn, tmp_path, 1)
    assert query(
        dsn, "SELECT output_bytes, output_truncated, position FROM warden.audit_calls WHERE outcome = 'completed'"
    ) == [(7, False, 2)]
    assert journal.shipped_to == 4


def test_an_aborted_call_is_stored_as_such(dsn: str, tmp_path: Path) -> None:
    journal, call = FakeJournal(), facts()
    journal.append(Admitted(call), settled(call, outcome="aborted", status=14, reason="UPSTREAM_UNAVAILABLE"))
    ship(journal, dsn, tmp_path, 1)
    assert query(dsn, "SELECT outcome, status FROM warden.audit_calls") == [("aborted", 14)]


def test_an_outcome_without_admission_is_an_event(dsn: str, tmp_path: Path) -> None:
    journal, call = FakeJournal(), facts()
    journal.append(settled(call, b"x"))
    ship(journal, dsn, tmp_path, 1)
    ((kind, detail),) = query(dsn, "SELECT kind, detail FROM warden.audit_events")
    assert kind == "settled_without_admission"
    assert detail["call_id"] == call.call_id


def test_days_get_their_partition_on_demand(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused(datetime(2001, 2, 3, 23, 59, tzinfo=UTC)), refused(datetime(2035, 1, 1, tzinfo=UTC)))
    ship(journal, dsn, tmp_path, 2)
    names = {name for (name,) in query(dsn, "SELECT tableoid::regclass::text FROM warden.audit_calls")}
    assert names == {f"warden.{store.partition_name(day)}" for day in (date(2001, 2, 3), date(2035, 1, 1))}


def test_poison_is_kept_aside_and_neighbours_are_stored(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    query(dsn, "ALTER TABLE warden.audit_calls ADD CHECK (tenant <> 'unwanted')")  # only the database knows
    bad_status, far = refused(), refused()
    journal.append(*(refused() for _ in range(20)))
    journal.append(type(bad_status)(bad_status.call, "RATE_TOKENS", 99_999))  # no smallint
    journal.append(b"\xc1 no entry", *(refused() for _ in range(3)), refused(tenant="unwanted"))
    journal.append(refused(tenant="nul\x00tenant", parameters={"a\x00": "b\x00", "n": float("nan")}))
    journal.append(type(far)(type(far.call)("x", 2**63 - 1, 2**63 - 1, "m"), "INTERNAL", 13))  # the year 2262
    journal.append(b"\x92\xa7refused\x91\xa1\xff")  # a string that is not UTF-8
    journal.append(*(refused() for _ in range(20)))
    shipping = ship(journal, dsn, tmp_path, 49)
    assert positions(dsn) == list(range(49))
    stored = query(dsn, "SELECT count(*), count(*) FILTER (WHERE sanitised) FROM warden.audit_calls")
    assert stored == [(45, 1)]
    told = query(
        dsn, "SELECT detail ->> 'file' FROM warden.audit_events WHERE kind = 'record_unstorable' ORDER BY position"
    )
    assert shipping.shipper.status.poisoned == len(told) == 4
    kept = [PoisonKeeper(tmp_path / "poison", ContentSealer(ROOT)).open(tmp_path / "poison" / name) for (name,) in told]
    assert bad_status.call.call_id.encode() in kept[0]
    assert kept[1] == b"\xc1 no entry"


def test_wrong_jurisdiction_is_refused_before_anything_is_read(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused())
    with Shipping(journal, dsn, tmp_path, jurisdiction="US") as shipping:
        shipping.wait_for_end()
    assert isinstance(shipping.fault, store.WrongJurisdictionError)
    assert positions(dsn) == []
    assert journal.position == 0


def test_records_of_another_jurisdiction_are_never_stored(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal(place=Place("pod-1", "journal-1", "us-east-1", "US"))
    journal.append(refused())
    with Shipping(journal, dsn, tmp_path) as shipping:
        shipping.wait_for_end()
    assert isinstance(shipping.fault, store.WrongJurisdictionError)
    assert positions(dsn) == []


def test_a_journal_that_was_replaced_is_followed_from_its_beginning(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused(), refused())
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.rows == 2)
        fresh = FakeJournal(place=Place("pod-1", "journal-2", "eu-west-1", "EU"))
        fresh.append(refused())
        journal.items, journal.place = fresh.items, fresh.place
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 3)
    assert shipping.fault is None
    assert positions(dsn) == [0, 1, 2]  # the sidecar's log goes on
    assert query(dsn, "SELECT journal, done FROM warden.journal_cursors ORDER BY 1") == [
        ("journal-1", 1),
        ("journal-2", 0),
    ]


def test_an_unprepared_database_is_waited_for(postgres: Server, tmp_path: Path) -> None:
    made, journal = postgres.create_database(), FakeJournal()
    journal.append(refused())
    with Shipping(journal, made, tmp_path) as shipping:
        wait_until(lambda: "warden db upgrade" in (shipping.shipper.status.last_error or ""))
        prepare(made)
        wait_until(lambda: shipping.shipper.status.rows == 1)
    assert shipping.shipper.status.last_error is None


def test_a_lost_answer_to_commit_stores_nothing_twice(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(*completed(), event())
    with Shipping(journal, dsn, tmp_path) as shipping:
        real, failures = shipping.shipper._database.commit, iter([OSError("the answer was lost")])

        def store_then_fail(batch: Batch) -> None:
            real(batch)
            for failure in failures:
                raise failure

        shipping.shipper._database.commit = store_then_fail  # type: ignore[method-assign]
        wait_until(lambda: shipping.shipper.status.rows == 2)
    assert positions(dsn) == [0, 1]


def test_a_lost_answer_is_asked_for_again_with_what_stands_for_a_refused_row(dsn: str, tmp_path: Path) -> None:
    query(dsn, "ALTER TABLE warden.audit_calls ADD CHECK (tenant <> 'unwanted')")
    journal = FakeJournal()
    journal.append(refused(), refused(tenant="unwanted"), refused())
    with Shipping(journal, dsn, tmp_path) as shipping:
        real, lost = shipping.shipper._database.commit, iter([True])

        def store_then_fail(batch: Batch) -> None:
            real(batch)
            if batch.rows and next(lost, False):
                raise OSError("the answer was lost")

        shipping.shipper._database.commit = store_then_fail  # type: ignore[method-assign]
        wait_until(lambda: shipping.shipper.status.rows == 3)
        journal.append(refused())
        wait_until(lambda: shipping.shipper.status.rows == 4)
    assert not shipping.shipper.status.tampered
    assert positions(dsn) == [0, 1, 2, 3]


def test_batches_grow_while_much_waits_and_the_next_is_filled_meanwhile(dsn: str, tmp_path: Path) -> None:
    journal, bounds = FakeJournal(), Bounds(rows=20, rows_most=300, read=10, seconds=0.02, idle=0.005, measure=0.0)
    journal.append(*(refused() for _ in range(2000)))
    with Shipping(journal, dsn, tmp_path, bounds=bounds) as shipping:
        real, going, filled = shipping.shipper._database.commit, threading.Event(), []

        def once_the_next_is_filled(batch: Batch) -> None:
            if not going.is_set():
                wait_until(lambda: len(shipping.shipper._pending.rows) == 300)
                filled.append(batch)
                going.set()
            real(batch)

        shipping.shipper._database.commit = once_the_next_is_filled  # type: ignore[method-assign]
        wait_until(lambda: shipping.shipper.status.rows == 2000)
    assert filled
    sizes = [size for (size,) in query(dsn, "SELECT length(hashes) / 32 FROM warden.audit_leaves ORDER BY first")]
    assert max(sizes) == 300
    assert len(sizes) < 20
    assert positions(dsn) == list(range(2000))


def test_two_shippers_of_one_journal_store_each_record_once(dsn: str, tmp_path: Path) -> None:
    journals = [FakeJournal(), FakeJournal()]
    entries = [entry for _ in range(300) for entry in completed()]
    for journal in journals:
        journal.append(*entries)
    with Shipping(journals[0], dsn, tmp_path, seed=1) as one, Shipping(journals[1], dsn, tmp_path, seed=2) as other:
        wait_until(lambda: one.fault or other.fault or len(positions(dsn)) >= 300)
    assert one.fault is None
    assert other.fault is None
    assert positions(dsn) == list(range(300))


EVERYTHING = (
    "SELECT log, position, call_id, started_at, prompt_sealed, output_sealed, identity_sealed, prompt_digest, data_key"
    " FROM warden.audit_calls ORDER BY 1, 2"
)
LEAVES = "SELECT log, first, hashes FROM warden.audit_leaves WHERE log <> 'fleet' ORDER BY 1, 2"


def test_a_database_restored_from_before_gets_the_same_records_again(
    postgres: Server, dsn: str, tmp_path: Path
) -> None:
    journal = FakeJournal()
    journal.append(*(entry for _ in range(10) for entry in completed()))
    ship(journal, dsn, tmp_path, 10)
    before = postgres.snapshot(dsn)
    journal.append(*(entry for _ in range(20) for entry in completed()))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.rows >= 20 and shipping.shipper.status.signed_size == 30)
        stored, leaves = query(dsn, EVERYTHING), query(dsn, LEAVES)
        postgres.restore(before, dsn)  # while it is running: a standby was promoted
        assert len(positions(dsn)) == 10
        journal.append(event())
        wait_until(lambda: shipping.fault or len(positions(dsn)) == 32)
    assert shipping.fault is None
    assert query(dsn, EVERYTHING) == stored
    assert query(dsn, LEAVES)[: len(leaves)] == leaves
    ((told,),) = query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'database_rolled_back'")
    assert (told["size"], told["signed_size"]) == (10, 30)


def test_a_database_restored_from_before_all_that_is_kept_gets_a_new_log(
    postgres: Server, dsn: str, tmp_path: Path
) -> None:
    journal = FakeJournal()
    journal.append(*completed())
    ship(journal, dsn, tmp_path, 1)
    before = postgres.snapshot(dsn)
    journal.append(*completed(), *completed())
    shipping = ship(journal, dsn, tmp_path, 2)
    postgres.restore(before, dsn)
    (tmp_path / "log" / "batches" / f"{1:020d}.batch").unlink()
    ship(journal, dsn, tmp_path, 3)
    assert query(dsn, "SELECT count(*), count(DISTINCT log) FROM warden.audit_calls") == [(3, 2)]
    ((told,),) = query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'log_ended'")
    assert told == {"log": shipping.shipper.status.log, "size": 1, "signed_size": 3}


def test_a_forged_tree_is_neither_added_to_nor_signed(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(*completed(), *completed())
    ship(journal, dsn, tmp_path, 2)
    heads = query(dsn, "SELECT size, note FROM warden.audit_checkpoints WHERE log <> 'fleet' ORDER BY 1")
    query(dsn, "UPDATE warden.audit_logs SET frontier = sha256('forged')")
    journal.append(*completed())
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.tampered)
        assert "not those made here" in str(shipping.shipper.status.last_error)
    assert shipping.fault is None
    assert positions(dsn) == [0, 1]
    assert query(dsn, "SELECT size, note FROM warden.audit_checkpoints WHERE log <> 'fleet' ORDER BY 1") == heads


def test_heads_are_signed_and_each_extends_the_one_before(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    bounds = Bounds(seconds=0.01, idle=0.005, checkpoint=0.0)
    with Shipping(journal, dsn, tmp_path, bounds=bounds) as shipping:
        for count in range(1, 6):
            journal.append(*completed())
            wait_until(lambda count=count: shipping.fault or shipping.shipper.status.signed_size == count)
    assert shipping.fault is None
    log = shipping.shipper.status.log
    verifier = log_signer(Secret(ROOT), origin_of("EU", log)).verifier
    ((hashes,),) = query(
        dsn, "SELECT string_agg(hashes, '' ORDER BY first) FROM warden.audit_leaves WHERE log <> 'fleet'"
    )
    tree = Tree([hashes[at : at + 32] for at in range(0, len(hashes), 32)])
    heads = query(dsn, "SELECT note FROM warden.audit_checkpoints WHERE log <> 'fleet' ORDER BY size")
    assert len(heads) == 5
    for (note,) in heads:
        assert verifier.accepts(parse_note(note))
        head = parse_checkpoint(parse_note(note).text)
        assert head.root == tree.root(head.size)


def test_a_cursor_that_was_lost_stores_nothing_twice(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(*(entry for _ in range(5) for entry in completed()), event(), b"\xc1")
    ship(journal, dsn, tmp_path, 7)
    query(dsn, "DELETE FROM warden.journal_cursors")
    journal.append(refused())
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or len(positions(dsn)) == 8)
    assert shipping.fault is None
    assert positions(dsn) == list(range(8))


def test_missing_entries_are_told(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused())
    ship(journal, dsn, tmp_path, 1)
    journal.append(refused(), refused(), refused())
    del journal.items[1:3]
    ship(journal, dsn, tmp_path, 2)
    ((detail,),) = query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'journal_gap'")
    assert detail == {"first": 1, "last": 2}


def test_a_call_whose_end_was_lost_is_aborted_once_a_segment_says_that_it_had_ended(dsn: str, tmp_path: Path) -> None:
    """It would hold the journal for ever; a call that is still under way is left alone."""
    journal, lost, open_call = FakeJournal(), facts(), facts()
    journal.append(Admitted(lost), Output(lost.call_id, lost.started_ns + 1, 0, [b"so far"]), b"\xc1", *completed())
    journal.append(Admitted(open_call))
    ship(journal, dsn, tmp_path, 2)
    assert journal.shipped_to == -1
    journal.place = replace(PLACE, open_from=5)
    journal.append(*completed())
    ship(journal, dsn, tmp_path, 2)
    assert journal.shipped_to == 5, "up to the call that is open"
    words = "SELECT outcome, output_bytes, internal FROM warden.audit_calls WHERE call_id = %s"
    assert query(dsn, words, lost.call_id) == [("aborted", len(b"so far"), END_LOST_WORDS)]
    assert query(dsn, words, open_call.call_id) == []
    journal.append(settled(open_call))
    ship(journal, dsn, tmp_path, 1)  # read again from where the open one began: no call is there twice
    assert positions(dsn) == list(range(5))


def test_a_bundle_is_stored_with_its_event(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    spool_bundle(tmp_path, "sha256:ab", b"the whole directory\x00")
    journal.append(event("bundle_loaded", digest="sha256:ab"), event("bundle_loaded", digest="sha256:ab"))
    ship(journal, dsn, tmp_path, 2)
    assert query(dsn, "SELECT digest, content, sidecar FROM warden.bundles") == [
        ("sha256:ab", b"the whole directory\x00", PLACE.sidecar)
    ]
    assert read_bundle(tmp_path, "sha256:ab") is None


def test_postgres_goes_and_comes_back(tmp_path: Path) -> None:
    journal = FakeJournal()
    with running_server() as server:
        made = server.create_database()
        prepare(made)
        journal.append(*(entry for _ in range(50) for entry in completed()))
        with Shipping(journal, made, tmp_path) as shipping:
            wait_until(lambda: shipping.shipper.status.rows == 50)
            server.stop()
            journal.append(*(entry for _ in range(50) for entry in completed()))
            status = shipping.shipper.status
            wait_until(lambda: not status.database_up and status.oldest_unshipped_at is not None)
            assert shipping.shipper.status.last_error
            server.start()
            wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 100)
        assert shipping.shipper.status.database_up
        assert positions(made) == list(range(100))


def test_a_database_that_hangs_is_given_up_and_gets_each_record_once(dsn: str, tmp_path: Path) -> None:
    journal, bounds = FakeJournal(), Bounds(seconds=0.02, idle=0.005, backoff_most=0.2, transaction=0.5)
    journal.append(refused())
    with Shipping(journal, dsn, tmp_path, bounds=bounds) as shipping:
        wait_until(lambda: shipping.shipper.status.rows == 1)
        ((backend,),) = query(dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'warden-test-ship'")
        os.kill(backend, signal.SIGSTOP)
        try:
            journal.append(*completed())
            wait_until(lambda: not shipping.shipper.status.database_up)
        finally:
            os.kill(backend, signal.SIGCONT)
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 2)
    assert positions(dsn) == [0, 1]


def test_stopping_while_the_database_is_away_ends_at_once(tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(refused())
    with Shipping(journal, "postgresql://nobody@127.0.0.1:1/none", tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.last_error)
    assert shipping.fault is None


def test_the_shipper_killed_at_random_points_stores_each_record_once(dsn: str, tmp_path: Path) -> None:
    """≥ 20 times kill -9, each after a random number of rows; then one shipper finishes."""
    calls, kills, chance = 1500, 24, random.Random(20261130)
    journal = FakeJournal()
    entries: list[Any] = []
    for _ in range(calls // 3):  # two calls open at once and a refusal between
        one, other = completed(), completed()
        entries += [one[0], other[0], one[1], refused(), other[1], other[2], one[2]]
    journal.append(*entries)
    plan = tmp_path / "journal.pickle"
    plan.write_bytes(pickle.dumps(journal.items))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.store"])
    targets = sorted(chance.sample(range(calls), kills))
    for target in targets:
        child = context.Process(target=ship_until_killed, args=(dsn, str(plan), str(tmp_path)))
        child.start()
        wait_until(lambda target=target: len(positions(dsn)) > target)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        assert child.exitcode == -signal.SIGKILL
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or len(positions(dsn)) == calls)
    assert positions(dsn) == list(range(calls))
    stored = {call for (call,) in query(dsn, "SELECT call_id FROM warden.audit_calls")}
    assert stored == {entry.call.call_id for entry in entries if hasattr(entry, "call")}
    assert query(dsn, "SELECT count(*) FROM warden.audit_calls WHERE output_truncated") == [(0,)]


@pytest.mark.parametrize("bound", [1, 7])
def test_any_batch_size_stores_the_same(dsn: str, tmp_path: Path, bound: int) -> None:
    journal = FakeJournal()
    journal.append(*(entry for _ in range(10) for entry in completed()))
    ship(journal, dsn, tmp_path, 10, bounds=Bounds(rows=bound, seconds=0.01, idle=0.005))
    assert positions(dsn) == list(range(10))
