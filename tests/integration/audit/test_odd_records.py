"""What breaks others' loggers is stored, found and verified: NULs, invalid UTF-8, 10 MB, a clock that jumps back."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from audit import store
from audit.opening import Opener
from audit.record import Admitted, Output
from audit.search import Asker, Filter, search
from tests.integration.audit.test_verify import check, fill
from tests.support.postgres import Server, query
from tests.support.store import FakeJournal, Shipping, completed, content, facts, keys_in, settled, wait_until

AT = datetime.now(UTC)
_ids = (f"odd-{n}" for n in itertools.count())
HUGE = bytes(range(256)) * 40_960  # 10 MiB of every byte


def long_output(call_id: str) -> Iterator[Any]:
    """A call whose output comes in 64 KiB pieces."""
    call = facts(AT, call_id=call_id)
    yield Admitted(call)
    step = 65_536
    for at in range(0, len(HUGE), step):
        yield Output(call.call_id, call.started_ns + at, at, [HUGE[at : at + step]])
    end = settled(call, offset=len(HUGE))
    whole = hashlib.sha256(HUGE).digest()
    yield msgspec.structs.replace(end, output_bytes=len(HUGE), output_sha256=whole)


def test_odd_records_are_stored_found_and_verified(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    odd = b"\x00\xff\xfe\xed\xa0\x80 caf\xc3"  # NUL, no UTF-8, a surrogate's bytes, half a character
    journal.append(
        *completed(AT, call_id="nul", prompt=content(odd), subject="a\x00b", conversation="\x00", key_id="k\x00"),
        *completed(AT, call_id="params", parameters={"\x00": "\x00", "nan": float("nan"), "big": 2**62}),
        *completed(AT - timedelta(hours=1), call_id="back"),  # the clock jumped back
        *completed(AT + timedelta(hours=1), call_id="ahead"),
        *long_output("huge"),
        *completed(AT, call_id="wide", prompt=content("𝔘𝔫𝔦 \ufffd\u202e".encode())),
    )
    fill(dsn, tmp_path, journal=journal, calls=3, rounds=1)
    assert check(dsn, tmp_path / "anchor").faults == []
    found = {record["call_id"]: record for record in ask(dsn, tmp_path, Filter(until=AT + timedelta(days=1)))}
    assert {"nul", "params", "back", "ahead", "huge", "wide"} <= found.keys()
    assert found["huge"]["output_bytes"] == len(HUGE)
    assert found["nul"]["subject"] == "a\x00b"
    assert found["nul"]["prompt"].startswith("\x00\ufffd")
    for asked, expected in (
        (Filter(subject="a\x00b"), ["nul"]),
        (Filter(conversation="\x00"), ["nul"]),
        (Filter(until=AT - timedelta(minutes=30)), ["back"]),
        (Filter(text="𝔘𝔫𝔦", since=AT - timedelta(hours=2), until=AT + timedelta(hours=2)), ["wide"]),
    ):
        assert [record["call_id"] for record in ask(dsn, tmp_path, asked)] == expected


def ask(dsn: str, directory: Path, asked: Filter) -> list[dict[str, Any]]:
    engine = store.connect(dsn, application="test")
    try:
        page = search(engine, asked, Asker("ada", AT, _ids, "odd", reveal=True), Opener(keys_in(directory)), "EU")
        return [found.shape() for found in page.found]
    finally:
        engine.dispose()


def test_a_standby_that_lacks_the_last_500_records_gets_them_again(postgres: Server, dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    fill(dsn, tmp_path, journal=journal)
    standby = postgres.snapshot(dsn)
    journal.append(*(entry for _ in range(500) for entry in completed()))
    with Shipping(journal, dsn, tmp_path, anchor=tmp_path / "anchor") as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.signed_size == 513, seconds=60)
        rows = "SELECT position, call_id, prompt_sealed, data_key FROM warden.audit_calls ORDER BY 1"
        before = query(dsn, rows)
        postgres.restore(standby, dsn)
        journal.append(*completed())
        wait_until(lambda: shipping.fault or shipping.shipper.status.signed_size == 515, seconds=60)
    assert shipping.fault is None
    assert query(dsn, rows)[: len(before)] == before
    ((told,),) = query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'database_rolled_back'")
    assert (told["size"], told["signed_size"]) == (13, 513)
    report = check(dsn, tmp_path / "anchor")
    assert (report.faults, report.records) == ([], 515)
