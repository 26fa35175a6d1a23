"""One issuer's public keys: read strictly from a JWK set, held as an immutable snapshot, refreshed off the path."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from sidecar.identity.compact import strict_json
from sidecar.identity.fetch import Fetch, FileFetch, Unchanged, fetch_from

_LOG: Final = logging.getLogger("warden.identity")
MAX_SET: Final = 256 * 1024  # bytes of a JWK set
MAX_KEYS: Final = 256
MIN_RSA_BITS: Final = 2048  # RFC 7518 §3.3
_KID_CHARS: Final = 100  # of one that is told
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
# kty, crv → the algorithms such a key may serve.
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("OKP", "Ed25519"): ("EdDSA",),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("RSA", ""): ("RS256", "PS256"),
}


@dataclass(frozen=True, slots=True)
class KeySet:
    """One issuer's keys by kid, each bound to one algorithm. Never changed; replaced whole."""

    by_kid: Mapping[str, PyJWK]
    unnamed: tuple[PyJWK, ...] = ()  # keys without a kid

    def find(self, kid: str | None) -> PyJWK | None:
        """The key of this kid; without one, the only key there is (RFC 7517 §4.5), and never one of several."""
        if kid is not None:
            return self.by_kid.get(kid)
        every = (*self.by_kid.values(), *self.unnamed)
        return every[0] if len(every) == 1 else None


def named(keys: KeySet) -> dict[str, str]:
    """Each key by its kid: its algorithm, and the first 16 hex digits of its public key's SHA-256 (as DER). What a kid
    says is the issuer's, so one is told no further than a name need be; a key without one goes by its digest.
    """
    told = {}
    for kid, key in [*keys.by_kid.items(), *((None, key) for key in keys.unnamed)]:
        public = key.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        mark = hashlib.sha256(public).hexdigest()[:16]
        told[mark if kid is None else kid[:_KID_CHARS]] = f"{key.algorithm_name} {mark}"
    return told


class _Refused(Exception):  # noqa: N818 — control flow inside this module, never seen outside
    """Carries the fault that spoils a whole set."""


def parse_jwks(data: bytes, algorithms: Sequence[str]) -> KeySet | str:
    """The set's keys that fit the issuer's ``algorithms``, or in words why the whole set is refused.

    Refused: over 256 KiB, not strict JSON, a symmetric or private key, a kid given twice, RSA under 2048 bits.
    Keys for other uses or algorithms are passed over.
    """
    by_kid: dict[str, PyJWK] = {}
    unnamed: list[PyJWK] = []
    seen: set[str] = set()
    try:
        for member in _members(data):
            kid = _kid(member, seen)
            key = _key(member, algorithms)
            if key is not None and kid is not None:
                by_kid[kid] = key
            elif key is not None:
                unnamed.append(key)
    except _Refused as fault:
        return str(fault)
    return KeySet(by_kid, tuple(unnamed)) if by_kid or unnamed else "no key fits the issuer's algorithms"


def _members(data: bytes) -> list[dict[str, Any]]:
    if len(data) > MAX_SET:
        raise _Refused(f"longer than {MAX_SET} bytes")
    try:
        document = strict_json(data)
    except ValueError as fault:
        raise _Refused(str(fault)) from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise _Refused("not a JWK set")
    if len(keys) > MAX_KEYS:
        raise _Refused(f"more than {MAX_KEYS} keys")
    return keys


def _kid(member: Mapping[str, Any], seen: set[str]) -> str | None:
    kid = member.get("kid")
    if kid is None:
        return None
    if not isinstance(kid, str):
        raise _Refused("a kid is not text")
    if kid in seen:
        raise _Refused("a kid is given twice")
    seen.add(kid)
    return kid


def _key(member: Mapping[str, Any], algorithms: Sequence[str]) -> PyJWK | None:
    """The verifying key; None for one that is not for us."""
    if member.get("kty") == "oct" or _PRIVATE & member.keys():
        raise _Refused("holds a symmetric or private key")
    algorithm = _algorithm(member, algorithms)
    if algorithm is None:
        return None
    try:
        key = PyJWK(dict(member), algorithm=algorithm)
    except (PyJWTError, ValueError, TypeError) as fault:
        raise _Refused(f"a key cannot be read ({type(fault).__name__})") from None
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < MIN_RSA_BITS:
        raise _Refused(f"an RSA key of {key.key.key_size} bits")
    return key


