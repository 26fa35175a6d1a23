"""What stood when it was last recorded: settings, Triton's models, issuers' keys; events say what changed since."""

from __future__ import annotations

import hashlib
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
from sidecar.core.model import ParameterValue
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
_ASKER: Final = re.compile(r"(\b(?:https?|rediss?)://)[^/?#\s]*@")
_QUERY: Final = re.compile(r"(\bhttps?://[^?\s]*\?)\S*")


class _Stood(msgspec.Struct):
    """By name: each setting, what each model is, and whom is trusted."""

    settings: dict[str, str] = {}
    models: dict[str, str] = {}
    issuers: dict[str, dict[str, str]] = {}  # what each one's keys are, by their names


class Noted:
    """``begin`` once, ``learnt`` after each round that asked Triton, ``trusted`` after each that asked an issuer; each
    compares with what last stood in the journal.

    So a restart that changes nothing is one event, and what could not be written is made good by the next round. A kill
    between an event and its note repeats the event. Thread-safe.
    """

    def __init__(self, directory: Path, announcer: Announcer, version: str, monotonic: Callable[[], float]) -> None:
        self._path, self._announcer, self._version, self._monotonic = directory / FILE, announcer, version, monotonic
        self._lock = threading.Lock()
        self._stood = _Stood()
        self._owed: list[tuple[str, dict[str, ParameterValue]]] = []  # of the start
        self._settings: dict[str, str] = {}
        self._failing: set[str] = set()  # kinds that could not be written, and were counted
        self._seen = NOTHING
        self._told: deque[float] = deque(maxlen=MOST)
        self._rotated: deque[float] = deque(maxlen=MOST)

    def begin(self, settings: BaseModel) -> None:
        """Record the start, and how the settings differ from those of the last start."""
        with self._lock:
            self._stood = _read(self._path)
            was, now = self._stood.settings, dict(leaves(settings))
            digest = hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest()
            self._owed = [("sidecar_started", {"version": self._version, "settings": digest})]
            changed = [
                f"{name}: {was.get(name, '(unset)')} → {now.get(name, '(unset)')}" for name in _differing(was, now)
            ]
            if was and changed:
                self._owed.append(("posture_changed", {"changes": _text(changed), "count": len(changed)}))
            self._settings = now
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
            self._stood.settings = self._settings
            self._keep()

    def _tell_models(self, knowledge: Knowledge) -> bool:
        """Whether what was recorded is now what is known."""
        was = self._stood.models
        now = {name: _brief(model) for name, model in knowledge.models.items()}
        now |= {name: was[name] for name in knowledge.unlearnt if name in was}
        if was == now:
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
        self._stood.models = now
        self._keep()
        return True

    def _write(self, kind: str, detail: Mapping[str, ParameterValue]) -> bool:
        written = self._announcer.write(kind, detail, again=kind in self._failing)
        (self._failing.discard if written else self._failing.add)(kind)
        return written

    def _keep(self) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(self._stood), durable=False)
        except OSError as fault:  # the next start compares with an older one
            logs.event(_LOG, logging.ERROR, "noted.unwritten", path=str(self._path), error=fault.strerror)


def leaves(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by its dotted name; not those that may hold a password, which are shown nowhere.

    Of a URL neither who asks nor its query: a log that forgets nothing is no place for what may stand there.
    """
    match value:
        case BaseModel():
            inside = {each: getattr(value, each) for each, field in type(value).model_fields.items() if field.repr}
        case Mapping():
            inside = {str(each): value[each] for each in value}
        case tuple() | list():
            inside = {str(n): each for n, each in enumerate(value)}
        case None:
            return
        case _:
            yield name, _ASKER.sub(r"\1…@", _QUERY.sub(r"\1…", str(value)))[:_VALUE_CHARS]
            return
    for each, inner in inside.items():
        yield from leaves(inner, f"{name}.{each}" if name else each)


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


def _read(path: Path) -> _Stood:
    """What was noted; nothing where there is no such file, or it is no such."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_FILE_BYTES), type=_Stood)
    except (OSError, msgspec.DecodeError):
        return _Stood()
