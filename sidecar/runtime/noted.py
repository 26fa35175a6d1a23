"""What stood when it was last recorded: settings, Triton's models, issuers' keys; events say what changed since."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from pydantic import BaseModel

from audit.spool import write_whole
from sidecar.core.model import ParameterValue, Secret
from sidecar.runtime.inforce import Announcer
from sidecar.telemetry import logs
from sidecar.triton.knowledge import NOTHING, Knowledge, ModelFacts

__all__ = ["FILE", "Noted", "leaves"]

_LOG: Final = logging.getLogger("warden.lifecycle")
FILE: Final = "noted.json"  # in the journal's directory
MOST: Final = 10  # events of a kind in WITHIN; what flaps is told as what it has become by then
WITHIN: Final = 600.0  # seconds
_TEXT_CHARS: Final = 4_000  # of one text of an event; what is more is counted
_VALUE_CHARS: Final = 200
_FILE_BYTES: Final = 16 << 20
_URL: Final = re.compile(r"\b(?!spiffe:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)  # a SPIFFE ID names, and opens nothing
_NAMES: Final = ("issuer", "name", "address", "url")  # by which one of several settings is called
UNREADABLE: Final = "unreadable"


class _Stood(msgspec.Struct):
    """By name: each setting, what each model is, and whom is trusted."""

    settings: dict[str, str] = {}
    digest: str = ""  # of the settings
    models: dict[str, str] = {}
    models_by: str = ""  # the release that told of them so
    issuers: dict[str, dict[str, str]] = {}  # what each one's keys are, by their names


class Noted:
    """``begin`` once, ``learnt`` after each round that asked Triton, ``trusted`` after each that asked an issuer; each
    compares with what last stood in the journal.

    So a restart that changes nothing is one event, and what could not be written is made good by the next round. A kill
    between an event and its note repeats the event. Thread-safe.
    """

    def __init__(
        self, directory: Path, announcer: Announcer, version: str, key: Secret, monotonic: Callable[[], float]
    ) -> None:
        """``key``: from which that follows under which what a setting does not show is told apart all the same."""
        self._path, self._announcer, self._version, self._monotonic = directory / FILE, announcer, version, monotonic
        self._key = hmac.digest(key.reveal(), b"noted", "sha256")
        self._lock = threading.Lock()
        self._stood = _Stood()
        self._owed: list[tuple[str, dict[str, ParameterValue]]] = []  # of the start
        self._settings: dict[str, str] = {}
        self._digest = ""
        self._failing: set[str] = set()  # kinds that could not be written, and were counted
        self._seen = NOTHING
        self._told: deque[float] = deque(maxlen=MOST)
        self._rotated: deque[float] = deque(maxlen=MOST)

    def begin(self, settings: BaseModel) -> None:
        """Record the start, and how the settings differ from those of the last start."""
        with self._lock:
            found = _read(self._path)
            self._stood = found or _Stood()
            was, now = self._stood.settings, dict(leaves(settings, self._key))
            digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
            previous = UNREADABLE if found is None else found.digest
            self._owed = [("sidecar_started", {"version": self._version, "settings": digest, "previous": previous})]
            changed = [
                f"{name}: {was.get(name, '(unset)')} → {now.get(name, '(unset)')}" for name in _differing(was, now)
            ]
            if was and changed:
                self._owed.append(("posture_changed", {"changes": _text(changed), "count": len(changed)}))
            self._settings, self._digest = now, digest
            self._tell_start()

    def retry(self) -> None:
        """Once a second, and at the end: what is owed of the start, where it could not be written yet."""
        if self._owed:
            with self._lock:
                self._tell_start()

    def learnt(self, knowledge: Knowledge) -> None:
        """Record how Triton's models differ from those last recorded; one that can't be asked about stays as it was."""
        with self._lock:
            self._tell_start()
            if knowledge is not self._seen and knowledge.complete and self._tell_models(knowledge):
                self._seen = knowledge

    def trusted(self, issuers: Mapping[str, Mapping[str, str]]) -> None:
        """Record how the keys of issuers differ from those last recorded; of one without any yet nothing is known."""
        with self._lock:
            for issuer, keys in issuers.items():
                was = self._stood.issuers.get(issuer, {})
                if keys and keys != was and self._tells(self._rotated):
                    self._tell_keys(issuer, was, dict(keys))

    def _tell_keys(self, issuer: str, was: Mapping[str, str], now: dict[str, str]) -> None:
        differing = _differing(was, now)
        detail: dict[str, ParameterValue] = {
            "issuer": issuer,
            "added": _text([f"{name} ({now[name]})" for name in differing if name in now]),
            "removed": _text([f"{name} ({was[name]})" for name in differing if name in was]),
            "keys": len(now),
        }
        if self._write("issuer_keys_changed", detail):
            self._rotated.append(self._monotonic())
            self._stood.issuers[issuer] = now
            self._keep()

    def _tells(self, told: deque[float]) -> bool:
        """Whether it is time for one more event of that kind."""
        return len(told) < MOST or self._monotonic() - told[0] >= WITHIN

    def _tell_start(self) -> None:
        if not self._owed:
            return
        while self._owed and self._write(*self._owed[0]):
            del self._owed[0]
        if not self._owed:
            self._stood.settings, self._stood.digest = self._settings, self._digest
            self._keep()

    def _tell_models(self, knowledge: Knowledge) -> bool:
        """Whether what was recorded is now what is known."""
        was = self._stood.models
        now = {name: _brief(model) for name, model in knowledge.models.items()}
        now |= {name: was[name] for name in knowledge.unlearnt if name in was}
        if self._stood.models_by != self._version:  # another release may know more of the same model
            was = {name: now[name] if _plain(text) == _plain(now.get(name, "")) else text for name, text in was.items()}
        if was == now:
            if self._stood.models_by != self._version:
                self._stood.models, self._stood.models_by = now, self._version
                self._keep()
            return True
        if not self._tells(self._told):
            return False
        differing = _differing(was, now)
        detail: dict[str, ParameterValue] = {
            "loaded": _text([f"{name} ({now[name]})" for name in differing if name not in was]),
            "unloaded": _text([name for name in differing if name not in now]),
            "changed": _text(
                [f"{name} ({was[name]} → {now[name]})" for name in differing if name in was and name in now]
            ),
            "models": len(now),
        }
        if not self._write("models_changed", detail):
            return False
        self._told.append(self._monotonic())
        self._stood.models, self._stood.models_by = now, self._version
        self._keep()
        return True

    def _write(self, kind: str, detail: Mapping[str, ParameterValue]) -> bool:
        written = self._announcer.write(kind, detail, again=kind in self._failing)
        (self._failing.discard if written else self._failing.add)(kind)
        return written

    def _keep(self) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(self._stood))
        except OSError as fault:  # the next start compares with an older one
            logs.event(_LOG, logging.ERROR, "noted.unwritten", path=str(self._path), error=fault.strerror)


def leaves(value: object, key: bytes, name: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by its dotted name; not those that may hold a password, which are shown nowhere.

    Of a URL no more than its scheme and host, of a long text no more than its beginning, but with a mark under ``key``
    that another value does not have: a log that forgets nothing is no place for what may stand there.
    """
    match value:
        case BaseModel():
            inside = {each: getattr(value, each) for each, field in type(value).model_fields.items() if field.repr}
        case Mapping():
            inside = {str(each): value[each] for each in value}
        case tuple() | list() if any(isinstance(each, BaseModel) for each in value):
            inside = {_called(each, n): each for n, each in enumerate(value)}
        case tuple() | list():
            yield name, _shown(", ".join(map(str, value)), key)
            return
        case None:
            return
        case _:
            yield name, _shown(str(value), key)
            return
    for each, inner in inside.items():
        yield from leaves(inner, key, f"{name}.{each}" if name else each)