def _algorithm(member: Mapping[str, Any], algorithms: Sequence[str]) -> str | None:
    """The one algorithm this key serves (RFC 8725 §3.1): its own ``alg``, else the issuer's first that fits."""
    operations = member.get("key_ops", ["verify"])
    if member.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    kty, curve, named = member.get("kty"), member.get("crv", ""), member.get("alg")
    if not isinstance(kty, str) or not isinstance(curve, str):
        return None
    fitting = _ALGORITHMS.get((kty, "" if kty == "RSA" else curve), ())
    return next((name for name in algorithms if name in fitting and (named is None or named == name)), None)


@dataclass(frozen=True, slots=True)
class Condition:
    """How a source stands, for readiness and metrics: when last confirmed (s since the epoch), and the last fault."""

    confirmed_at: float | None = None
    fault: str = ""


@dataclass(slots=True)
class JwksSource:
    """One issuer's keys and how they are renewed. Only ``refresh`` does I/O; a failed one keeps the keys it had.

    In seconds: fetched again every ``period``, or sooner when asked, never within ``cooldown`` of the last fetch;
    ``max_stale`` bounds how long keys are believed that could not be confirmed.
    """

    fetch: Fetch
    algorithms: tuple[str, ...]
    period: float = 300.0
    cooldown: float = 30.0
    max_stale: float = 24 * 3600.0
    wanted: threading.Event = field(default_factory=threading.Event)
    condition: Condition = Condition()
    names: Mapping[str, str] = field(default_factory=dict)  # of the keys, as ``named`` tells them
    _keys: KeySet | None = None

    def keys(self, at: float) -> KeySet | None:
        """The current keys; None while none were had, or where they are too stale to be believed."""
        confirmed = self.condition.confirmed_at
        return self._keys if confirmed is not None and at - confirmed <= self.max_stale else None

    def ask(self) -> None:
        """An unknown kid was seen: ask the refresher to look. Many askers make one fetch."""
        self.wanted.set()

    def refresh(self, at: float) -> bool:
        """Fetch once, on the caller's thread; whether the keys were confirmed. Unchanged keys stay the same object."""
        data = self.fetch()
        if isinstance(data, str):
            self.condition = Condition(self.condition.confirmed_at, data)
            return False
        if not isinstance(data, Unchanged):
            found = parse_jwks(data, self.algorithms)
            if isinstance(found, str):
                self.condition = Condition(self.condition.confirmed_at, f"refused: {found}")
                self.fetch.forget()
                return False
            self._keys, self.names = found, named(found)
        self.condition = Condition(at)
        return True


def source_for(location: str, algorithms: tuple[str, ...], monotonic: Callable[[], float]) -> JwksSource | str:
    """A source for a file or URL, or in words why not. A file costs nothing to read, so it is looked at every 2 s."""
    fetch = fetch_from(location, monotonic)
    if isinstance(fetch, str):
        return fetch
    if isinstance(fetch, FileFetch):
        return JwksSource(fetch, algorithms, period=2.0, cooldown=1.0)
    return JwksSource(fetch, algorithms)


def _nobody_asks() -> None:
    """Nobody wants to know of refreshes."""


class JwksRefresher:
    """A daemon thread for each source, so that one issuer's slow server doesn't hold up another's rotation."""

    def __init__(self, sources: Sequence[JwksSource], clock: Callable[[], float]) -> None:
        """``clock`` gives seconds since the UNIX epoch."""
        self._clock = clock
        self.refreshed: Callable[[], None] = _nobody_asks  # called after each refresh, on the thread of its source
        self._stopping = threading.Event()
        self._sources = tuple(sources)
        self._threads = [
            threading.Thread(target=self._run, args=(source,), name="warden-jwks", daemon=True) for source in sources
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Ends every thread; waits at most ``timeout`` seconds for each (a fetch in flight has its own bound)."""
        self._stopping.set()
        for source in self._sources:
            source.wanted.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout)

    def _run(self, source: JwksSource) -> None:
        while not self._stopping.is_set():
            source.wanted.clear()
            try:
                confirmed = source.refresh(self._clock())
                self.refreshed()
            except Exception as fault:  # noqa: BLE001 — a thread that died would miss every rotation, unnoticed
                _LOG.error("jwks.crashed", exc_info=fault)
                source.condition = Condition(source.condition.confirmed_at, f"crashed: {type(fault).__name__}")
                confirmed = False
            # Random kids can't make us flood the issuer; a fault is retried at the same pace.
            if self._stopping.wait(source.cooldown):
                return
            if confirmed:
                source.wanted.wait(max(0.0, source.period - source.cooldown))
