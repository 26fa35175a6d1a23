"""Who is looked at in which round."""

from __future__ import annotations

from sidecar.quotas.agenda import Agenda


def test_each_is_looked_at_when_it_was_put_in_for_and_once() -> None:
    agenda = Agenda()
    agenda.soon("a", "b")
    agenda.later("c", 1)
    agenda.later("d", 3)
    assert agenda.begin() == (["a", "b"], ["c"])
    agenda.later("e", 2)
    assert agenda.begin() == ([], [])
    assert agenda.begin() == ([], ["d", "e"])
    assert agenda.begin() == ([], [])
    assert agenda.round == 4
