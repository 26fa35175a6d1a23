"""The root keys that a journal's segments are wrapped under: one that is in use, and those of segments still there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.seal import KeyFault, Random, create_key_file, key_id, load_root_key
from audit.spool import write_whole
from sidecar.core.model import Secret

__all__ = ["CURRENT", "NewRootKey", "Root", "RootKeys", "current_root", "new_root_key", "root_of", "where"]

CURRENT: Final = "current"  # the file that names the one in use, by its id
_ID: Final = 16  # hex digits
_MOST: Final = 64  # keys that are listed


class RootKeys:
    """``first``: of the key file that is always there. The others lie in ``directory``, each named by its id.

    Looked up when a segment is met that is under one not known yet; which is in use is read at each new segment. So a
    rotation needs no restart.
    """

    def __init__(self, first: Secret, directory: Path | None = None) -> None:
        self._first, self._directory = first, directory
        self._known = {key_id(first): first}
        self._current = first

    @property
    def where(self) -> str:
        """What a key is looked for in, for messages."""
        first = f"the key file is {key_id(self._first).hex()}"
        return first if self._directory is None else f"{first}, and {self._directory} has no other"

    def find(self, identity: bytes) -> Secret | None:
        """The key of that id; None where it is not here."""
        known = self._known.get(identity)
        if known is None and self._directory is not None:
            found = _load(self._directory, identity.hex())
            if isinstance(found, Secret):
                known = self._known[identity] = found
        return known

    def current(self) -> Secret:
        """What a new segment is wrapped under; what it was, where the one that is named can't be had (``fault``)."""
        found = self._look()
        if isinstance(found, Secret):
            self._current = self._known[key_id(found)] = found
        return self._current

    def fault(self) -> KeyFault | None:
        """Why the key that is named as in use cannot be."""
        found = self._look()
        return found if isinstance(found, KeyFault) else None

    def _look(self) -> Secret | KeyFault:
        if self._directory is None:
            return self._first
        path = self._directory / CURRENT
        try:
            named = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return self._first  # none was made yet
        except (OSError, UnicodeError) as fault:
            return KeyFault(f"{path}: {getattr(fault, 'strerror', None) or fault}")
        if len(named) != _ID or named.strip("0123456789abcdef"):
            return KeyFault(f"{path}: names no root key: {named[:40]!r}")
        known = self._known.get(bytes.fromhex(named))
        return known or _load(self._directory, named)

    def ids(self) -> list[bytes]:
        """Of those that are here, at most 64; a file that holds no key is none."""
        found = {key_id(self._first)}
        if self._directory is not None and self._directory.is_dir():
            names = sorted(path.stem for path in self._directory.glob("*.key") if len(path.stem) == _ID)[:_MOST]
            found |= {bytes.fromhex(name) for name in names if isinstance(_load(self._directory, name), Secret)}
        return sorted(found)

    def missing(self, wanted: Iterable[bytes]) -> list[bytes]:
        """Those of ``wanted`` that are not here."""
        return sorted({each for each in wanted if self.find(each) is None})


@dataclass(frozen=True, slots=True)
class NewRootKey:
    """``identity`` tells it from others and says nothing of it."""

    identity: bytes
    path: Path


Root = Secret | RootKeys


def root_of(root: Root, identity: bytes) -> Secret | None:
    """The key of that id, where it is here."""
    if isinstance(root, RootKeys):
        return root.find(identity)
    return root if key_id(root) == identity else None


def current_root(root: Root) -> Secret:
    """What a new segment is wrapped under."""
    return root.current() if isinstance(root, RootKeys) else root


def where(root: Root) -> str:
    """What was looked at in vain, for messages."""
    return root.where if isinstance(root, RootKeys) else f"the key file is {key_id(root).hex()}"


def new_root_key(directory: Path, random: Random) -> NewRootKey | KeyFault:
    """Make one in ``directory`` and name it as the one in use; its file is there before it is named."""
    part = directory / ".new.key"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        made = create_key_file(part, random)
        if isinstance(made, KeyFault):
            return made
        identity = key_id(made)
        path = directory / f"{identity.hex()}.key"
        part.rename(path)
        write_whole(directory / CURRENT, f"{identity.hex()}\n".encode())
    except OSError as fault:
        return KeyFault(f"{directory}: {fault.strerror}")
    return NewRootKey(identity, path)


def _load(directory: Path, named: str) -> Secret | KeyFault:
    path = directory / f"{named}.key"
    found = load_root_key(path)
    if isinstance(found, Secret) and key_id(found).hex() != named:
        return KeyFault(f"key file {path}: holds another key, {key_id(found).hex()}, than its name says")
    return found