def _called(value: object, n: int) -> str:
    """One of several, by what it is known by, so that one more in front changes no other."""
    given = next((str(found) for each in _NAMES if isinstance(found := getattr(value, each, None), str)), None)
    return str(n) if given is None else f"[{given}]"


def _shown(text: str, key: bytes) -> str:
    words = map(_reduced, re.split(r"(\s+)", text))
    shown = "".join(words)[:_VALUE_CHARS]
    return shown if shown == text else f"{shown}… ({hmac.digest(key, text.encode(), 'sha256').hex()[:12]})"


def _reduced(word: str) -> str:
    """Of a URL scheme and host; not even the host where somebody may be named before it, which isn't always written
    right.
    """
    found = _URL.search(word)
    if found is None:
        return word
    rest = word[found.end() :]
    return word[: found.end()] + ("" if "@" in rest else re.split(r"[/?#,;]", rest, maxsplit=1)[0])


def _differing(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))


def _text(told: Sequence[str]) -> str:
    """``told`` as one text, and how many of them it has no room for."""
    text, shown = "", 0
    for each in told:
        longer = f"{text}; {each}" if text else each
        if len(longer) > _TEXT_CHARS:
            break
        text, shown = longer, shown + 1
    return text if shown == len(told) else f"{text}; and {len(told) - shown} more"


def _brief(model: ModelFacts) -> str:
    """Its versions, what runs it, and a mark that changes with anything else of what it says of itself."""
    mark = hashlib.sha256(repr(model).encode()).hexdigest()[:12]
    made = model.backend or model.platform or "unknown"
    return f"{made}, versions {' '.join(model.versions) or 'none'}, {mark}"


def _plain(text: str) -> str:
    """Of ``_brief`` what is told in words."""
    return text.rpartition(", ")[0]


def _read(path: Path) -> _Stood | None:
    """What was noted; nothing where there is no such file, None where it is no note."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_BYTES), type=_Stood)
    except FileNotFoundError:
        return _Stood()
    except (OSError, msgspec.DecodeError, RecursionError) as fault:
        logs.event(_LOG, logging.ERROR, "noted.unreadable", path=str(path), error=str(fault))
        return None
