"""Whatever comes when: what goes out of a line is all that was put in, each place's in order, places never mixed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.transports.ordering import Line, Place

STEPS = st.lists(st.tuples(st.sampled_from(["join", "put", "close"]), st.integers(0, 7)), max_size=80)


@given(STEPS)
def test_a_line_lets_out_everything_in_the_order_of_its_places(steps: list[tuple[str, int]]) -> None:
    """Invariant: the concatenation of all that goes out is, place by place in the order of joining, what was put."""
    line, places, put, out = Line(), list[Place](), list[list[bytes]](), list[bytes]()
    closed: set[int] = set()
    for n, (what, which) in enumerate(steps):
        if what == "join":
            places.append(line.join())
            put.append([])
        elif places:
            place = which % len(places)
            if what == "put" and place not in closed:
                message = b"%d/%d" % (place, n)
                put[place].append(message)
                out += line.put(places[place], message)
            elif what == "close":
                closed.add(place)
                out += line.close(places[place])
        given_in = sum(len(message) for each in put for message in each)
        assert line.kept == given_in - sum(map(len, out))
        first_open = next((n for n in range(len(places)) if n not in closed), len(places))
        assert out == [message for each in put[: first_open + 1] for message in each]  # nothing waits without need
    for place in places:
        out += line.close(place)
    assert out == [message for each in put for message in each]
    assert line.kept == 0


@given(STEPS)
def test_after_a_clear_nothing_is_kept_and_all_goes_out_at_once(steps: list[tuple[str, int]]) -> None:
    """Invariant: cleared, a line holds no byte, and gives back as many as it had kept."""
    line = Line()
    places = [line.join() for _ in range(4)]
    for n, (what, which) in enumerate(steps):
        place = places[which % 4]
        if what == "put" and not place.closed:
            line.put(place, b"x" * n)
        elif what == "close":
            line.close(place)
    kept = line.kept
    assert line.clear() == kept
    assert line.kept == 0
    assert [line.put(place, b"late") for place in places] == [(b"late",)] * 4
    assert all(not line.close(place) for place in places)
