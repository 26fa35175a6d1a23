"""No two live sequences of a model share an id, whoever's they are; and the table never grows past its bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.core.model import Denial, Quantity, Secret, Share
from sidecar.core.reasons import Reason
from sidecar.quotas.pool import Pool
from sidecar.triton import sequences as module
from sidecar.triton.knowledge import CorrelationId, Sequences
from sidecar.triton.sequences import GRACE_NS, RESTS_NS, Given, SequenceTable

KEY = Secret(b"k" * 32)
SECOND = 10**9
WIDE, NARROW, TEXT = (
    Sequences(ids, 1_000_000) for ids in (CorrelationId.WIDE, CorrelationId.NARROW, CorrelationId.TEXT)
)
IDLE_NS = SECOND + GRACE_NS  # of these


def table(**bounds: int) -> SequenceTable:
    return SequenceTable(KEY, **bounds)


def enter(
    made: SequenceTable,
    client: int | str = 1,
    *,
    tenant: str = "acme",
    model: str = "m",
    kept: Sequences = WIDE,
    at: int = 0,
    start: bool = False,
) -> Given | Denial:
    return made.enter(tenant, model, kept, client, at, start=start)


def begun(made: SequenceTable, client: int | str = 1, **more: object) -> Given:
    found = enter(made, client, start=True, **more)  # type: ignore[arg-type]  # by name
    assert isinstance(found, Given)
    return found


def alive(made: SequenceTable, client: int | str = 1, **more: object) -> bool:
    return isinstance(enter(made, client, **more), Given)  # type: ignore[arg-type]  # as above


def test_ids_differ_by_tenant_model_client_and_process() -> None:
    made = table()
    ids = [begun(made, client, tenant=t, model=m).id for client in (1, 2) for t in ("a", "b") for m in ("m", "n")]
    ids.append(begun(SequenceTable(Secret(b"o" * 32))).id)
    assert len(set(ids)) == 9
    assert begun(table()).id == begun(table()).id  # of one key


def test_a_restart_keeps_the_id_and_is_another_epoch() -> None:
    made = table()
    first, again = begun(made), begun(made)
    assert first.id == again.id
    assert first.epoch != again.epoch
    made.leave("acme", "m", 1, first.epoch, 0)  # of the sequence before: late
    assert alive(made)
    made.leave("acme", "m", 1, again.epoch, 0)
    assert not alive(made)
    made.leave("acme", "m", 1, again.epoch, 0)
    assert len(made) == 0


def test_a_new_sequence_of_the_same_name_has_another_id() -> None:
    made = table()
    first = begun(made)
    made.leave("acme", "m", 1, first.epoch, 0)
    assert begun(made).id != first.id


def test_what_is_idle_for_longer_than_the_model_keeps_it_is_gone() -> None:
    made = table()
    begun(made)
    assert alive(made, at=IDLE_NS - 1)  # and from then on anew
    assert alive(made, at=2 * IDLE_NS - 2)
    assert not alive(made, at=3 * IDLE_NS - 2)
    assert len(made) == 0


def test_an_idle_time_is_bounded() -> None:
    made, forever = table(), Sequences(CorrelationId.WIDE, 2**63)
    begun(made, kept=forever)
    assert not alive(made, kept=forever, at=86_400 * SECOND + GRACE_NS)


def test_one_tenants_sequences_are_bounded_and_room_comes_back() -> None:
    made = table(per_tenant=2)
    begun(made, 1)
    begun(made, 2, at=SECOND)
    refused = enter(made, 3, at=SECOND, start=True)
    assert isinstance(refused, Denial)
    assert (refused.reason, refused.detail, refused.retry_after) == (Reason.CONCURRENCY, "2 sequences at once", 1.0)
    begun(made, 1, at=SECOND)  # one's own is none more
    begun(made, 1, tenant="birch", at=SECOND)
    begun(made, 3, at=SECOND + IDLE_NS)
    assert len(made) == 2


def test_all_sequences_are_bounded_and_room_comes_back() -> None:
    made = table(total=2)
    begun(made, tenant="a")
    begun(made, tenant="b")
    assert isinstance(enter(made, tenant="c", at=SECOND, start=True), Denial)
    begun(made, tenant="c", at=IDLE_NS)
    assert len(made) == 1


def test_a_sequence_whose_end_failed_stays_until_its_room_is_wanted() -> None:
    """Triton may have refused the END before the model saw it: then it can be sent again."""
    made = table(per_tenant=2)
    first, second = begun(made, 1), begun(made, 2)
    made.leave("acme", "m", 1, first.epoch, 0, failed=True)
    assert alive(made, 1)  # and by this request it goes on
    assert isinstance(enter(made, 3, start=True), Denial)
    for client, known in ((2, second), (1, first)):
        made.leave("acme", "m", client, known.epoch, 0, failed=True)
    begun(made, 3)
    assert (alive(made, 2), alive(made, 1)) == (False, True)
    made.leave("acme", "m", 1, first.epoch - 1, 0, failed=True)  # of another epoch: nothing
    assert isinstance(enter(made, 4, start=True), Denial)
    assert len(made) == 2


def test_room_for_all_is_made_by_ones_own_failed_end_before_anothers() -> None:
    made = table(total=3)
    for tenant in ("a", "b", "c"):
        found = begun(made, tenant=tenant)
        if tenant != "c":
            made.leave(tenant, "m", 1, found.epoch, 0, failed=True)
    begun(made, 2, tenant="b", at=SECOND)
    assert [alive(made, tenant=tenant, at=SECOND) for tenant in ("c", "b")] == [True, False]
    begun(made, 2, tenant="d", at=SECOND)  # has none: the oldest of anybody's
    assert not alive(made, tenant="a", at=SECOND)
    assert isinstance(enter(made, 2, tenant="e", at=SECOND, start=True), Denial)
    assert (len(made), made._failed) == (3, {})


def test_a_narrow_id_rests_longer_than_any_call_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTING_MAX", 1)
    made = SequenceTable(KEY, call_timeout=3600.0)
    made.leave("acme", "m", 1, begun(made, 1, kept=NARROW).epoch, 0)
    refused = enter(made, 2, kept=NARROW, start=True)
    assert isinstance(refused, Denial)
    assert refused.retry_after == 3660.0


def test_a_narrow_id_rests_before_it_is_anybodys_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NARROW", 3)  # ids from 1 to 3
    made = table()
    first = begun(made, 1, kept=NARROW)
    made.leave("acme", "m", 1, first.epoch, 0)
    others = {begun(made, client, tenant="birch", kept=NARROW).id for client in (1, 2)}
    assert others | {first.id} == {1, 2, 3}
    elsewhere = begun(made, 1, model="n", kept=NARROW)
    assert elsewhere.id in {1, 2, 3}
    assert begun(made, 9, tenant="cobalt", kept=NARROW, at=RESTS_NS).id == first.id


def test_narrow_ids_that_rest_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTING_MAX", 1)
    made = table()
    made.leave("acme", "m", 1, begun(made, 1, kept=NARROW).epoch, SECOND)
    refused = enter(made, 2, kept=NARROW, at=SECOND, start=True)
    assert isinstance(refused, Denial)
    assert (refused.reason, refused.retry_after) == (Reason.CONCURRENCY, RESTS_NS / SECOND)
    begun(made, 2, at=SECOND)  # of 64 bits
    begun(made, 3, kept=NARROW, at=SECOND + RESTS_NS)


def test_no_tenant_has_more_than_half_of_the_narrow_ids_that_may_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many a tenant begins and ends, there are some for whoever has none."""
    monkeypatch.setattr(module, "RESTING_MAX", 8)
    made, rested = table(), {"acme": 0, "birch": 0}
    for tenant in rested:
        while isinstance(found := enter(made, 1, tenant=tenant, kept=NARROW, start=True), Given):
            made.leave(tenant, "m", 1, found.epoch, 0)
            rested[tenant] += 1
    assert rested == {"acme": 4, "birch": 2}
    assert isinstance(enter(made, 1, tenant="cobalt", kept=NARROW, start=True), Given)
    begun(made, 1, kept=NARROW, at=RESTS_NS)  # those of before have rested


