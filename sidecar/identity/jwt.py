"""Verifies bearer tokens of configured issuers and remembers the verified ones by digest until they expire."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Never

from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from sidecar.core.model import Denial, Principal
from sidecar.core.reasons import Reason
from sidecar.identity import compact
from sidecar.identity.denials import DenyBook
from sidecar.identity.jwks import JwksSource, KeySet

MAX_REMEMBERED: Final = 10_000  # verified tokens, about 1 KB each
MAX_TEXT: Final = 255  # characters of a claim that names someone (OpenID Connect Core §2, `sub`)
MAX_ROLES: Final = 32
MAX_CLASSES: Final = 8
_LATEST: Final = 253_402_300_799  # 9999-12-31T23:59:59Z

_CLASS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # as x-data-class has it
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# What an access token may say it is where the issuer's `type` is not configured (RFC 7519 §5.1, RFC 9068 §2.1).
_TYPES: Final = frozenset({"", "jwt", "at+jwt"})


@dataclass(frozen=True, slots=True)
class Issuer:
    """A JWT issuer and what it may assert. Times in seconds; ``tenants`` are globs; claims are dotted paths.

    ``role_map``: the issuer's names → our roles; where it is not empty, names that it does not hold count for nothing,
    and so does a token that names none: an identity provider leaves the claim out for those who were given no role.
    """

    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...]
    tenants: tuple[str, ...]
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    subject_claim: str | None = None
    conversation_claim: str | None = None
    data_class_claim: str | None = None
    roles: tuple[str, ...] = ("tenant",)
    role_map: Mapping[str, str] = field(default_factory=dict)
    type: str | None = None
    leeway: float = 30.0
    max_lifetime: float = 3600.0


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token that was verified: by which keys, for whom, until when."""

    source: JwksSource
    keys: KeySet
    principal: Principal
    token_id: str  # its jti; "" where it has none
    issued_at: float
    expires_at: float


class _Refused(Exception):  # noqa: N818 — control flow inside this module, never seen outside
    """Carries a denial out of the checks."""

    def __init__(
        self, reason: Reason, detail: str = "", *, internal: str = "", retry_after: float | None = None
    ) -> None:
        self.denial = Denial(reason, detail, retry_after, rule="token", internal=internal)


