"""A canary's share: right within statistics, the same everywhere, growing without taking anybody out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.core.routing import NO_ROUTE, WHOLE, Canary, Route, RouteKind, Sticky, route

CANARY = Canary("2", "1", 1_000)
BY_REQUEST = replace(CANARY, sticky=Sticky.REQUEST)


def picked(canary: Canary, *, principal: str = "alice", call: str = "c-1", tenant: str = "acme") -> Route:
    return route("embed", canary, "", tenant=tenant, principal=principal, call_id=call, sequence=False)


def test_a_model_without_a_canary_is_left_alone() -> None:
    assert route("embed", None, "", tenant="acme", principal="alice", call_id="c", sequence=False) is NO_ROUTE
    assert route("embed", None, "3", tenant="acme", principal="alice", call_id="c", sequence=False) is NO_ROUTE


def test_a_version_that_the_client_named_stands() -> None:
    found = route(
        "embed", replace(CANARY, share=WHOLE), "7", tenant="acme", principal="alice", call_id="c", sequence=False
    )
    assert found == Route("", RouteKind.CLIENT, "the client asked for it")


def test_a_sequence_stays_where_its_state_is() -> None:
    found = route(
        "embed", replace(CANARY, share=WHOLE), "", tenant="acme", principal="alice", call_id="c", sequence=True
    )
    assert found == Route("1", RouteKind.STABLE, "a sequence stays out of 100% of canary 2")


@pytest.mark.parametrize(
    ("tenant", "kind"), [("acme", RouteKind.CANARY), ("eu-1", RouteKind.CANARY), ("x", RouteKind.STABLE)]
)
def test_only_the_tenants_named_take_part(tenant: str, kind: RouteKind) -> None:
    found = picked(Canary("2", "1", WHOLE, Sticky.PRINCIPAL, ("acme", "eu-*")), tenant=tenant)
    assert found.kind is kind
    if kind is RouteKind.STABLE:
        assert found.why == "the tenant stays out of 100% of canary 2"


@pytest.mark.parametrize("canary", [CANARY, BY_REQUEST])
def test_why_says_the_share_and_what_it_goes_by(canary: Canary) -> None:
    whys = {picked(canary, principal=f"p{n}", call=f"c{n}").why for n in range(300)}
    assert whys == {f"in 10% of canary 2 by {canary.sticky}", f"not in 10% of canary 2 by {canary.sticky}"}


@pytest.mark.parametrize("share", [0, 1, 250, 1_000, 5_000, 9_999, WHOLE])
@pytest.mark.parametrize("sticky", Sticky)
def test_the_share_is_right_within_five_standard_deviations(share: int, sticky: Sticky) -> None:
    canary, calls, p = Canary("2", "1", share, sticky), 20_000, share / WHOLE
    hits = sum(picked(canary, principal=f"p{n}", call=f"c{n}").version == "2" for n in range(calls))
    assert abs(hits - calls * p) <= 5 * (calls * p * (1 - p)) ** 0.5


def test_a_principal_keeps_its_version_and_a_request_has_its_own() -> None:
    half = replace(CANARY, share=5_000)
    assert len({picked(half, call=f"c{n}").version for n in range(100)}) == 1
    assert len({picked(replace(half, sticky=Sticky.REQUEST), call=f"c{n}").version for n in range(100)}) == 2


def test_two_tenants_principals_of_one_name_are_two() -> None:
    half = replace(CANARY, share=5_000)
    assert any(
        picked(half, principal=f"p{n}").version != picked(half, principal=f"p{n}", tenant="b").version
        for n in range(50)
    )


def test_another_version_takes_others_first() -> None:
    first = {n for n in range(500) if picked(CANARY, principal=f"p{n}").kind is RouteKind.CANARY}
    second = {n for n in range(500) if picked(replace(CANARY, version="3"), principal=f"p{n}").kind is RouteKind.CANARY}
    assert first
    assert second
    assert first != second


@given(st.text(), st.integers(0, WHOLE), st.integers(0, WHOLE))
def test_who_is_in_a_share_is_in_every_larger_one(who: str, one: int, other: int) -> None:
    """Invariant: the set of canaries grows with the share, is empty at 0 and everybody at 100 %."""
    small, large = sorted((one, other))
    in_small = picked(replace(CANARY, share=small), principal=who).version == "2"
    in_large = picked(replace(CANARY, share=large), principal=who).version == "2"
    assert not in_small or in_large
    assert picked(replace(CANARY, share=0), principal=who).version == "1"
    assert picked(replace(CANARY, share=WHOLE), principal=who).version == "2"
