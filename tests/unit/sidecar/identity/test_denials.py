"""The deny-list: what it refuses, and that not knowing it refuses too."""

from __future__ import annotations

import pytest

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity.denials import MAX_BACK, Age, DenyBook, DenyList
from sidecar.identity.jwt import TokenVerifier
from tests.support.attacks import Forger, key, key_set
from tests.support.identity import ISSUER, NOW, issuer, source

FORGER = Forger(NOW)


def book_of(*tokens: tuple[str, str], at: float = NOW, **tenants: float) -> DenyBook:
    book = DenyBook(max_age=60)
    denied = DenyList(dict.fromkeys(tokens, NOW + 100), {name: (before, NOW + 100) for name, before in tenants.items()})
    book.install(denied, Age(at))
    return book


def reason(book: DenyBook, at: float = NOW, **claims: object) -> Reason | None:
    tokens = TokenVerifier([(issuer(), source(key_set(), ("EdDSA",)))], book)
    found = tokens.identify(FORGER.good(**claims), at)
    return found.reason if isinstance(found, Denial) else None


def test_one_token_by_issuer_and_jti() -> None:
    book = book_of((ISSUER, "7"))
    assert reason(book, jti="7") is Reason.TOKEN_REVOKED
    assert reason(book, jti="8") is None
    assert reason(book) is None
    assert reason(book_of(("https://other.example", "7")), jti="7") is None  # lists are keyed by issuer


def test_all_of_a_tenants_by_when_they_were_issued() -> None:
    issued = int(NOW) - 10
    assert reason(book_of(acme=issued + 1)) is Reason.TOKEN_REVOKED
    assert reason(book_of(acme=issued)) is None
    assert reason(book_of(birch=issued + 1)) is None


def test_a_remembered_token_is_held_against_it_too() -> None:
    book = book_of()
    tokens = TokenVerifier([(issuer(), source(key_set(), ("EdDSA",)))], book)
    token = FORGER.good(jti="7")
    assert isinstance(tokens.identify(token, NOW), Principal)
    book.install(DenyList({(ISSUER, "7"): NOW + 100}), Age(NOW))
    found = tokens.identify(token, NOW)
    assert isinstance(found, Denial)
    assert found.reason is Reason.TOKEN_REVOKED
    assert len(tokens) == 1  # verified it stays


@pytest.mark.parametrize(("at", "known"), [(NOW + 60, True), (NOW + 61, False), (NOW - MAX_BACK - 1, False)])
def test_a_list_too_old_or_from_the_future_is_no_list(at: float, known: bool) -> None:
    found = book_of().refuses(ISSUER, "7", "acme", NOW, at)
    assert found is None if known else found is not None
    if found is not None:
        assert (found.reason, found.retry_after) == (Reason.KEYS_UNAVAILABLE, 1.0)


def test_a_list_never_had_refuses_everyone() -> None:
    assert reason(DenyBook(max_age=60)) is Reason.KEYS_UNAVAILABLE


def test_confirmed_again_it_is_young_again() -> None:
    book = book_of()
    book.confirm(Age(NOW + 100))
    assert book.refuses(ISSUER, "7", "acme", NOW, NOW + 150) is None


def test_a_jti_that_is_no_text_is_no_token() -> None:
    assert reason(book_of(), jti=7) is Reason.TOKEN_MALFORMED


def test_the_suites_key_is_the_verifiers() -> None:
    assert key("EdDSA") is key("EdDSA")
