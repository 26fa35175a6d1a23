"""audit.remains: exports are read once for all erasures, and each certificate lists the newest that may concern it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa

from audit.remains import LISTED, Exports

AT = datetime(2026, 11, 30, tzinfo=UTC)


class Rows:
    """A connection that has these exports: one each minute, of acme, of birch and of all in turn."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def execute(self, _: Any) -> list[tuple[str, datetime, str | None]]:
        self.asked += 1
        whose = ("acme", "birch", None)
        return [(f"x{n}", AT + timedelta(minutes=n), whose[n % 3]) for n in range(self.count)]


def test_the_newest_of_a_tenant_and_of_all_are_listed_and_the_rest_counted() -> None:
    rows = Rows(3 * LISTED)
    exports = Exports(cast("sa.Connection", rows))
    told = exports.before(AT + timedelta(minutes=3 * LISTED), "acme")
    wanted = [f"x{n}" for n in reversed(range(3 * LISTED)) if n % 3 != 1]
    assert [one.get("event") for one in told] == [*wanted[:LISTED], None]
    assert told[-1] == {"what": "more", "why": f"{LISTED} more of the kind"}
    assert [one["event"] for one in exports.before(AT + timedelta(minutes=3), "birch")] == ["x2", "x1"]
    assert [one["event"] for one in exports.before(AT + timedelta(minutes=2), "nobody")] == ["x2"]
    assert exports.before(AT - timedelta(minutes=1), "acme") == []
    assert rows.asked == 1
