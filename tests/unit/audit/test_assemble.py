"""audit.assemble: entries in, records out; texts that Postgres would refuse come out clean and marked."""

from __future__ import annotations

import msgspec
import pytest

from audit.assemble import CallRecord, Cleaner, EventRecord, Joiner, evidence, moment
from audit.record import Admitted, CallFacts, Entry, Output, Refused, Settled
from tests.support.store import PLACE, completed, content, event, facts, refused, settled


def join(entries: list[Entry], joiner: Joiner | None = None) -> list[CallRecord | EventRecord]:
    joiner = joiner or Joiner()
    found = (joiner.add(PLACE, sequence, entry) for sequence, entry in enumerate(entries))
    return [record for record in found if record is not None]


def test_three_entries_are_one_record() -> None:
    (record,) = join(completed())
    assert isinstance(record, CallRecord)
    assert (record.first, record.sequence, record.output) == (0, 2, [b"Over ", b"there."])


def test_interleaved_calls_keep_their_own_output() -> None:
    one, other = facts(), facts()
    records = join(
        [
            Admitted(one),
            Admitted(other),
            Output(one.call_id, 0, 0, [b"a"]),
            Output(other.call_id, 0, 0, [b"x"]),
            Output(one.call_id, 0, 1, [b"b"]),
            settled(other, b"y", before=b"x"),
            settled(one, before=b"ab"),
        ]
    )
    assert [(r.facts.call_id, b"".join(r.output)) for r in records if isinstance(r, CallRecord)] == [
        (other.call_id, b"xy"),
        (one.call_id, b"ab"),
    ]


def test_output_that_was_journaled_twice_counts_once() -> None:
    call = facts()
    again = Output(call.call_id, 0, 0, [b"once"])
    (record,) = join([Admitted(call), again, again, settled(call, before=b"once")])
    assert isinstance(record, CallRecord)
    assert record.output == [b"once"]


def test_refusals_and_events_are_records_at_once() -> None:
    records = join([refused(), event("posture")])
    assert [type(record) for record in records] == [CallRecord, EventRecord]


def test_a_refusal_ends_an_admission() -> None:
    joiner, call = Joiner(), facts()
    (record,) = join([Admitted(call), Refused(call, "AUDIT_UNAVAILABLE", 14)], joiner)
    assert isinstance(record, CallRecord)
    assert isinstance(record.end, Refused)
    assert joiner.open_calls == 0
    assert joiner._held == 0


def test_a_second_outcome_is_an_event() -> None:
    first, *rest = completed()
    records = join([first, *rest, rest[-1]])
    assert isinstance(records[1], EventRecord)
    assert records[1].event.kind == "settled_without_admission"


def test_needed_is_where_the_oldest_open_call_began() -> None:
    joiner, one, other = Joiner(), facts(), facts()
    join([Admitted(one), Admitted(other)], joiner)
    assert joiner.needed(2) == 0
    joiner.add(PLACE, 2, settled(one))
    assert joiner.needed(3) == 1
    joiner.add(PLACE, 3, settled(other))
    assert joiner.needed(4) == 4
    assert joiner.open_calls == 0


def test_open_content_is_bounded_and_what_is_cut_is_seen() -> None:
    joiner, call = Joiner(open_bytes=40), facts(prompt=content(b"p" * 20))
    outputs = [Output(call.call_id, 0, n * 10, [b"o" * 10]) for n in range(10)]
    (record,) = join([Admitted(call), *outputs, settled(call, before=b"o" * 100)], joiner)
    assert isinstance(record, CallRecord)
    assert isinstance(record.end, Settled)
    assert sum(map(len, record.output)) == 20
    assert record.end.output_bytes == 100
    later = facts(prompt=content(b""))
    (after,) = join([Admitted(later), settled(later, b"o" * 30)], joiner)  # what the first held is free again
    assert isinstance(after, CallRecord)
    assert sum(map(len, after.output)) == 30


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("plain", "plain"),
        ("", ""),
        ("naïve ✓", "naïve ✓"),
        ("nul\x00", "nul\ufffd"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("x" * 300, "x" * 256),
    ],
)
def test_texts_are_made_fit(given: str, clean: str) -> None:
    cleaner = Cleaner()
    assert cleaner.index(given) == clean
    assert cleaner.changed is (given != clean)


def test_numbers_and_json_are_made_fit() -> None:
    cleaner = Cleaner()
    assert cleaner.number(7) == 7
    assert cleaner.json({"a": 1, "b": "c", "d": True, "e": 0.5}) == '{"a":1,"b":"c","d":true,"e":0.5}'
    assert not cleaner.changed
    assert cleaner.number(2**63) == 2**63 - 1
    assert cleaner.json({"n": float("inf"), "z\x00": "\ud800"}) == '{"n":"inf","z\ufffd":"\ufffd"}'
    assert cleaner.changed


def test_json_is_bounded() -> None:
    cleaner = Cleaner()
    told = msgspec.json.decode(cleaner.json({str(n): n for n in range(1000)}))
    assert len(told) == 256
    assert cleaner.changed


def test_evidence_is_the_original_without_content() -> None:
    call = facts(tenant="a\x00", prompt=content(b"secret prompt"))
    (record,) = join([Admitted(call), settled(call, b"secret output")])
    assert isinstance(record, CallRecord)
    kept = evidence(record)
    assert b"secret" not in kept
    told, end = msgspec.msgpack.decode(kept, type=tuple[CallFacts, list[object]])
    assert told.tenant == "a\x00"
    assert told.prompt.sha256 == call.prompt.sha256
    assert end[0] == "settled"


def test_moments_are_microseconds() -> None:
    assert moment(1_796_040_000_123_456_789).isoformat() == "2026-11-30T12:00:00.123456+00:00"
