"""The format of API keys, and the ring that identifies by them."""

from __future__ import annotations

import zlib

import pytest

from sidecar.core.model import Denial, Principal, Secret
from sidecar.core.reasons import Reason
from sidecar.identity import keys
from sidecar.identity.denials import Age
from sidecar.identity.keys import ApiKey, KeyRing, KeySnapshot
from sidecar.identity.keytable import KeyTable
from tests.support.identity import NOW, key_row, seeded

PEPPER = Secret(b"p" * 32)
KEY = keys.generate("live", seeded(1))
OTHER = keys.generate("live", seeded(2))
TEXT = KEY.text().encode()


def mac(key: ApiKey) -> bytes:
    return keys.mac(PEPPER, key.secret)


def ring_of(*rows: keys.KeyRow, at: float = NOW, max_age: float = 3600.0) -> KeyRing:
    ring = KeyRing(PEPPER, "live", max_age=max_age)
    ring.install(KeySnapshot(KeyTable(rows), Age(at)))
    return ring


def refused(found: Principal | Denial) -> Denial:
    assert isinstance(found, Denial)
    return found


def with_crc(head: bytes) -> bytes:
    return head + keys.base62(zlib.crc32(head), 6)


def test_a_key_reads_back_as_it_was_made() -> None:
    parsed = keys.parse(TEXT)
    assert parsed is not None
    assert (parsed.environment, parsed.id, parsed.secret.reveal()) == ("live", KEY.id, KEY.secret.reveal())
    assert len(TEXT) == len("wdn_live_") + 12 + 1 + 43 + 6


def test_256_bits_fit_into_the_secret() -> None:
    key = keys.generate("live", lambda n: b"\xff" * n)
    assert keys.parse(key.text().encode()) is not None
    assert keys.base62(2**256 - 1, 43) != keys.base62(2**256 - 2, 43)


def test_neither_repr_nor_str_shows_a_secret() -> None:
    shown = repr(KEY) + str(KEY) + repr(key_row(KEY.id, mac(KEY)))
    assert KEY.secret.reveal().decode() not in shown
    assert mac(KEY).hex() not in shown
    assert repr(mac(KEY)) not in shown


@pytest.mark.parametrize("place", range(len(TEXT)))
def test_any_one_character_changed_is_not_a_key(place: int) -> None:
    changed = bytearray(TEXT)
    changed[place] = ord("x") if changed[place] != ord("x") else ord("y")
    assert keys.parse(bytes(changed)) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"wdn_",
        TEXT[:-1],
        TEXT + b"0",
        TEXT + b"\n",
        b" " + TEXT,
        TEXT.upper(),
        TEXT.replace(b"_", b"-"),
        with_crc(b"wdn_LIVE_" + KEY.id.encode() + b"_" + b"a" * 43),
        with_crc(b"wdn__" + KEY.id.encode() + b"_" + b"a" * 43),
        with_crc(b"wdn_live_" + b"a" * 11 + b"_" + b"a" * 43),
        with_crc(b"wdn_live_" + b"a" * 12 + b"_" + b"a" * 42 + b"\xc3"),
        b"wdn_" + b"a" * 100_000,
        TEXT.decode().encode("utf-16"),
    ],
)
def test_what_is_not_a_key_is_unknown(text: bytes) -> None:
    assert keys.parse(text) is None
    assert refused(ring_of(key_row(KEY.id, mac(KEY))).identify(text, NOW)).reason is Reason.KEY_UNKNOWN


def test_a_good_key_is_its_principal() -> None:
    row = key_row(KEY.id, mac(KEY), models=("chat",), roles=("tenant", "operator"), expires_at=NOW + 1)
    found = ring_of(row).identify(TEXT, NOW)
    assert found == Principal(
        "acme", "laptop", "api_key", frozenset({"tenant", "operator"}), "", KEY.id, ("chat",), NOW + 1
    )


def test_unknown_ids_and_wrong_secrets_look_alike() -> None:
    wrong = ApiKey("live", KEY.id, OTHER.secret).text().encode()
    by_secret = refused(ring_of(key_row(KEY.id, mac(KEY))).identify(wrong, NOW))
    by_id = refused(ring_of().identify(TEXT, NOW))
    assert by_secret.reason is by_id.reason is Reason.KEY_UNKNOWN
    assert (by_secret.public, by_secret.rule, by_secret.retry_after) == (by_id.public, by_id.rule, by_id.retry_after)


