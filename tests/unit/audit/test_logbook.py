"""audit.logbook: nothing is signed but what extends the last head, whatever a crash left on the disk."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from audit.assemble import CallRecord
from audit.batch import Batch, Cursor, decode_batch, encode_batch, make_batch
from audit.filekeys import FileKeys
from audit.logbook import ForkError, LogBook
from audit.merkle import Frontier
from audit.rows import CallRow, EventRow, call_row, leaf_of
from audit.tlog import parse_checkpoint, parse_note
from audit.vault import Vault
from sidecar.core.model import Secret
from tests.support.store import PLACE, content, facts, settled

ROOT = Secret(b"r" * 32)
AT = datetime(2026, 11, 30, tzinfo=UTC)


def book(directory: Path) -> LogBook:
    return LogBook(directory / "log", "pod-1", "EU", ROOT, secrets.token_bytes)


def batch(log: LogBook, *kinds: str, at: Frontier | None = None) -> Batch:
    tree, before = at or log.next, log.cursor[1]
    after = Cursor(before.needed + len(kinds), before.done + len(kinds))
    place = Batch(log.log, "pod-1", "journal", "EU", tree.size, tree.pack(), before, after, [], b"")
    rows = [
        EventRow(n, n, [f"{n}", AT, kind, "", "", "{}", "pod-1", log.log, n, "journal", n, "r", "EU", False])
        for n, kind in enumerate(kinds, tree.size)
    ]
    return make_batch(place, rows, keys=[], bundles=[])


def test_a_batch_is_the_same_after_the_disk(tmp_path: Path) -> None:
    made = batch(book(tmp_path), "a", "b")
    assert decode_batch(encode_batch(made)) == made
    assert made.end == 2
    with pytest.raises(ValueError, match="leaves"):
        decode_batch(encode_batch(msgspec.structs.replace(made, leaves=made.leaves[32:])))
    with pytest.raises(msgspec.DecodeError):
        decode_batch(encode_batch(made)[:-1])


def test_a_batch_from_before_rows_were_packed_is_read_as_it_was(tmp_path: Path) -> None:
    call = facts(AT, tenant="acme", prompt=content(b"a question"))
    record = CallRecord(PLACE, 3, 5, call, settled(call, b"an answer"), [b"an answer"])
    row, leaf = call_row(record, Vault(FileKeys(tmp_path / "keys", secrets.token_bytes), secrets.token_bytes), "log", 7)
    cursors = [0, -1], [6, 5]
    values = row.values[:-1]  # of before the last column there is
    old = ["call", 7, 5, AT, call.call_id, values, 2000, [1, 2]]
    data = msgspec.msgpack.encode(["log", "pod-1", "journal-1", "EU", 7, bytes(96), *cursors, [old], leaf, [], [], 1])
    (found,) = decode_batch(data).rows
    assert isinstance(found, CallRow)
    assert found.values == values
    assert (found.started, found.used, found.data_key, found.terms) == (row.started, row.used, row.data_key, [1, 2])
    assert leaf_of(found) == leaf


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    first = book(tmp_path)
    first.keep(batch(first, "a", "b"))
    note = first.sign(first.next)
    first.keep(batch(first, "c"))
    again = book(tmp_path)
    assert (again.log, again.next, again.cursor) == (first.log, first.next, first.cursor)
    assert again.signed.size == 2
    assert parse_checkpoint(parse_note(note).text).size == 2
    assert [each.first for each in again.since(0)] == [0, 2]
    assert [each.first for each in again.since(2)] == [2]
    assert again.tree_at(2) == again.signed
    assert again.tree_at(1) is None


def test_what_was_signed_is_never_kept_otherwise(tmp_path: Path) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a", "b"))
    log.keep(batch(log, "x", at=Frontier()))  # nobody has seen it: a row that the database refuses gives way
    assert log.next.size == 1
    log.sign(log.next)
    for other in (batch(log, "y", at=Frontier()), batch(log, "z", at=Frontier(3, (b"h" * 32, b"i" * 32)))):
        with pytest.raises(ForkError):
            log.keep(other)
    with pytest.raises(ForkError):
        log.sign(Frontier())
    with pytest.raises(ForkError):
        log.sign(Frontier().extended([b"h" * 32, b"i" * 32]))
    with pytest.raises(ForkError):
        log.drop_unsigned(0)


def test_a_batch_that_is_torn_was_never_sent(tmp_path: Path) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a"))
    log.sign(log.next)
    path = tmp_path / "log" / "batches" / f"{1:020d}.batch"
    path.write_bytes(encode_batch(batch(log, "b"))[:40])
    again = book(tmp_path)
    assert again.next.size == 1
    assert not path.exists()


def test_a_batch_whose_state_was_lost_is_found_again(tmp_path: Path) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a"))
    state = (tmp_path / "log" / "log.json").read_bytes()
    log.keep(batch(log, "b"))
    (tmp_path / "log" / "log.json").write_bytes(state)
    assert book(tmp_path).next == log.next


def test_a_state_that_is_no_state_is_not_begun_anew(tmp_path: Path) -> None:
    book(tmp_path)
    (tmp_path / "log" / "log.json").write_bytes(b"{")
    with pytest.raises(ForkError, match="damaged"):
        book(tmp_path)


@pytest.mark.parametrize("left", [b"", b"{", b"\x00" * 200, None])
def test_power_may_leave_nothing_of_what_was_not_made_durable(tmp_path: Path, left: bytes | None) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a", "b"))
    log.sign(log.next)
    log.keep(batch(log, "c"))
    log.moved("journal", Cursor(9, 9))
    later = tmp_path / "log" / "later.json"
    if left is None:
        later.unlink()
    else:
        later.write_bytes(left)
    again = book(tmp_path)
    assert (again.log, again.signed, again.next) == (log.log, log.signed, log.next)
    assert again.cursor == ("journal", Cursor(3, 2))  # as after the batch: the rest is read again


def test_where_it_moved_to_outlives_a_kill(tmp_path: Path) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a"))
    log.moved("journal", Cursor(9, 9))
    assert book(tmp_path).cursor == ("journal", Cursor(9, 9))


def test_a_later_state_of_before_is_not_believed(tmp_path: Path) -> None:
    """What was dropped stays dropped, and what was signed signed, though the state from before lies there still."""
    log = book(tmp_path)
    log.keep(batch(log, "a"))
    log.sign(log.next)
    log.keep(batch(log, "b"))
    later = (tmp_path / "log" / "later.json").read_bytes()
    log.drop_unsigned(1)
    (tmp_path / "log" / "later.json").write_bytes(later)
    assert book(tmp_path).next_size == 1
    log = book(tmp_path)
    log.keep(batch(log, "c"))
    log.sign(log.next)
    (tmp_path / "log" / "later.json").write_bytes(later)
    assert book(tmp_path).signed == log.signed


def test_batches_go_when_they_are_signed_and_old(tmp_path: Path) -> None:
    log = book(tmp_path)
    for kind in "abc":
        log.keep(batch(log, kind))
    log.prune(before_s=1e12)
    assert len(list(log.since(0))) == 3  # nothing is signed
    log.sign(log.next)
    log.prune(before_s=0)
    assert len(list(log.since(0))) == 3  # nothing is old
    log.prune(before_s=1e12)
    assert [each.first for each in log.since(2)] == [2]  # the last one stays
    with pytest.raises(LookupError):
        log.since(0)


def test_a_day_of_small_batches_is_few_files_and_gives_back_the_same(tmp_path: Path) -> None:
    log = book(tmp_path)
    folder = tmp_path / "log" / "batches"
    for _ in range(300):
        log.keep(batch(log, "a"))
    log.sign(log.next)
    kept = [encode_batch(each) for each in log.since(0)]
    log.prune(before_s=0)
    assert sorted(path.name for path in folder.iterdir()) == [f"{0:020d}.pack", f"{299:020d}.batch"]
    for opened in (log, book(tmp_path)):
        assert [encode_batch(each) for each in opened.since(0)] == kept
        assert [each.first for each in opened.since(297)] == [297, 298, 299]
        assert opened.tree_at(150) == decode_batch(kept[150]).frontier
    log.keep(batch(log, "b"))
    assert log.next.size == 301
    log.prune(before_s=1e12)
    assert [path.name for path in folder.iterdir()] == [f"{300:020d}.batch"]


def test_a_crash_between_pack_and_its_batches_loses_and_doubles_none(tmp_path: Path) -> None:
    log = book(tmp_path)
    folder = tmp_path / "log" / "batches"
    for _ in range(100):
        log.keep(batch(log, "a"))
    log.sign(log.next)
    singles = {path.name: path.read_bytes() for path in folder.iterdir()}
    kept = [encode_batch(each) for each in log.since(0)]
    log.prune(before_s=0)
    for name in sorted(singles)[40:]:
        (folder / name).write_bytes(singles[name])
    again = book(tmp_path)
    assert [encode_batch(each) for each in again.since(0)] == kept
    assert len(list(folder.iterdir())) == 2


def test_beyond_its_bytes_the_oldest_go_sooner_but_never_what_is_not_signed(tmp_path: Path) -> None:
    log = book(tmp_path)
    folder = tmp_path / "log" / "batches"
    for _ in range(100):
        log.keep(batch(log, "a"))
    log.prune(before_s=0, most_bytes=0)
    assert len(list(log.since(0))) == 100
    log.sign(log.next)
    for _ in range(10):
        log.keep(batch(log, "b"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    log.prune(before_s=0, most_bytes=size // 2)
    kept = sum(path.stat().st_size for path in folder.iterdir())
    assert size // 3 < kept <= size // 2 + 2000  # and a pack's index
    log.prune(before_s=0, most_bytes=0)
    assert [each.first for each in log.since(100)] == list(range(100, 110))


def test_where_the_disk_is_short_the_oldest_signed_go_as_far_as_is_lacking(tmp_path: Path) -> None:
    log = book(tmp_path)
    folder = tmp_path / "log" / "batches"
    for _ in range(10):
        log.keep(batch(log, "a"))
    log.sign(log.next)
    log.keep(batch(log, "b"))
    first_three = sum(path.stat().st_size for path in sorted(folder.iterdir())[:3])
    log.prune(before_s=0, short=first_three - 10)
    assert [each.first for each in log.since(3)] == list(range(3, 11))
    log.prune(before_s=0, short=2**40)
    assert [each.first for each in log.since(10)] == [10], "what nobody was shown stays"


def test_what_is_not_signed_is_not_packed(tmp_path: Path) -> None:
    log = book(tmp_path)
    for _ in range(100):
        log.keep(batch(log, "a"))
    log.prune(before_s=1e12)
    assert len(list((tmp_path / "log" / "batches").iterdir())) == 100
    log.drop_unsigned(7)
    assert log.next.size == 7


def test_a_pack_that_was_damaged_is_named(tmp_path: Path) -> None:
    log = book(tmp_path)
    for _ in range(100):
        log.keep(batch(log, "a"))
    log.sign(log.next)
    log.prune(before_s=0)
    pack = tmp_path / "log" / "batches" / f"{0:020d}.pack"
    whole = pack.read_bytes()
    pack.write_bytes(whole[:-20])
    with pytest.raises(ForkError, match=r"0\.pack is damaged"):
        list(book(tmp_path).since(0))
    pack.write_bytes(whole[:8] + b"\xc1" + whole[9:])
    with pytest.raises(ForkError, match=r"0\.pack is damaged"):
        book(tmp_path)


def test_a_log_that_ends_is_put_aside_whole(tmp_path: Path) -> None:
    log = book(tmp_path)
    log.keep(batch(log, "a"))
    before = log.log
    log.begin_anew()
    assert log.log != before
    assert (log.next.size, log.cursor) == (0, ("", Cursor(0, -1)))
    assert (tmp_path / "log.ended-0" / "batches" / f"{0:020d}.batch").exists()
