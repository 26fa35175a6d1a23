"""Endings the journal is owed: small, bounded, and written once."""

from __future__ import annotations

import pytest

from sidecar.core import endings
from sidecar.core.endings import Ending, Owed
from sidecar.core.model import NO_FACTS, Denial, Outcome, OutcomeKind, Usage
from sidecar.core.reasons import Reason
from sidecar.core.recorded import Output
from tests.support.core import AT, Stage
from tests.support.recorder import ListRecorder

FULL = Denial(Reason.AUDIT_UNAVAILABLE)


def an_ending(call_id: str, *texts: bytes) -> Ending:
    return Ending(Stage().open(call_id), Output(0, texts), Outcome(OutcomeKind.COMPLETED), Usage(), AT)


def test_they_are_written_oldest_first_and_once() -> None:
    owed, recorder = Owed(), ListRecorder(denial=FULL)
    owed.keep(an_ending("a", b"x"))
    owed.keep(an_ending("b"))
    owed.pay(recorder)
    assert len(owed) == 2
    recorder.denial = None
    owed.pay(recorder)
    owed.pay(recorder)
    assert [what[0].admission.call.id for _, what in recorder.entries] == ["a", "b"]
    assert len(owed) == 0


def test_nothing_of_the_request_is_held_with_them() -> None:
    ending, owed, recorder = an_ending("a"), Owed(), ListRecorder()
    owed.keep(ending)
    owed.pay(recorder)
    ((_, (kept, *_)),) = recorder.entries
    assert (kept.admission.call.message, kept.admission.forward.message) == (b"", b"")
    assert kept.admission.facts is NO_FACTS
    assert ending.recorded.admission.call.message == b"request"  # the call's own is left alone


def test_over_the_bounds_texts_go_first_and_then_endings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "OWED_BYTES", 3)
    monkeypatch.setattr(endings, "OWED_CALLS", 3)
    owed, recorder = Owed(), ListRecorder()
    for call_id, text in (("a", b"xx"), ("b", b"yy"), ("c", b"z"), ("d", b"")):
        owed.keep(an_ending(call_id, text))
    owed.pay(recorder)
    assert [what[1].texts for _, what in recorder.entries] == [(b"xx",), (), (b"z",)]
    owed.keep(an_ending("e", b"zzz"))  # what was written is no longer counted
    owed.pay(recorder)
    assert recorder.entries[-1][1][1].texts == (b"zzz",)
