"""Good tokens become principals; forged, mangled and foreign ones are refused with the right reason."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import fields
from typing import Any

import pytest

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.compact import MAX_TOKEN
from sidecar.identity.jwks import JwksSource
from sidecar.identity.jwt import Issuer, TokenVerifier
from sidecar.runtime.settings import IssuerSection
from tests.support.attacks import KINDS, MALFORMED, SIGNATURE, Forger, attacks, header, key, key_set, signed, stray
from tests.support.identity import (
    AUDIENCE,
    ISSUER,
    NOW,
    FakeFetch,
    claims,
    issuer,
    jwk,
    jwks,
    sign,
    source,
)

ALL = ("EdDSA", "ES256", "ES384", "RS256", "PS256")


def verifier(**changes: Any) -> TokenVerifier:
    changes.setdefault("algorithms", ALL)
    return TokenVerifier([(issuer(**changes), source(key_set(), changes["algorithms"]))])


def reason(token: bytes, at: float = NOW, **changes: Any) -> Reason | None:
    found = verifier(**changes).identify(token, at)
    return found.reason if isinstance(found, Denial) else None


# --- good ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_token_is_its_principal(kind: str) -> None:
    found = verifier().identify(good(kind), NOW)
    assert found == Principal(
        tenant="acme", name="alice", kind="jwt", issuer=ISSUER, expires_at=NOW + 600, roles=frozenset({"tenant"})
    )


def test_claims_are_found_by_path_and_by_name() -> None:
    nested = {
        "org": {"tenant": "birch-7"},
        "https://x.example/roles": "tenant operator",
        "act_for": "bob",
    }
    found = verifier(
        tenant_claim="org.tenant",
        roles_claim="https://x.example/roles",
        roles=("tenant", "operator"),
        subject_claim="act_for",
        conversation_claim="thread",
    ).identify(good(tenant=None, **nested), NOW)
    assert isinstance(found, Principal)
    assert (found.tenant, found.subject, found.conversation) == ("birch-7", "bob", "")
    assert found.roles == {"tenant", "operator"}


@pytest.mark.parametrize(
    ("given", "actor"),
    [(None, ""), ({}, ""), ({"iss": "x"}, ""), ({"sub": "cli:olga", "act": {"sub": "older"}}, "cli:olga")],
)
def test_who_had_a_token_made_is_known(given: Any, actor: str) -> None:
    """RFC 8693 §4.1: the outermost `act` is the current actor."""
    found = verifier().identify(good(act=given), NOW)
    assert isinstance(found, Principal)
    assert found.actor == actor


@pytest.mark.parametrize("given", ["cli:olga", ["cli:olga"], {"sub": 7}, {"sub": "a\nb"}, {"sub": "x" * 10_000}])
def test_an_actor_that_is_none_is_refused(given: Any) -> None:
    found = verifier().identify(good(act=given), NOW)
    assert isinstance(found, Denial)
    assert found.reason is Reason.TOKEN_MALFORMED


@pytest.mark.parametrize(
    ("given", "classes"), [(None, ()), ("phi", ("phi",)), (["phi", "public"], ("phi", "public")), ([], ())]
)
def test_a_token_may_say_its_data_s_classes(given: object, classes: tuple[str, ...]) -> None:
    found = verifier(data_class_claim="data.class").identify(good(data={"class": given}), NOW)
    assert isinstance(found, Principal)
    assert found.data_classes == classes
    unasked = verifier().identify(good(data={"class": given}), NOW)
    assert isinstance(unasked, Principal)
    assert unasked.data_classes == ()


@pytest.mark.parametrize("given", [7, {"a": 1}, ["phi", 1], ["a"] * 9, "p hi", "", "x" * 65, ["a,b"]])
def test_a_token_s_odd_data_class_is_malformed(given: object) -> None:
    assert reason(good(data_class=given), data_class_claim="data_class") is Reason.TOKEN_MALFORMED


def test_roles_are_mapped_and_others_count_for_nothing() -> None:
    mapped = {"role_map": {"Model.Use": "tenant", "Model.Run": "operator"}, "roles": ("tenant", "operator")}
    for given, roles in (
        (["Model.Use", "offline_access"], {"tenant"}),
        ("Model.Run Model.Use", {"tenant", "operator"}),
        (["tenant"], set()),  # our own name is not the issuer's
        (None, set()),  # an identity provider leaves the claim out for those who were given no role
        ([], set()),
    ):
        found = verifier(**mapped).identify(good(roles=given), NOW)
        assert isinstance(found, Principal)
        assert found.roles == roles
    assert reason(good(roles=["x"]), role_map={"x": "operator"}) is Reason.TOKEN_ISSUER  # not its role to give
    unmapped = verifier().identify(good(), NOW)
    assert isinstance(unmapped, Principal)
    assert unmapped.roles == {"tenant"}


@pytest.mark.parametrize("lives", [0, -1, -40])
def test_a_token_does_not_live_by_the_leeway_alone(lives: int) -> None:
    issued = int(NOW) + 20
    assert reason(good(iat=issued, exp=issued + lives)) is Reason.TOKEN_MALFORMED
    assert reason(good(iat=issued, exp=issued + 1)) is None


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ({"kubernetes.io": {"namespace": "acme"}}, "acme"),
        ({"kubernetes.io.namespace": "birch-1", "kubernetes.io": {"namespace": "acme"}}, "birch-1"),
        ({"kubernetes": {"io": {"namespace": "acme"}}}, "acme"),
        ({"kubernetes.io": "acme"}, None),
        ({"kubernetes.io": {}}, None),
    ],
)
def test_a_claims_name_may_hold_dots(claims: dict[str, Any], found: str | None) -> None:
    principal = verifier(tenant_claim="kubernetes.io.namespace").identify(good(tenant=None, **claims), NOW)
    assert (principal.tenant if isinstance(principal, Principal) else None) == found


@pytest.mark.parametrize("aud", [AUDIENCE, ["x", AUDIENCE], [AUDIENCE]])
def test_any_audience_may_fit(aud: Any) -> None:
    assert reason(good(aud=aud)) is None


@pytest.mark.parametrize("typ", [None, "JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_types_of_access_tokens(typ: str | None) -> None:
    token = sign(key("EdDSA"), "EdDSA", header(typ=typ), claims())
    assert reason(token) is None


def test_a_token_without_kid_uses_the_only_key() -> None:
    token = sign(key("EdDSA"), "EdDSA", header(kid=None), claims())
    only = TokenVerifier([(issuer(), source(jwks(jwk(key("EdDSA"), None)), ("EdDSA",)))])
    assert isinstance(only.identify(token, NOW), Principal)
    assert reason(token) is SIGNATURE  # four keys: which one is not guessed


# --- forged and mangled ones --------------------------------------------------------------------------------------


ATTACKS = attacks(NOW)
_FORGER = Forger(NOW)
good = _FORGER.good


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(attack: str) -> None:
    make, expected = ATTACKS[attack]
    assert reason(make()) is expected


def test_a_stray_bit_really_is_the_same_signature() -> None:
    """So that the attack above tests canonicality and not a broken signature."""
    one, other = (base64.urlsafe_b64decode(token.rpartition(b".")[2] + b"==") for token in (good(), stray(good())))
    assert one == other


def test_a_required_type_is_required() -> None:
    token = signed(header(typ="at+jwt"), claims())
    assert reason(token, type="at+jwt") is None
    assert reason(good(), type="at+jwt") is MALFORMED
    assert reason(signed(header(typ=None), claims()), type="at+jwt") is MALFORMED


def test_one_issuers_key_never_verifies_anothers_token() -> None:
    other = "https://other.example"
    both = TokenVerifier(
        [
            (issuer(), source(jwks(jwk(key("EdDSA"), "k")), ("EdDSA",))),
            (issuer(issuer=other, tenants=("*",)), source(jwks(jwk(key("EdDSA", 1), "k")), ("EdDSA",))),
        ]
    )
    by_ours = sign(key("EdDSA"), "EdDSA", header(kid="k"), claims(iss=other))
    found = both.identify(by_ours, NOW)
    assert isinstance(found, Denial)
    assert found.reason is SIGNATURE
    assert isinstance(both.identify(sign(key("EdDSA", 1), "EdDSA", header(kid="k"), claims(iss=other)), NOW), Principal)


def test_an_algorithm_that_the_issuer_is_not_configured_for_is_refused() -> None:
    assert reason(good("ES256"), algorithms=("EdDSA",)) is SIGNATURE


def test_an_algorithm_is_refused_before_any_key_is_tried() -> None:
    found = verifier().identify(ATTACKS["HS256 with the PEM as secret"][0](), NOW)
    assert isinstance(found, Denial)
    assert found.detail == "its algorithm is not accepted"


def test_an_issuer_configured_twice_is_a_broken_configuration() -> None:
    with pytest.raises(ValueError, match="twice"):
        TokenVerifier([(issuer(), source(key_set(), ALL))] * 2)


def test_no_refusal_repeats_the_token() -> None:
    for name, (make, _) in ATTACKS.items():
        token = make()
        found = verifier().identify(token, NOW)
        assert isinstance(found, Denial), name
        signature = token.rpartition(b".")[2]
        assert len(signature) < 20 or signature.decode("latin-1") not in repr(found), name
        assert len(repr(found)) < 2 * MAX_TOKEN, name


# --- the memory ---------------------------------------------------------------------------------------------------


def test_a_verified_token_is_remembered_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = verifier()
    token = good()
    first = tokens.identify(token, NOW)
    monkeypatch.setattr(tokens, "_verify", lambda *_: pytest.fail("verified again"))
    assert tokens.identify(token, NOW + 599.9) is first


def test_memory_ends_at_exp_and_leeway_is_judged_anew() -> None:
    tokens = verifier()
    token = good()
    tokens.identify(token, NOW)
    assert isinstance(tokens.identify(token, NOW + 600), Principal)  # within the leeway
    assert len(tokens) == 0
    found = tokens.identify(token, NOW + 630)
    assert isinstance(found, Denial)
    assert found.reason is Reason.TOKEN_EXPIRED


def test_memory_is_by_the_whole_token() -> None:
    tokens = verifier()
    token = good()
    tokens.identify(token, NOW)
    found = tokens.identify(stray(token), NOW)
    assert isinstance(found, Denial)
    assert found.reason is MALFORMED


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    tokens = TokenVerifier([(issuer(algorithms=ALL), source(key_set(), ALL))], remembered=2)
    many = [good(sub=f"user-{number}") for number in range(5)]
    for token in many:
        assert isinstance(tokens.identify(token, NOW), Principal)
        assert len(tokens) <= 2
    assert set(tokens._remembered) == {hashlib.sha256(token).digest() for token in many[-2:]}


def test_refused_tokens_are_not_remembered() -> None:
    tokens = verifier()
    tokens.identify(good(aud="other"), NOW)
    assert len(tokens) == 0


def test_a_key_that_is_withdrawn_takes_its_remembered_tokens_along() -> None:
    fetch = FakeFetch(jwks(jwk(key("EdDSA"), "EdDSA")))
    keys = JwksSource(fetch, ("EdDSA",))
    keys.refresh(NOW)
    tokens = TokenVerifier([(issuer(), keys)])
    token = good()
    assert isinstance(tokens.identify(token, NOW), Principal)
    keys.refresh(NOW)  # unchanged: still remembered
    assert len(tokens) == 1
    fetch.answer = jwks(jwk(key("EdDSA", 1), "new"))
    keys.refresh(NOW)
    found = tokens.identify(token, NOW)
    assert isinstance(found, Denial)
    assert found.reason is SIGNATURE
    assert len(tokens) == 0


# --- keys that cannot be had --------------------------------------------------------------------------------------


def test_an_unknown_kid_asks_for_a_refresh_and_is_refused_now() -> None:
    keys = source(key_set(), ALL)
    tokens = TokenVerifier([(issuer(algorithms=ALL), keys)])
    for number in range(100):
        tokens.identify(signed(header(kid=f"flood-{number}"), claims()), NOW)
    assert keys.wanted.is_set()
    assert isinstance(keys.fetch, FakeFetch)
    assert keys.fetch.fetches == 1  # none of them on the request's path


def test_keys_never_had_or_too_stale_are_unavailable_not_a_bad_signature() -> None:
    never = JwksSource(FakeFetch("down"), ("EdDSA",))
    tokens = TokenVerifier([(issuer(), never)])
    found = tokens.identify(good(), NOW)
    assert isinstance(found, Denial)
    assert (found.reason, found.retry_after) == (Reason.KEYS_UNAVAILABLE, 1.0)
    assert never.wanted.is_set()
    stale = JwksSource(FakeFetch(key_set()), ALL, max_stale=60)
    stale.refresh(NOW)
    tokens = TokenVerifier([(issuer(algorithms=ALL), stale)])
    assert isinstance(tokens.identify(good(), NOW + 60), Principal)
    found = tokens.identify(good(), NOW + 61)
    assert isinstance(found, Denial)
    assert found.reason is Reason.KEYS_UNAVAILABLE


def test_an_issuer_is_configured_by_the_settings_own_names() -> None:
    """The composition root makes an Issuer of a section by these names; a field in one alone would be lost."""
    made = {each.name for each in fields(Issuer)}
    assert made == set(IssuerSection.model_fields) - {"jwks"}
    section = IssuerSection.model_validate(
        {"issuer": ISSUER, "audience": ["a"], "jwks": "x", "algorithms": ["EdDSA"], "tenants": ["*"]}
    )
    by_default = Issuer(ISSUER, ("a",), ("EdDSA",), ("*",))
    assert Issuer(**section.model_dump(exclude={"jwks"})) == by_default
