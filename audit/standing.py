"""Checks holds and erasures as they stand against the acts that made them, which are in the fleet's log. Pure.

Their rows change as they go on, so no trigger keeps them; what they may say follows from what officers did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from audit.evidence import Fault, FaultKind

__all__ = ["KINDS", "Act", "check_erasures", "check_holds"]

PLACED: Final = "hold_placed"
RELEASED: Final = "hold_released"
REQUESTED: Final = "erasure_requested"
ERASED: Final = "subject_erased"
DONE: Final = "erasure_done"
KINDS: Final = frozenset({PLACED, RELEASED, REQUESTED, ERASED, DONE})
_FLEET: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Act:
    """One act of record."""

    kind: str
    actor: str
    detail: Mapping[str, Any]


Young = Callable[[datetime], bool]  # whether the fleet's log may not have taken up yet what was done then


def check_holds(acts: Iterable[Act], rows: Iterable[Mapping[str, Any]], young: Young) -> Iterator[Fault]:
    """``rows`` of ``legal_holds``, ``of`` "all" or "subject"."""
    acts = list(acts)
    placed = {act.detail["hold"]: act for act in acts if act.kind == PLACED}
    released = {act.detail["hold"] for act in acts if act.kind == RELEASED}
    seen = set()
    for row in rows:
        seen.add(row["id"])
        act = placed.get(row["id"])
        if act is None:
            if not young(row["placed_at"]):
                yield _fault(FaultKind.INSERTION, f"legal hold {row['id']} that nobody placed")
            continue
        known = (act.detail["tenant"], act.detail["of"], act.actor)
        if (row["tenant"], row["of"], row["placed_by"]) != known:
            words = "is not what was placed" if row["of"] != "all" else "no longer says whose it is; it holds everybody"
            yield _fault(FaultKind.ALTERED_COLUMN, f"legal hold {row['id']} of {act.detail['tenant']} {words}")
        elif row["released_at"] is not None and row["id"] not in released and not young(row["released_at"]):
            yield _fault(FaultKind.ALTERED_COLUMN, f"legal hold {row['id']} is released, and nobody did that")
        elif row["released_at"] is None and row["id"] in released:
            yield _fault(FaultKind.ALTERED_COLUMN, f"legal hold {row['id']} was released, and is in force again")
    for hold in placed.keys() - seen - released:
        words = f"legal hold {hold} of {placed[hold].detail['tenant']} is gone; it holds everybody of that tenant"
        yield _fault(FaultKind.DELETION, words)


def check_erasures(acts: Iterable[Act], rows: Iterable[Mapping[str, Any]], young: Young) -> Iterator[Fault]:
    """``rows`` of ``erasures``."""
    by: dict[str, dict[str, Act]] = {}
    for act in acts:
        if act.kind in {REQUESTED, ERASED, DONE}:
            by.setdefault(act.detail["erasure"], {})[act.kind] = act
    seen = set()
    for row in rows:
        seen.add(row["id"])
        times = [row[name] for name in ("requested_at", "erased_at", "done_at") if row[name] is not None]
        told = by.get(row["id"], {})
        if not told:
            if not young(row["requested_at"]):
                yield _fault(FaultKind.INSERTION, f"erasure {row['id']} that nobody asked for")
        elif not any(young(at) for at in times):
            yield from _erasure(row, told)
    for erasure in by.keys() - seen:
        words = f"erasure {erasure} is gone, as in a database restored from before: `warden audit retain` does it again"
        yield _fault(FaultKind.DELETION, words)


def _erasure(row: Mapping[str, Any], told: Mapping[str, Act]) -> Iterator[Fault]:
    """At most one fault of it: the first of what is not as was done."""
    asked, erased = told.get(REQUESTED), told.get(ERASED)
    wrong = ""
    if asked is not None and (row["tenant"], row["requested_by"]) != (asked.detail["tenant"], asked.actor):
        wrong = "is not as it was asked for"
    elif asked is not None and row["requested_login"] != asked.detail.get("login", ""):
        wrong = "was asked for by another login"
    elif (row["erased_at"] is None) != (erased is None):
        wrong = "says it was carried out, and nobody did" if erased is None else "was carried out, and says it was not"
    elif erased is not None and (row["keys"], row["records"]) != (erased.detail["keys"], erased.detail["records"]):
        wrong = f"was of {erased.detail['keys']} keys and {erased.detail['records']} records"
    elif erased is not None and (row["confirmed_by"] or row["requested_by"]) != erased.actor:
        wrong = f"was carried out by {erased.actor}"
    elif row["confirmed_by"] and erased is not None and row["confirmed_login"] != erased.detail.get("login", ""):
        wrong = "was confirmed by another login"
    elif (row["done_at"] is None) != (DONE not in told):
        wrong = "says it is done, and is not on record so" if DONE not in told else "is done, and says it is not"
    if wrong:
        yield _fault(FaultKind.ALTERED_COLUMN, f"erasure {row['id']} {wrong}")


def _fault(kind: FaultKind, words: str) -> Fault:
    return Fault(kind, _FLEET, words)