class TokenVerifier:
    """Verifies tokens in memory. Lookups take no lock; safe from several threads."""

    def __init__(
        self,
        issuers: Sequence[tuple[Issuer, JwksSource]],
        denied: DenyBook | None = None,
        *,
        remembered: int = MAX_REMEMBERED,
    ) -> None:
        """``denied``: the deny-list that every call is held against; None: there is none to be had."""
        self._issuers = {issuer.issuer: (issuer, source) for issuer, source in issuers}
        if len(self._issuers) != len(issuers):
            raise ValueError("an issuer is configured twice")
        self._denied = denied
        self._jws = PyJWS(options={"enforce_minimum_key_length": True})
        self._remembered: dict[bytes, _Verified] = {}  # by the SHA-256 of the whole token, oldest first
        self._bound = remembered
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many verified tokens are remembered."""
        return len(self._remembered)

    def identify(self, token: bytes, at: float) -> Principal | Denial:
        """The token's principal, or the one reason it is refused."""
        if len(token) > compact.MAX_TOKEN:  # before so much of it is digested
            return Denial(Reason.TOKEN_MALFORMED, f"it is longer than {compact.MAX_TOKEN} bytes", rule="token")
        digest = hashlib.sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None:
            if at < known.expires_at and known.source.keys(at) is known.keys:
                return self._unless_denied(known, at)
            with self._lock:
                self._remembered.pop(digest, None)
        try:
            verified = self._verify(token, at)
        except _Refused as refused:
            return refused.denial
        if at < verified.expires_at:
            self._remember(digest, verified)
        return self._unless_denied(verified, at)

    def _unless_denied(self, verified: _Verified, at: float) -> Principal | Denial:
        if self._denied is None:
            return verified.principal
        who = verified.principal
        return self._denied.refuses(who.issuer, verified.token_id, who.tenant, verified.issued_at, at) or who

    def _remember(self, digest: bytes, verified: _Verified) -> None:
        with self._lock:
            while len(self._remembered) >= self._bound:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[digest] = verified

    def _verify(self, token: bytes, at: float) -> _Verified:
        read = compact.parse(token)
        if isinstance(read, str):
            raise _Refused(Reason.TOKEN_MALFORMED, read)
        claims = read.payload
        name = _text(claims, "iss")
        if name not in self._issuers:
            raise _Refused(Reason.TOKEN_ISSUER, "it is not known here", internal=f"issuer {name!r}")
        issuer, source = self._issuers[name]
        _check_type(issuer, read.header)
        keys = self._check_signature(issuer, source, token, read.header, at)
        _check_times(issuer, claims, at)
        _check_audience(issuer, claims)
        return _Verified(
            source=source,
            keys=keys,
            principal=_principal(issuer, claims),
            token_id=_optional(claims, "jti"),
            issued_at=float(claims["iat"]),
            expires_at=float(claims["exp"]),
        )

    def _check_signature(
        self, issuer: Issuer, source: JwksSource, token: bytes, header: Mapping[str, Any], at: float
    ) -> KeySet:
        keys = source.keys(at)
        if keys is None:
            source.ask()
            raise _Refused(
                Reason.KEYS_UNAVAILABLE,
                "the signing keys of the token's issuer cannot be had",
                internal=f"{issuer.issuer}: {source.condition.fault}",
                retry_after=1.0,
            )
        algorithm = header["alg"]
        if algorithm not in issuer.algorithms:
            raise _Refused(Reason.TOKEN_SIGNATURE, "its algorithm is not accepted", internal=f"alg {algorithm!r}")
        key = keys.find(header.get("kid"))
        if key is None:
            source.ask()
            raise _Refused(Reason.TOKEN_SIGNATURE, "its key is not known", internal=f"kid {header.get('kid')!r}")
        try:
            self._jws.decode_complete(token, key, algorithms=[algorithm])
        except PyJWTError as fault:
            raise _Refused(Reason.TOKEN_SIGNATURE, internal=type(fault).__name__) from None
        return keys


def _check_type(issuer: Issuer, header: Mapping[str, Any]) -> None:
    given = header.get("typ", "").lower().removeprefix("application/")
    fits = given in _TYPES if issuer.type is None else given == issuer.type.lower().removeprefix("application/")
    if not fits:
        _malformed("its typ is not that of an access token")


def _check_times(issuer: Issuer, claims: Mapping[str, Any], at: float) -> None:
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf") if "nbf" in claims else issued
    if at >= expires + issuer.leeway:
        raise _Refused(Reason.TOKEN_EXPIRED)
    if issued > at + issuer.leeway or begins > at + issuer.leeway:
        raise _Refused(Reason.TOKEN_NOT_YET_VALID)
    if expires <= issued:  # else the leeway alone would make it live
        _malformed("it expires before it was issued")
    if expires - issued > issuer.max_lifetime:
        raise _Refused(Reason.TOKEN_ISSUER, f"it lives longer than {issuer.max_lifetime:g} s")


def _check_audience(issuer: Issuer, claims: Mapping[str, Any]) -> None:
    if "aud" not in claims:
        _malformed("it has no aud")
    given = claims["aud"]
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, list) or not named or not all(isinstance(each, str) for each in named):
        _malformed("its aud is neither text nor a list of texts")
    if not set(named) & set(issuer.audience):
        raise _Refused(Reason.TOKEN_AUDIENCE)


