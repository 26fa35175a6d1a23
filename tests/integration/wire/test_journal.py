"""What a disk or an intruder does to the journal of a running sidecar: noticed, put right, never recorded wrongly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.segments import segments_in
from tests.support.disk import small_disk_at
from tests.support.load import Load, Seen, judge
from tests.support.postgres import Server, query
from tests.support.sidecar import Launch, Sidecar, echo, ended
from tests.support.stack import eventually

pytestmark = pytest.mark.integration
BUSY = 60.0  # seconds: generous, for what takes one or two
WELL_FILLED = 8192  # bytes in a segment, of which its header and the entries of a start are the least


def current(sidecar: Sidecar) -> Path:
    """The segment that is written."""
    return segments_in(Path(sidecar.stack.directory) / "journal")[-1][1]


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes()[:-7])
    other.replace(path)


def flip(path: Path) -> None:
    """One bit, in the middle of what has been written."""
    descriptor = os.open(path, os.O_RDWR)
    at = os.fstat(descriptor).st_size // 2
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, at)[0] ^ 1]), at)
    os.close(descriptor)


def events(sidecar: Sidecar, kind: str) -> list[dict[str, object]]:
    rows = query(sidecar.parts.postgres_dsn, "SELECT detail FROM warden.audit_events WHERE kind = %s ORDER BY at", kind)
    return [detail for (detail,) in rows]


def test_a_segment_deleted_replaced_or_altered_under_load_is_put_right(own: Launch) -> None:
    """Deleted and replaced: nothing is lost. A flipped bit: at most its own entry, and later records survive."""
    sidecar = own()
    loads: list[Load] = []
    for number, harm in enumerate((delete, replace, flip), start=1):
        loads.append(load := Load(sidecar, 80, threads=4, seed=number))
        worker = threading.Thread(target=load.run)
        worker.start()
        # What stands in the segment's middle must be a call's: it begins with the event that tells the last harm.
        eventually(lambda: current(sidecar).stat().st_size >= WELL_FILLED, what="entries of calls", within_s=BUSY)
        harm(current(sidecar))
        eventually(
            lambda number=number: sidecar.metric("warden_journal_faults_total") >= number,
            what=f"{harm.__name__} to be noticed and put right", within_s=BUSY,
        )  # fmt: skip
        eventually(lambda: sidecar.stack.readyz().get("ready"), what="ready again", within_s=BUSY)
        worker.join()
    with sidecar.bare() as bare:
        assert bare.unary(echo(), sidecar.headers()).code == "OK"
    sidecar.settles()
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="all shipped", within_s=BUSY)
    eventually(lambda: len(events(sidecar, "journal_mended")) >= 3, what="the events", within_s=BUSY)
    mended = events(sidecar, "journal_mended")
    assert [each["kind"] for each in mended][:2] == ["deleted", "replaced"]
    assert mended[2]["kind"] in ("damaged", "unreadable")
    assert [each["lost"] for each in mended[:2]] == [0, 0]
    assert int(str(mended[2]["lost"])) <= 1
    known = {record["call_id"]: record for record in sidecar.search(limit=1000)}
    # Refusals of the moments in which nothing could be recorded are counted, not recorded.
    seen = [call for load in loads for call in load.seen]
    served = [call for call in seen if call.answered and call.code == "OK" and not call.in_band]
    missing = [call for call in served if call.call_id not in known]
    wrong = [call for call in seen if call.call_id in known and not _tells(known[call.call_id], call)]
    assert len(missing) + len(wrong) <= 1, f"the flipped bit costs one entry at most: {missing} {wrong}"


def _tells(record: dict[str, Any], call: Seen) -> bool:
    if record["reason"] == "AUDIT_UNAVAILABLE":  # cut off at a moment when nothing could be recorded
        return str(record["output"] or "").startswith(call.text)
    try:
        judge([call], [record], progress=lambda _: None)
    except AssertionError:
        return False
    return True


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", "2m") as disk:
        yield disk


def test_a_really_full_disk_climbs_the_ladder_refuses_and_recovers(
    own: Launch, small_disk: Path, postgres: Server
) -> None:
    """The database is away, so nothing can be freed; memory stays bounded; afterwards each answered call is there."""
    journal = {"directory": str(small_disk), "min_free": "256KiB", "segment_bytes": "128KiB", "tenant_share": 1.0}
    sidecar = own(overrides={"audit": {"journal": journal}})
    headers, answered = sidecar.headers(), set()
    postgres.stop()
    try:
        before = sidecar.rss()
        with sidecar.bare() as bare:

            def full() -> Any:
                answers = [ended(call) for call in [bare.begin(echo(b"x" * 4000), headers) for _ in range(20)]]
                answered.update(answer.call_id for answer in answers if answer.code == "OK")
                return next((answer for answer in answers if answer.code != "OK"), None)

            refused = eventually(full, what="the disk to be full", within_s=BUSY)
            assert (refused.code, refused.told().reason) == ("UNAVAILABLE", "AUDIT_UNAVAILABLE")
            eventually(lambda: sidecar.metric("warden_journal_pressure") == 3, what="the last step", within_s=BUSY)
            checks = sidecar.stack.readyz()["checks"]
            assert "refuse" in checks["journal"]["detail"]
            assert sidecar.rss() - before < 64 * 2**20
    finally:
        postgres.start()
    with sidecar.bare() as bare:
        eventually(lambda: bare.unary(echo(), headers).code == "OK", what="calls to go on", within_s=BUSY)
    eventually(lambda: sidecar.metric("warden_ship_lag_records") == 0, what="all shipped", within_s=BUSY)
    records = [record["call_id"] for record in sidecar.search(reveal=False, limit=10_000)]
    assert len(records) == len(set(records))
    assert answered <= set(records)
    steps = [each["step"] for each in events(sidecar, "journal_pressure")]
    assert "refuse" in steps
    assert steps[-1] != "refuse"