@pytest.mark.parametrize("kept", [WIDE, NARROW, TEXT])
def test_one_tenant_has_at_most_half_of_a_models_slots(kept: Sequences) -> None:
    made, kept = table(), replace(kept, slots=5)
    for client in (1, 2):
        begun(made, client, kept=kept)
    refused = enter(made, 3, kept=kept, start=True)
    assert isinstance(refused, Denial)
    assert (refused.reason, refused.retry_after) == (Reason.CONCURRENCY, 1.0)
    assert refused.detail == "2 sequences at once, half of those that the model runs"
    again = begun(made, 1, kept=kept)  # one's own is none more
    assert alive(made, 2, kept=kept)
    for client in (1, 2):
        begun(made, client, tenant="birch", kept=kept)
    begun(made, 3, kept=replace(kept, slots=0))  # it isn't said how many there are
    made.leave("acme", "m", 1, again.epoch, 0)
    made.leave("acme", "m", 2, 0, 0)  # another's epoch
    assert isinstance(enter(made, 4, kept=kept, start=True), Denial)


def pooled() -> SequenceTable:
    return SequenceTable(KEY, pool=lambda: Pool(Quantity.CONCURRENCY, 0))


def test_two_tenants_with_all_slots_let_a_third_in_first() -> None:
    """Half each is all there is. Whoever of them ends one can't begin another before the third has its own."""
    made, kept = pooled(), replace(WIDE, slots=4)
    for tenant in ("acme", "birch"):
        for client in (1, 2):
            begun(made, client, tenant=tenant, kept=kept)
    refused = enter(made, 1, tenant="cobalt", kept=kept, start=True)
    assert isinstance(refused, Denial)
    assert (refused.reason, refused.detail) == (Reason.CONCURRENCY, "the model runs as many sequences as it can")
    again = begun(made, 1, kept=kept)  # one's own, begun anew, takes none more
    made.leave("acme", "m", 1, again.epoch, 0)
    assert isinstance(enter(made, 3, kept=kept, at=1, start=True), Denial)
    begun(made, 1, tenant="cobalt", kept=kept, at=2)
    assert isinstance(enter(made, 3, kept=kept, at=3, start=True), Denial)


