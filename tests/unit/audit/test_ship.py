"""What the shipper tells of itself while its database is away; what it stores is in tests/integration/audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit.follow import write_shipped
from audit.ship import Item
from tests.support.store import FakeJournal, Shipping, completed, event, refused, wait_until

NOBODY = "postgresql://127.0.0.1:1/none"


@pytest.mark.parametrize(("shipped", "hours"), [(-1, 3), (2, 2), (3, None)])
def test_a_shipper_that_never_reached_its_database_tells_how_old_the_oldest_entry_is(
    tmp_path: Path, shipped: int, hours: int | None
) -> None:
    journal, now = FakeJournal(), datetime.now(UTC)
    journal.append(*completed(now - timedelta(hours=3)), refused(now - timedelta(hours=2)))
    write_shipped(tmp_path, shipped)
    with Shipping(journal, NOBODY, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.last_error is not None and shipping.shipper._measured_at > 0)
        told = shipping.shipper.status.oldest_unshipped_at
    assert shipping.fault is None
    expected = None if hours is None else (now - timedelta(hours=hours)).timestamp()
    assert told == (None if expected is None else pytest.approx(expected, abs=1))


def test_an_oldest_entry_that_cannot_be_read_has_no_age(tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(b"no entry", event())
    with Shipping(journal, NOBODY, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.last_error is not None and shipping.shipper._measured_at > 0)
        assert shipping.shipper.status.oldest_unshipped_at is None


class Sealed(FakeJournal):
    """A journal whose entries can't be read, as under another key."""

    def read(self, limit: int) -> Sequence[Item]:
        raise OSError("sealed under another root key")


def test_a_journal_that_cannot_be_read_does_not_keep_the_database_from_being_asked(tmp_path: Path) -> None:
    journal = Sealed()
    journal.append(event())
    with Shipping(journal, NOBODY, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.last_error is not None)
        assert "connection" in str(shipping.shipper.status.last_error)
