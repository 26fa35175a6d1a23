"""Which weights answer: the SHA-256 of each model version's directory, worked out beside the calls, kept in memory."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidecar.telemetry import logs

__all__ = ["VERSION", "ModelDigests", "Unreadable", "digest_directory"]

_LOG: Final = logging.getLogger("warden.models")
FILES_MAX: Final = 100_000  # of one version
VERSIONS_MAX: Final = 10_000  # of all repositories
_CHUNK: Final = 2**20
VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")

_Print = tuple[tuple[str, int, int, int], ...]  # of each file: path in the directory, size, mtime (ns), inode
Version = tuple[str, str]  # model, version


class Unreadable(Exception):  # noqa: N818 — a fact about a directory, told to whoever asked
    """Why a directory has no digest."""


@dataclass(frozen=True, slots=True)
class _Known:
    print: _Print
    digest: str


class ModelDigests:
    """The digests of all versions under ``repositories``. ``look`` is called by one thread, all else by any."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._repositories = tuple(repositories)
        self._known: dict[Version, _Known] = {}
        self._first: dict[Version, str] = {}  # the digest that was seen first: Triton may have loaded those files
        self._told: dict[Version, str] = {}
        self.digests: Mapping[Version, str] = {}  # swapped whole
        self.changed: frozenset[Version] = frozenset()  # whose files changed while the sidecar ran

    def of(self, model: str, version: str) -> str:
        """``sha256:…``; "" where it isn't known (yet)."""
        return self.digests.get((model, version), "")

    def look(self) -> None:
        """Hash what is new or has changed since the last look, by size, mtime and inode. Slow for large weights."""
        known: dict[Version, _Known] = {}
        for version, directory in self._versions():
            try:
                found = _known(directory, self._known.get(version))
            except (OSError, Unreadable) as fault:
                self._tell(version, str(fault))
                continue
            known[version] = found
            self._first.setdefault(version, found.digest)
            self._publish({**self._known, version: found})  # one at a time: the next may take minutes
        self._publish(known)
        self._first = {version: digest for version, digest in self._first.items() if version in known}

    def _publish(self, known: dict[Version, _Known]) -> None:
        self._known = known
        self.digests = {version: each.digest for version, each in known.items()}
        self.changed = frozenset(v for v, each in known.items() if self._first.get(v, each.digest) != each.digest)

    def _versions(self) -> Iterator[tuple[Version, Path]]:
        """Of a model in two repositories Triton loads none, so the first will do."""
        seen: set[Version] = set()
        for repository in self._repositories:
            try:
                models = sorted(path for path in repository.iterdir() if path.is_dir())
            except OSError as fault:
                self._tell((str(repository), ""), f"{repository}: {fault.strerror}")
                continue
            for model in models:
                for directory in sorted(path for path in _entries(model) if VERSION.fullmatch(path.name)):
                    version = (model.name, directory.name)
                    if version not in seen and len(seen) < VERSIONS_MAX and directory.is_dir():
                        seen.add(version)
                        yield version, directory

    def _tell(self, version: Version, detail: str) -> None:
        """Once for each fault."""
        if self._told.get(version) != detail:
            self._told[version] = detail
            logs.event(_LOG, logging.WARNING, "digest.unknown", model=version[0], version=version[1], detail=detail)


def digest_directory(directory: Path) -> str:
    """``sha256:…`` over each file's path in the directory and its bytes, lengths first, in order of path.

    So: ``b"%d %s %d\\n" % (len(path), path, size)`` and the file, for one after the other. Raises ``OSError``,
    ``Unreadable``.
    """
    return _digest(directory, _fingerprint(directory))


def _known(directory: Path, before: _Known | None) -> _Known:
    print_ = _fingerprint(directory)
    if before is not None and before.print == print_:
        return before
    digest = _digest(directory, print_)
    if _fingerprint(directory) != print_:
        raise Unreadable("its files changed while they were read")
    return _Known(print_, digest)


def _entries(model: Path) -> list[Path]:
    try:
        return list(model.iterdir())
    except OSError:  # it went, or nobody may look into it: then it has no versions here
        return []


def _fingerprint(directory: Path) -> _Print:
    """Links are followed, as Triton follows them: caches of weights are made of links."""
    found: list[tuple[str, int, int, int]] = []
    for place, folders, files in os.walk(directory, followlinks=True, onerror=_raise):
        folders[:] = [name for name in folders if name != "__pycache__"]  # made by loading, not what was loaded
        for name in files:
            path = os.path.join(place, name)  # noqa: PTH118 — a Path each would double the time
            status = os.stat(path)  # noqa: PTH116
            found.append((os.path.relpath(path, directory), status.st_size, status.st_mtime_ns, status.st_ino))
        if len(found) > FILES_MAX or place.count(os.sep) - str(directory).count(os.sep) > 32:
            raise Unreadable(f"more than {FILES_MAX} files, or folders that lead in a circle")
    return tuple(sorted(found))


def _raise(fault: OSError) -> None:
    raise fault


def _digest(directory: Path, files: _Print) -> str:
    whole = hashlib.sha256()
    for name, size, _, _ in files:
        path = os.fsencode(name)
        whole.update(b"%d %s %d\n" % (len(path), path, size))
        with (directory / name).open("rb") as file:
            while chunk := file.read(_CHUNK):
                whole.update(chunk)  # without the GIL, for pieces of this size
    return f"sha256:{whole.hexdigest()}"