def test_the_tenant_within_its_guarantee_comes_before_those_beyond_theirs() -> None:
    made, kept = pooled(), replace(WIDE, slots=4)
    first = begun(made, 1, kept=kept)
    for tenant, client in (("acme", 2), ("birch", 1), ("birch", 2)):
        begun(made, client, tenant=tenant, kept=kept)
    for tenant, share in (("cobalt", Share(0, 1000)), ("dove", Share(250, 1000))):
        assert isinstance(made.enter(tenant, "m", kept, 1, 1, start=True, share=share), Denial)
    made.leave("acme", "m", 1, first.epoch, 2)
    assert isinstance(made.enter("cobalt", "m", kept, 1, 3, start=True, share=Share(0, 1000)), Denial)
    assert isinstance(made.enter("dove", "m", kept, 1, 4, start=True, share=Share(250, 1000)), Given)


def test_what_others_leave_idle_may_be_borrowed_up_to_ones_burst() -> None:
    made, kept = pooled(), replace(WIDE, slots=8)
    for client in (1, 2):
        assert isinstance(made.enter("acme", "m", kept, client, 0, start=True, share=Share(0, 250)), Given)
    assert isinstance(made.enter("acme", "m", kept, 3, 0, start=True, share=Share(0, 250)), Denial)


@given(
    st.lists(
        st.tuples(st.sampled_from(["acme", "birch", "cobalt", "dove"]), st.integers(1, 5), st.booleans()), max_size=60
    )
)
def test_no_more_sequences_run_than_the_model_has_slots(steps: list[tuple[str, int, bool]]) -> None:
    """Invariant: those begun and not ended are never more than the slots, and no tenant's more than half of them."""
    made, kept, alive_now = pooled(), replace(WIDE, slots=6), dict[tuple[str, int], int]()
    for now, (tenant, client, starts) in enumerate(steps):
        if starts:
            found = enter(made, client, tenant=tenant, kept=kept, at=now, start=True)
            if isinstance(found, Given):
                alive_now[tenant, client] = found.epoch
        elif (tenant, client) in alive_now:
            made.leave(tenant, "m", client, alive_now.pop((tenant, client)), now)
        assert len(alive_now) == len(made) <= 6
        assert all(sum(1 for whose, _ in alive_now if whose == each) <= 3 for each in ("acme", "birch", "cobalt"))


