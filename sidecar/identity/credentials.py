"""Finds the one credential among a call's headers; none, two, or an unclear one is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.core.model import Credential, Denial, Secret
from sidecar.core.reasons import Reason

MAX_CREDENTIAL: Final = 8 * 1024  # bytes; a longer one is neither a key nor a token that would be read
KEY_PREFIX: Final = b"wdn_"
_TOKEN_PREFIX: Final = b"eyJ"  # base64url of the '{"' that a JWT begins with (RFC 7519 §3.1)
_TOKEN_DOTS: Final = 2

_NAMES: Final = frozenset({b"authorization", b"x-api-key", "authorization", "x-api-key"})  # as either wire has them
# gRPC would decode these from base64 (gRPC over HTTP/2, "Binary-Header"), so they are a second place for a credential.
_BINARY: Final = frozenset({b"authorization-bin", b"x-api-key-bin", "authorization-bin", "x-api-key-bin"})
_BOUND: Final = "this listener speaks for one principal and takes no credential: leave it out, or use the tenants' port"

Header = tuple[bytes | str, bytes | str]


def extract(headers: Iterable[Header], certificate: Sequence[str] = (), listener: str = "") -> Credential | Denial:
    """The call's credential: ``authorization: Bearer <JWT | API key>`` or ``x-api-key: <API key>``, exactly one.

    ``certificate``: the URIs of the client's certificate, which is the credential where no header carries one: a proxy
    or mesh may authenticate itself by certificate, and its users by header.

    ``listener``: the address of a listener bound to one principal, which speaks for every call on it. A credential sent
    there is refused, not preferred: whoever sends one means to be somebody, and might not notice being somebody else.

    Names in any case. A comma in a value is how HTTP joins repeated headers, and neither a key nor a token has one.
    """
    found = _sent(headers)
    if isinstance(found, Denial):
        return found
    if listener:
        return _ambiguous(_BOUND) if found else Credential("listener", Secret(listener.encode()))
    if not found:
        return _certified(certificate) if certificate else Denial(Reason.CREDENTIAL_MISSING, rule="credential")
    if len(found) > 1:
        return _ambiguous("several headers carry one")
    name, value = found[0]
    if b"," in value:
        return _ambiguous(f"{name.decode()} holds a list")
    return _sent_as_key(value) if name == b"x-api-key" else _bearer(value)


def _sent(headers: Iterable[Header]) -> list[tuple[bytes, bytes]] | Denial:
    """The headers that may carry a credential: lower-case name, value."""
    found: list[tuple[bytes, bytes]] = []
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name in _BINARY:
            return _ambiguous(f"{_bytes(name).decode()} is not accepted")
        if name in _NAMES:
            found.append((_bytes(name), _bytes(raw_value).strip(b" \t")))
    return found


def _certified(certificate: Sequence[str]) -> Credential | Denial:
    if len(certificate) > 1:  # SPIFFE X.509-SVID §2: exactly one
        return _ambiguous("the client certificate has several URIs")
    return Credential("certificate", Secret(certificate[0].encode()))


def _bearer(value: bytes) -> Credential | Denial:
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() != b"bearer":  # RFC 9110 §11.1: schemes are case-insensitive
        return Denial(Reason.CREDENTIAL_MISSING, "authorization must be of scheme Bearer", rule="credential")
    token = rest.strip(b" \t")
    if token.startswith(KEY_PREFIX):
        return _api_key(token)
    if not token:
        return Denial(Reason.CREDENTIAL_MISSING, "the bearer token is empty", rule="credential")
    if len(token) > MAX_CREDENTIAL:
        return Denial(Reason.TOKEN_MALFORMED, f"it is longer than {MAX_CREDENTIAL} bytes", rule="credential")
    return Credential("jwt", Secret(token))


def _sent_as_key(value: bytes) -> Credential | Denial:
    if value.startswith(_TOKEN_PREFIX) and value.count(b".") == _TOKEN_DOTS:
        return Denial(Reason.KEY_UNKNOWN, "this is a token: send it as authorization: Bearer", rule="credential")
    return _api_key(value)


def _api_key(value: bytes) -> Credential | Denial:
    if not value:
        return Denial(Reason.CREDENTIAL_MISSING, "the API key is empty", rule="credential")
    if len(value) > MAX_CREDENTIAL:
        return Denial(Reason.KEY_UNKNOWN, f"it is longer than {MAX_CREDENTIAL} bytes", rule="credential")
    return Credential("api_key", Secret(value))


def _ambiguous(detail: str) -> Denial:
    return Denial(Reason.CREDENTIAL_AMBIGUOUS, detail, rule="credential")


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
