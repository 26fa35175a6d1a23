"""audit.evidence: what was done to a log is named for what it is, and a sound log has no fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from audit.evidence import FLEETS, Fault, FaultKind, Head, StoredRow, TreeCheck, check_rows, covered, read_head
from audit.merkle import Frontier, leaf_hash
from audit.rows import EVENT_COLUMNS
from audit.tlog import Checkpoint, Signer

AT = datetime(2026, 11, 30, tzinfo=UTC)
LEAVES = [leaf_hash(b"%d" % n) for n in range(10)]


def root_of(leaves: list[bytes]) -> bytes:
    return Frontier().extended(leaves).root


def head(size: int, leaves: list[bytes] = LEAVES) -> Head:
    return Head(size, root_of(leaves[:size]), "checkpoint")


def judged(heads: list[Head], leaves: list[bytes] = LEAVES) -> tuple[list[FaultKind], int]:
    check = TreeCheck("log", heads)
    assert check.add(0, b"".join(leaves[:4]))
    assert check.add(4, b"".join(leaves[4:]))
    result = check.finish()
    return [fault.kind for fault in result.faults], result.signed


OTHER = [*LEAVES[:5], leaf_hash(b"altered"), *LEAVES[6:]]


@pytest.mark.parametrize(
    ("heads", "leaves", "kinds", "signed"),
    [
        ([head(4), head(7), head(10)], LEAVES, [], 10),
        ([head(7)], LEAVES, [], 7),
        ([], LEAVES, [], 0),
        ([head(4), head(10)], OTHER, [FaultKind.EDIT], 4),
        ([head(4), head(10)], LEAVES[:6], [FaultKind.TRUNCATED_TAIL], 4),
        ([head(7), head(7, OTHER)], LEAVES, [FaultKind.FORK], 7),
        ([head(7, OTHER), head(10)], LEAVES, [FaultKind.FORK], 10),
    ],
)
def test_heads_tell_what_became_of_the_leaves(
    heads: list[Head], leaves: list[bytes], kinds: list[FaultKind], signed: int
) -> None:
    assert judged(heads, leaves) == (kinds, signed)


def test_only_a_log_s_own_key_signs_for_it() -> None:
    fleets = replace(head(10), by=FLEETS)
    assert judged([head(4), fleets]) == ([], 4)
    assert judged([fleets]) == ([], 0)
    assert judged([replace(head(10, OTHER), by=FLEETS)])[0] == [FaultKind.EDIT]  # it must still be as it was told


def test_leaves_fit_as_long_as_every_head_passed_is_of_them() -> None:
    check = TreeCheck("log", [head(3), head(7, OTHER), head(10)])
    assert check.fits
    for first, last, fits in ((0, 4, True), (4, 6, True), (6, 8, False), (8, 10, False)):
        assert check.add(first, b"".join(LEAVES[first:last]))
        assert check.fits is fits
    start = Frontier().extended(LEAVES[:7])
    assert not TreeCheck("log", [head(7, OTHER)], start=start).fits


@pytest.mark.parametrize(("first", "hashes"), [(3, b"h" * 32), (1, b"h" * 32), (2, b"h" * 31)])
def test_leaves_that_do_not_follow_are_a_deletion(first: int, hashes: bytes) -> None:
    check = TreeCheck("log", [])
    assert check.add(0, b"".join(LEAVES[:2]))
    assert not check.add(first, hashes)
    assert [fault.kind for fault in check.finish().faults] == [FaultKind.DELETION]


def test_a_resumed_check_judges_only_what_is_new() -> None:
    check = TreeCheck("log", [head(4), head(8)], start=Frontier().extended(LEAVES[:6]))
    assert check.add(6, b"".join(LEAVES[6:]))
    result = check.finish()
    assert (result.faults, result.signed, result.tree) == ([], 8, Frontier().extended(LEAVES))


def test_a_stored_head_counts_only_as_its_log_signed_it() -> None:
    signer, other = Signer("warden/EU/log", b"s" * 32), Signer("warden/EU/log", b"t" * 32)
    told = Checkpoint("warden/EU/log", 10, root_of(LEAVES)).text
    note = signer.sign(told)
    assert read_head("log", 10, note, signer.verifier) == Head(10, root_of(LEAVES), "checkpoint")
    assert read_head("log", None, note, signer.verifier) == read_head("log", 10, note, signer.verifier)
    foreign = signer.sign(Checkpoint("warden/EU/another", 10, root_of(LEAVES)).text)
    for size, words in ((9, note), (10, other.sign(told)), (10, "no note"), (10, foreign)):
        found = read_head("log", size, words, signer.verifier)
        assert isinstance(found, Fault)
        assert found.kind is FaultKind.REPLACED_CHECKPOINT


def row(position: int, kind: str = "posture") -> StoredRow:
    values = [f"e{position}", AT, kind, "", "", {}, "pod-1", "log", position, "journal", position, "r", "EU", False]
    return StoredRow.named("event", dict(zip(EVENT_COLUMNS, values, strict=True)))


ROWS = [row(n) for n in range(5, 11)]
HASHES = b"".join(each.leaf() for each in ROWS)


def moved(each: StoredRow, position: int) -> StoredRow:
    return msgspec.structs.replace(
        each,
        position=position,
        values=[
            position if name == "position" else value for name, value in zip(EVENT_COLUMNS, each.values, strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows: rows, []),
        (lambda rows: [*rows[:2], row(7, "altered"), *rows[3:]], [(FaultKind.ALTERED_COLUMN, 7)]),
        (lambda rows: [*rows[:2], *rows[3:]], [(FaultKind.DELETION, 7)]),
        (lambda rows: [*rows[:2], *rows[4:]], [(FaultKind.DELETION, 7)]),
        (lambda rows: [*rows, row(11)], [(FaultKind.INSERTION, 11)]),
        (lambda rows: [rows[0], *rows], [(FaultKind.INSERTION, 5)]),
        (lambda rows: [*rows, row(6, "second")], [(FaultKind.INSERTION, 6)]),
        (
            lambda rows: [moved(rows[1], 5), moved(rows[0], 6), *rows[2:]],
            [(FaultKind.REORDER, 5), (FaultKind.REORDER, 6)],
        ),
    ],
)
def test_rows_against_their_leaves(
    change: Callable[[list[StoredRow]], list[StoredRow]], found: list[tuple[FaultKind, int]]
) -> None:
    faults = list(check_rows("log", 5, HASHES, change(ROWS)))
    assert [(fault.kind, fault.position) for fault in faults] == found


def test_rows_that_a_signed_record_says_were_dropped_are_no_deletion() -> None:
    assert list(check_rows("log", 5, HASHES, ROWS[3:], gone=[(0, 7)])) == []
    assert [fault.position for fault in check_rows("log", 5, HASHES, ROWS[3:], gone=[(0, 6)])] == [5]


@pytest.mark.parametrize(
    ("gone", "whole"),
    [([], False), ([(0, 9)], True), ([(6, 9), (0, 5)], True), ([(0, 4), (6, 9)], False), ([(4, 9)], False)],
)
def test_ranges_cover_every_position_or_not(gone: list[tuple[int, int]], whole: bool) -> None:
    assert covered(3, 8, gone) is whole


def test_a_fault_as_json_has_no_empty_place() -> None:
    assert Fault(FaultKind.FORK, "log", "words").shape() == {"kind": "fork", "log": "log", "detail": "words"}
    assert Fault(FaultKind.EDIT, "log", "words", 0, "c").shape()["position"] == 0