def test_a_mac_of_zeros_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that stands in for unknown ids must not be provable, whatever the MAC comes out as."""
    monkeypatch.setattr(keys, "mac", lambda pepper, secret: bytes(32))
    assert refused(ring_of().identify(TEXT, NOW)).reason is Reason.KEY_UNKNOWN
    assert refused(ring_of(key_row(KEY.id, b"x" * 32)).identify(TEXT, NOW)).reason is Reason.KEY_UNKNOWN


def test_the_work_for_an_unknown_id_is_the_work_for_a_wrong_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    real_mac, real_compare = keys.mac, keys.hmac.compare_digest
    monkeypatch.setattr(keys, "mac", lambda *a: (counted.append("mac"), real_mac(*a))[1])
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda *a: (counted.append("compare"), real_compare(*a))[1])
    work = []
    for ring, text in (
        (ring_of(), TEXT),
        (ring_of(key_row(KEY.id, real_mac(PEPPER, OTHER.secret))), TEXT),
        (ring_of(key_row(KEY.id, real_mac(PEPPER, KEY.secret))), TEXT),
    ):
        counted.clear()
        ring.identify(text, NOW)
        work.append(list(counted))
    assert work[0] == work[1] == work[2] == ["mac", "compare", "compare"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"revoked_at": NOW}, Reason.KEY_REVOKED),
        ({"revoked_at": NOW - 1, "expires_at": NOW - 2}, Reason.KEY_REVOKED),
        ({"expires_at": NOW}, Reason.KEY_EXPIRED),
        ({"not_before": NOW + 1}, Reason.TOKEN_NOT_YET_VALID),
    ],
)
def test_a_proven_key_that_may_not_be_used_says_why(change: dict[str, float], reason: Reason) -> None:
    denial = refused(ring_of(key_row(KEY.id, mac(KEY), **change)).identify(TEXT, NOW))
    assert denial.reason is reason
    # Its standing is for its holder only: with a wrong secret the answer is as for any unknown key.
    wrong = ApiKey("live", KEY.id, OTHER.secret).text().encode()
    assert refused(ring_of(key_row(KEY.id, mac(KEY), **change)).identify(wrong, NOW)).reason is Reason.KEY_UNKNOWN


def test_while_rotating_both_secrets_work_until_the_grace_ends() -> None:
    new = ApiKey("live", KEY.id, OTHER.secret)
    ring = ring_of(key_row(KEY.id, mac(new), rotated_mac=mac(KEY), rotated_until=NOW + 1))
    assert isinstance(ring.identify(TEXT, NOW), Principal)
    assert isinstance(ring.identify(new.text().encode(), NOW), Principal)
    assert refused(ring.identify(TEXT, NOW + 1)).reason is Reason.KEY_UNKNOWN
    assert isinstance(ring.identify(new.text().encode(), NOW + 1), Principal)


def test_another_environments_key_is_unknown() -> None:
    text = ApiKey("test", KEY.id, KEY.secret).text().encode()
    ring = ring_of(key_row(KEY.id, mac(KEY)))
    assert refused(ring.identify(text, NOW)).reason is Reason.KEY_UNKNOWN
    moved = ring_of(key_row(KEY.id, mac(KEY), environment="test"))
    assert refused(moved.identify(TEXT, NOW)).reason is Reason.KEY_UNKNOWN


def test_without_a_snapshot_keys_cannot_be_checked() -> None:
    denial = refused(KeyRing(PEPPER, "live", max_age=60).identify(TEXT, NOW))
    assert denial.reason is Reason.KEYS_UNAVAILABLE
    assert denial.retry_after is not None


def test_while_the_database_is_away_known_keys_work_and_unknown_ones_are_not_told_apart_from_new_ones() -> None:
    ring = ring_of(key_row(KEY.id, mac(KEY)), max_age=60)
    ring.lost()
    assert isinstance(ring.identify(TEXT, NOW + 60), Principal)
    assert refused(ring.identify(OTHER.text().encode(), NOW)).reason is Reason.KEYS_UNAVAILABLE
    assert refused(ring.identify(TEXT, NOW + 60.1)).reason is Reason.KEYS_UNAVAILABLE
    ring.confirm(Age(NOW + 61))
    assert isinstance(ring.identify(TEXT, NOW + 61), Principal)
    assert refused(ring.identify(OTHER.text().encode(), NOW + 61)).reason is Reason.KEY_UNKNOWN


def test_a_refresher_that_hangs_counts_as_a_database_that_is_away() -> None:
    ring = ring_of(key_row(KEY.id, mac(KEY)))
    assert refused(ring.identify(OTHER.text().encode(), NOW + 5)).reason is Reason.KEY_UNKNOWN
    assert refused(ring.identify(OTHER.text().encode(), NOW + 5.1)).reason is Reason.KEYS_UNAVAILABLE


def test_a_slow_refresh_is_not_taken_for_an_outage() -> None:
    ring = ring_of()
    ring.expect(60)
    assert refused(ring.identify(OTHER.text().encode(), NOW + 240)).reason is Reason.KEY_UNKNOWN
    assert refused(ring.identify(OTHER.text().encode(), NOW + 241)).reason is Reason.KEYS_UNAVAILABLE
    quick = ring_of()
    quick.expect(0.5)  # a hiccup of a few seconds is none either
    assert refused(quick.identify(OTHER.text().encode(), NOW + 5)).reason is Reason.KEY_UNKNOWN


def test_a_malformed_key_is_unknown_whether_the_database_answers_or_not() -> None:
    assert refused(KeyRing(PEPPER, "live", max_age=60).identify(b"wdn_x", NOW)).reason is Reason.KEY_UNKNOWN


def test_the_age_is_that_of_the_last_confirmation() -> None:
    ring = KeyRing(PEPPER, "live", max_age=60)
    assert ring.age(NOW) is None
    ring.install(KeySnapshot(KeyTable(), Age(NOW)))
    assert ring.age(NOW + 2) == 2
    ring.confirm(Age(NOW + 2))
    assert ring.age(NOW + 2) == 0


@pytest.mark.parametrize(("data", "good"), [(b"x" * 16, True), (b"x" * 16 + b"\r\n", True), (b"x" * 15 + b"\n", False)])
def test_a_pepper_is_long_enough_without_its_line_end(data: bytes, good: bool) -> None:
    assert isinstance(keys.read_pepper(data), Secret if good else str)


def test_a_revocation_counts_at_once_whatever_the_revokers_clock_says() -> None:
    row = key_row(KEY.id, mac(KEY), revoked_at=NOW + 600)
    assert refused(ring_of(row).identify(TEXT, NOW)).reason is Reason.KEY_REVOKED


@pytest.mark.parametrize(
    ("regions", "within"), [(None, True), (("eu-west-1", "x"), True), (("us-east-1",), False), ((), False)]
)
def test_a_key_for_other_regions(regions: tuple[str, ...] | None, within: bool) -> None:
    ring = KeyRing(PEPPER, "live", max_age=60, region="eu-west-1")
    ring.install(KeySnapshot(KeyTable([key_row(KEY.id, mac(KEY), regions=regions)]), Age(NOW)))
    found = ring.identify(TEXT, NOW)
    if within:
        assert isinstance(found, Principal)
    else:
        assert (refused(found).reason, refused(found).rule) == (Reason.RESIDENCY_PROCESSING, "key.regions")


def test_scopes_are_the_principals() -> None:
    found = ring_of(key_row(KEY.id, mac(KEY), methods=("ModelInfer",), networks=("10.0.0.0/8",))).identify(TEXT, NOW)
    assert isinstance(found, Principal)
    assert found.methods == ("ModelInfer",)
    assert [str(each) for each in found.networks or ()] == ["10.0.0.0/8"]


def test_a_principal_is_made_once_and_anew_when_its_row_changed() -> None:
    ring = ring_of(key_row(KEY.id, mac(KEY)))
    first = ring.identify(TEXT, NOW)
    assert ring.identify(TEXT, NOW) is first
    ring.install(KeySnapshot(KeyTable([key_row(KEY.id, mac(KEY), name="desk")]), Age(NOW)))
    second = ring.identify(TEXT, NOW)
    assert isinstance(second, Principal)
    assert second.name == "desk"


def test_uses_are_noted_of_good_keys_alone_and_taken_once() -> None:
    ring = ring_of(key_row(KEY.id, mac(KEY)), key_row(OTHER.id, mac(OTHER), revoked_at=NOW))
    ring.identify(TEXT, NOW)
    ring.identify(TEXT, NOW + 5)
    ring.identify(OTHER.text().encode(), NOW)
    assert ring.take_used() == {KEY.id: NOW + 5}
    assert ring.take_used() == {}


def test_a_clock_set_back_makes_no_snapshot_young_for_ever() -> None:
    ring = ring_of(key_row(KEY.id, mac(KEY)), max_age=600)
    ring.lost()
    assert isinstance(ring.identify(TEXT, NOW - 60), Principal)
    assert refused(ring.identify(TEXT, NOW - 61)).reason is Reason.KEYS_UNAVAILABLE


def test_the_databases_clock_counts() -> None:
    """It is 100 s ahead of ours: an age is what has passed, not the difference of two clocks."""
    ring = KeyRing(PEPPER, "live", max_age=60)
    ring.install(KeySnapshot(KeyTable([key_row(KEY.id, mac(KEY))]), Age(NOW + 100, 100.0)))
    assert ring.age(NOW + 7) == 7
    assert isinstance(ring.identify(TEXT, NOW + 60), Principal)
    assert refused(ring.identify(TEXT, NOW + 61)).reason is Reason.KEYS_UNAVAILABLE