def _principal(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    tenant = _text(claims, issuer.tenant_claim)
    if not any(fnmatchcase(tenant, glob) for glob in issuer.tenants):
        raise _Refused(Reason.TOKEN_ISSUER, "it may not speak for this tenant", internal=f"tenant {tenant!r}")
    return Principal(
        tenant=tenant,
        name=_text(claims, "sub"),
        kind="jwt",
        roles=_roles(issuer, claims),
        issuer=issuer.issuer,
        expires_at=float(claims["exp"]),
        subject=_optional(claims, issuer.subject_claim),
        conversation=_optional(claims, issuer.conversation_claim),
        data_classes=_data_classes(claims, issuer.data_class_claim),
        actor=_actor(claims),
    )


def _actor(claims: Mapping[str, Any]) -> str:
    """The current actor's `sub` (RFC 8693 §4.1); "" where there is none. Recorded, never authorising."""
    act = claims.get("act")
    if act is None:
        return ""
    if not isinstance(act, dict):
        _malformed("its act is no object")
    return "" if act.get("sub") is None else _text(act, "sub")


def _roles(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[str]:
    """The asserted roles (a list, or texts between spaces), all the issuer's to give.

    Where none are, ``tenant``; nothing where the issuer's roles are mapped.
    """
    given = _at(claims, issuer.roles_claim)
    if given is None:
        given = [] if issuer.role_map else ["tenant"]
    roles = given.split(" ") if isinstance(given, str) else given
    if not isinstance(roles, list) or len(roles) > MAX_ROLES or not all(isinstance(role, str) for role in roles):
        _malformed(f"its {issuer.roles_claim} is not a list of at most {MAX_ROLES} texts")
    asserted = frozenset(roles)
    if issuer.role_map:
        asserted = frozenset(issuer.role_map[role] for role in asserted if role in issuer.role_map)
    if not asserted <= frozenset(issuer.roles):
        foreign = sorted(asserted - frozenset(issuer.roles))
        raise _Refused(Reason.TOKEN_ISSUER, "it may not give these roles", internal=f"roles {foreign!r}")
    return asserted


def _data_classes(claims: Mapping[str, Any], path: str | None) -> tuple[str, ...]:
    """A name, or a list of names; none where the token says none."""
    given = None if path is None else _at(claims, path)
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or len(names) > MAX_CLASSES or not all(isinstance(name, str) for name in names):
        _malformed(f"its {path} is neither a data class nor a list of at most {MAX_CLASSES}")
    if not all(_CLASS.fullmatch(name) for name in names):
        _malformed(f"its {path} is not a data class")
    return tuple(names)


# --- claims -------------------------------------------------------------------------------------------------------


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this very name, or at this dotted path; None where there is none.

    The longest name is tried first, so that a claim may be named by a URL, or as Kubernetes does ("kubernetes.io").
    """
    if path in claims:
        return claims[path]
    end = path.rfind(".")
    while end > 0:
        inner = claims.get(path[:end])
        if isinstance(inner, dict):
            return _at(inner, path[end + 1 :])
        end = path.rfind(".", 0, end)
    return None


def _text(claims: Mapping[str, Any], path: str) -> str:
    value = _at(claims, path)
    if value is None:
        _malformed(f"it has no {path}")
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or _UNSAFE.search(value):
        _malformed(f"its {path} is not text of 1 to {MAX_TEXT} characters without controls")
    return value


def _optional(claims: Mapping[str, Any], path: str | None) -> str:
    return "" if path is None or _at(claims, path) is None else _text(claims, path)


def _time(claims: Mapping[str, Any], name: str) -> float:
    """A NumericDate (RFC 7519 §2): a finite number, and not a truth value, which Python takes for one."""
    value = claims.get(name)
    if value is None:
        _malformed(f"it has no {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LATEST:
        _malformed(f"its {name} is not a time in seconds")
    return float(value)


def _malformed(detail: str) -> Never:
    raise _Refused(Reason.TOKEN_MALFORMED, detail)
