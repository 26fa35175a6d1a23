"""Invariant: however often shipping is cut and resumed from its cursor, the same records come out, each once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from audit.assemble import CallRecord, Joiner
from audit.record import Admitted, Entry, Output
from tests.support.store import PLACE, event, facts, refused, settled

STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "output", "settle", "refuse", "event"]), st.integers(0, 5)), max_size=40
)


def journal(steps: list[tuple[str, int]]) -> list[Entry]:
    """Entries as a sidecar would write them: output and outcome only of calls that are open."""
    live: dict[int, tuple[object, bytes]] = {}
    entries: list[Entry] = []
    for step, who in steps:
        if step == "open" and who not in live:
            call = facts()
            live[who] = (call, b"")
            entries.append(Admitted(call))
        elif step == "output" and who in live:
            call, told = live[who]
            entries.append(Output(call.call_id, 0, len(told), [b"x%d" % who]))  # type: ignore[attr-defined]
            live[who] = (call, told + b"x%d" % who)
        elif step == "settle" and who in live:
            call, told = live.pop(who)
            entries.append(settled(call, b"end", before=told))  # type: ignore[arg-type]
        elif step == "refuse":
            entries.append(refused())
        elif step == "event":
            entries.append(event())
    return entries


def run(entries: list[Entry], cuts: list[int]) -> list[tuple[int, bytes]]:
    """Ship with a restart at each of ``cuts``: (sequence, output) of every record taken."""
    taken: list[tuple[int, bytes]] = []
    needed, done = 0, -1
    for end in [*sorted(cuts), len(entries)]:
        joiner = Joiner()
        for sequence in range(needed, end):
            record = joiner.add(PLACE, sequence, entries[sequence])
            if record is not None and sequence > done:
                taken.append((sequence, b"".join(record.output) if isinstance(record, CallRecord) else b""))
        if end > needed:
            needed, done = joiner.needed(end), max(done, end - 1)
    return taken


@settings(max_examples=150, deadline=None)
@given(STEPS, st.lists(st.integers(0, 40), max_size=5))
def test_cuts_change_nothing(steps: list[tuple[str, int]], cuts: list[int]) -> None:
    entries = journal(steps)
    assert run(entries, [min(cut, len(entries)) for cut in cuts]) == run(entries, [])
