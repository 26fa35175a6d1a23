"""The judge of the crash tests: what it lets pass, and that it fails where a record says less than its client saw."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.load import LAG_BYTES, Seen, judge

WORDS = [f"word{n} " for n in range(40)]


def streamed(words: int, every_s: float = 0.01, **more: Any) -> Seen:
    """A stream that began at 0 and of which so many words came, the first at once."""
    times = [n * every_s for n in range(words)]
    return Seen("stream", "c/1", "UNAVAILABLE", "".join(WORDS[:words]), times=times, ended=1.0, **more)


def recorded(words: int, outcome: str = "aborted", call_id: str = "c/1") -> dict[str, Any]:
    return {"call_id": call_id, "outcome": outcome, "output": "".join(WORDS[:words])}


def judged(call: Seen, *records: dict[str, Any], **options: Any) -> list[float]:
    return judge([call], list(records), progress=lambda _: None, **options).behind


def test_what_a_client_had_read_for_longer_than_the_bound_must_be_in_the_record() -> None:
    call = streamed(40)  # the last at 0.39 s
    assert judged(call, recorded(40), killed=[0.4]) == []
    assert judged(call, recorded(31), killed=[0.4]) == [pytest.approx(0.09)]
    with pytest.raises(AssertionError, match=r"read for 0\.250 s"):
        judged(call, recorded(15), killed=[0.4])


def test_words_that_came_together_may_all_be_lost_but_no_older_one() -> None:
    call = streamed(40, every_s=0.0)
    assert judged(call, recorded(0), killed=[0.05]) == [0.05]
    with pytest.raises(AssertionError, match=r"read for 0\.300 s"):
        judged(call, recorded(39), killed=[0.3])


def test_the_crash_that_cut_a_call_off_is_the_first_since_it_began() -> None:
    call = streamed(40)
    call.began = 0.0
    assert judged(call, recorded(35), killed=[-5.0, 0.4, 9.0]) == [pytest.approx(0.05)]


def test_more_than_16_kib_may_not_be_lost_however_fast() -> None:
    call = Seen("stream", "c/1", "UNAVAILABLE", "x" * (LAG_BYTES + 1), times=[0.0], ended=0.01)
    with pytest.raises(AssertionError):
        judged(call, recorded(0), killed=[0.01])


def test_only_a_crash_may_lose_a_word() -> None:
    call = streamed(3)
    call.kind, call.code = "cancelled", "CANCELLED"
    assert judged(call, recorded(4, "cancelled")) == []
    with pytest.raises(AssertionError):
        judged(call, recorded(2, "cancelled"))


def test_another_text_than_was_read_is_never_right() -> None:
    with pytest.raises(AssertionError):
        judged(streamed(3), {"call_id": "c/1", "outcome": "aborted", "output": "word0 other "}, killed=[0.03])


@pytest.mark.parametrize(
    "call",
    [
        Seen("unary", "c", "OK"),
        Seen("refused", "c", "PERMISSION_DENIED", refused=True),
        Seen("stream", "c", "OK", final=True),
        Seen("stream", "c", in_band="[RATE_REQUESTS] later"),
        Seen("stream", "c", "UNAVAILABLE", "word0 ", times=[0.0]),
    ],
)
def test_who_saw_anything_has_a_record(call: Seen) -> None:
    with pytest.raises(AssertionError):
        judged(call)


def test_a_call_has_one_record() -> None:
    with pytest.raises(AssertionError, match="more than one"):
        judged(streamed(1), recorded(1), recorded(1), killed=[0.02])


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (Seen("unary", "c/1", "OK"), "aborted"),
        (Seen("unary", "c/1", "UNAVAILABLE", refused=True), "completed"),
        (Seen("stream", "c/1", "OK", final=True), "aborted"),
        (Seen("throttled", "c/1", "RESOURCE_EXHAUSTED", refused=True), "aborted"),
        (Seen("stream", "c/1", "UNAVAILABLE"), "failed"),
    ],
)
def test_what_a_client_was_told_is_what_is_recorded(call: Seen, outcome: str) -> None:
    with pytest.raises(AssertionError):
        judged(call, recorded(0, outcome))


def test_whom_its_limit_let_through_may_meet_a_triton_that_is_away() -> None:
    call = Seen("throttled", "c/1", "UNAVAILABLE", refused=True)
    assert judged(call, recorded(0, "failed")) == []
    with pytest.raises(AssertionError):
        judged(call, recorded(0, "completed"))


def test_where_triton_itself_failed_calls_may_have_failed_of_it() -> None:
    assert judged(Seen("stream", "c/1", "DEADLINE_EXCEEDED"), recorded(0, "failed"), upstream_failed=True) == []
