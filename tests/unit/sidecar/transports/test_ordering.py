"""The line of a stream by example; tests/property/test_ordering.py has its invariants."""

from __future__ import annotations

from sidecar.transports.ordering import Line


def test_the_first_goes_out_at_once_and_others_wait_for_it() -> None:
    line = Line()
    first, second, third = line.join(), line.join(), line.join()
    assert list(line.put(second, b"2a")) == []
    assert list(line.put(third, b"3")) == []
    assert list(line.put(first, b"1")) == [b"1"]
    assert list(line.close(third)) == []
    assert line.kept == 3
    assert list(line.close(first)) == [b"2a"]  # second is first now, and still open
    assert list(line.put(second, b"2b")) == [b"2b"]
    assert list(line.close(second)) == [b"3"]
    assert line.kept == 0


def test_a_place_that_is_closed_without_a_word_holds_nobody_up() -> None:
    line = Line()
    silent, next_one = line.join(), line.join()
    line.close(silent)
    line.close(silent)
    assert list(line.put(next_one, b"x")) == [b"x"]