def test_a_sequence_that_triton_has_given_up_has_no_slot_any_more() -> None:
    made, kept = table(), replace(WIDE, slots=4)
    for client in (1, 2):
        begun(made, client, kept=kept)
    assert isinstance(enter(made, 3, kept=kept, at=SECOND - 1, start=True), Denial)
    for client in (3, 4):
        begun(made, client, kept=kept, at=SECOND)
    # The first two are remembered still, so to begin one of them anew takes a slot too.
    assert isinstance(enter(made, 1, kept=kept, at=SECOND, start=True), Denial)
    begun(made, 1, kept=kept, at=2 * SECOND)


@pytest.mark.parametrize("kept", [WIDE, NARROW, TEXT])
def test_where_an_end_failed_the_next_sequence_takes_its_slot(kept: Sequences) -> None:
    """Triton may keep such a one: begun anew under its own id it is ended, and takes no slot but its own."""
    made, kept = table(), replace(kept, slots=4)
    first, second = begun(made, 1, kept=kept), begun(made, 2, kept=kept)
    made.leave("acme", "m", 1, first.epoch, 0, failed=True)
    third = begun(made, 3, kept=kept)
    assert third.id == first.id
    assert third.epoch != first.epoch
    assert not alive(made, 1, kept=kept)
    assert isinstance(enter(made, 4, kept=kept, start=True), Denial)
    made.leave("acme", "m", 2, second.epoch, 0, failed=True)
    assert alive(made, 2, kept=kept)  # it goes on, so it is no one's to take
    assert isinstance(enter(made, 4, kept=kept, start=True), Denial)
    made.forgo("acme", "m", 3, third.epoch, 0)
    assert not alive(made, 3, kept=kept)
    if kept.ids is CorrelationId.NARROW:
        assert third.id in made._narrow["m"].taken  # it rests: Triton may know it
    assert begun(made, 4, kept=kept).id != third.id


def test_the_only_slot_of_a_model_is_anybodys() -> None:
    begun(table(), kept=replace(WIDE, slots=1))


@pytest.mark.parametrize("kept", [WIDE, NARROW, TEXT])
def test_what_was_refused_after_all_has_not_begun(kept: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NARROW", 1)  # the id is free at once: Triton never had it
    made = table(per_tenant=1)
    for client in range(5):
        found = begun(made, client, kept=kept)
        assert found.begun
        made.forgo("acme", "m", client, found.epoch, 0)
        assert not alive(made, client, kept=kept)
    assert len(made) == 0
    first = begun(made, kept=kept)
    restarted = begun(made, kept=kept)
    assert not restarted.begun
    made.forgo("acme", "m", 1, first.epoch, 0)  # begun anew since
    made.forgo("acme", "m", 2, first.epoch, 0)  # nobody's
    assert alive(made, kept=kept)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "start", "leave", "fail"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 4),
        st.integers(0, 40 * SECOND),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([replace(kept, slots=slots) for kept in (WIDE, NARROW, TEXT) for slots in (0, 4)]))
def test_live_sequences_never_share_an_id(steps: list[tuple[str, str, int, int]], kept: Sequences) -> None:
    """Invariant: at any time each live (tenant, client) has one id, no other live one has it, and only START begins."""
    made, at = table(per_tenant=3, total=6), 0
    held: dict[tuple[str, int], Given] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NARROW", 40)  # so that they would meet
        for step, tenant, client, passed in steps:
            at += passed
            place = (tenant, client)
            if step == "fail":
                if place in held:
                    made.leave(tenant, "m", client, held[place].epoch, at, failed=True)
                continue
            if step == "leave":
                known = held.pop(place, None)
                if known is not None:
                    made.leave(tenant, "m", client, known.epoch, at)
                continue
            alive_before = _known(made, place, kept, at)
            found = enter(made, client, tenant=tenant, kept=kept, at=at, start=step == "start")
            if isinstance(found, Denial):
                if found.reason is Reason.REQUEST_MALFORMED:
                    held.pop(place, None)  # it was idle too long, or made room after its END had failed
                continue
            assert found.begun is not alive_before
            if step == "enter":
                assert (found.id, found.epoch) == (held[place].id, held[place].epoch)
            elif found.begun:
                live = [other.id for key, other in held.items() if key != place and _known(made, key, kept, at)]
                assert found.id not in live
            held[place] = found
            assert len(made) <= 6


def _known(made: SequenceTable, place: tuple[str, int], kept: Sequences, at: int) -> bool:
    """Whether it is alive; looking must not keep it so."""
    entry = made._entry((place[0], "m"), place[1])
    return entry is not None and entry.until > at
