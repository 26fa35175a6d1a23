"""What the signed entries of the fleet's log say, taken up one by one: births, heads, drops, officers' acts."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from audit import standing
from audit.drops import DROPPED, KEPT, believed
from audit.evidence import FLEETS, Head
from audit.standing import Act
from audit.tlog import Verifier

__all__ = ["FleetTold"]


@dataclass(slots=True)
class FleetTold:
    """What the fleet's log says; ``heads`` by log."""

    born: dict[str, str] = field(default_factory=dict)
    since: dict[str, datetime] = field(default_factory=dict)  # it was born
    heads: dict[str, list[Head]] = field(default_factory=dict)
    last: dict[str, tuple[datetime, bool]] = field(default_factory=dict)  # when it was heard of, whether it was closed
    dropped: dict[str, dict[str, list[tuple[int, int]]]] = field(default_factory=dict)  # by day, by log
    events: dict[str, str] = field(default_factory=dict)  # id → leaf
    anchored: dict[str, int] = field(default_factory=dict)  # where → the largest head that was kept there
    acts: list[Act] = field(default_factory=list)  # that holds and erasures follow from
    there: bool = False

    def gone(self, log: str) -> list[tuple[int, int]]:
        """[first, last] ranges of positions whose rows were dropped on record."""
        return [each for of_day in self.dropped.values() for each in of_day.get(log, [])]

    def learn(self, told: Mapping[str, Any], retention: Verifier) -> str:
        """Take an entry up; what is wrong with it, "" where nothing is."""
        kind = told["kind"]
        if kind == "event":
            self.events[told["id"]] = told["leaf"]
            if told["values"]["kind"] in standing.KINDS:
                values = told["values"]
                self.acts.append(Act(values["kind"], values["actor"], values["detail"]))
            return self._learn_drop(told["id"], told["values"], retention)
        if kind == "anchored":
            self.anchored[told["where"]] = max(told["size"], self.anchored.get(told["where"], 0))
            return ""
        log, at = told["log"], datetime.fromisoformat(told["at"])
        self.last[log] = (at, kind == "closed")
        if kind == "born":
            self.born[log] = told["sidecar"]
            self.since.setdefault(log, at)
        else:
            head = Head(told["size"], base64.b64decode(told["root"]), FLEETS)
            self.heads.setdefault(log, []).append(head)
        return ""

    def _learn_drop(self, event: str, values: Mapping[str, Any], retention: Verifier) -> str:
        kind, detail = values["kind"], values["detail"]
        if kind not in {DROPPED, KEPT}:
            return ""
        if not believed(retention, kind, event, detail):
            return f"a {kind} that nobody with the jurisdiction's key signed; it excuses nothing"
        if kind == KEPT:
            self.dropped.pop(detail["day"], None)
            return ""
        of_day = self.dropped.setdefault(detail["day"], {})
        for log, ranges in detail["logs"].items():
            of_day.setdefault(log, []).extend((first, last) for first, last in ranges)
        return ""
