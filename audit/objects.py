"""Where copies are kept outside the node: named objects, each written whole, in a mounted directory or an S3 bucket."""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

__all__ = ["OBJECT_BYTES", "LocalObjects", "ObjectStore", "StoreAt", "Stored", "Together", "check_name"]

_T = TypeVar("_T")
_NONE: Final[Mapping[str, str]] = {}
OBJECT_BYTES: Final = 64 * 2**20 + 2**16  # of one object; one journal entry at most, and its frame
_PART: Final = ".part"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,7}")


@dataclass(frozen=True, slots=True)
class Stored:
    """One object: its bytes, and when it was written last by the store's clock (seconds since the UNIX epoch)."""

    name: str
    nbytes: int
    at: float


class ObjectStore(Protocol):
    """``where`` is for people and holds no secret. Every method raises OSError, and may be as slow as the store is."""

    @property
    def where(self) -> str: ...

    def put(self, name: str, data: bytes) -> None:
        """Whole or not at all, over one that is there; it outlives the node once this returns."""
        ...

    def put_new(self, name: str, data: bytes) -> bool:
        """As ``put``, but never over one that is there: False, and nothing is changed."""
        ...

    def get(self, name: str) -> bytes | None:
        """None: there is none of that name."""
        ...

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """Those under the folder ``prefix`` ("": all), by name."""
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of those right under the folder ``prefix``, in order."""
        ...

    def delete(self, name: str) -> None:
        """One that isn't there may go as well."""
        ...


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store that is opened when it is asked for the first time; ``open`` raises OSError, and may again and again."""

    where: str
    open: Callable[[], ObjectStore]


def check_name(name: str) -> str:
    """Folders and a name of plain characters: no dots in front, nothing above. Raises ValueError."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no object's name")
    return name


class LocalObjects:
    """A directory that is mounted from elsewhere (NFS, a volume that moves with no pod)."""

    def __init__(self, root: Path) -> None:
        """``root`` must be there: one that is made here would lie on the node's own disk. Raises OSError."""
        self._root = root
        self._device = root.stat().st_dev

    @property
    def where(self) -> str:
        return str(self._root)

    def on_volume_of(self, path: Path) -> bool:
        """Whether ``path`` is lost with what is here."""
        return path.stat().st_dev == self._device

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        part = self._written(path.with_name(f".{path.name}{_PART}"), data)
        try:
            part.replace(path)
        except BaseException:  # raised again
            part.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    def put_new(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        # Of one's own: several may try at once. A crash leaves it, which nobody looks at.
        own = f".{path.name[:96]}.{os.getpid()}.{threading.get_ident():x}{_PART}"
        part = self._written(path.with_name(own), data)
        try:
            os.link(part, path)  # NFS, too, makes a link or finds one there (open(2), O_EXCL)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        _sync(path.parent)
        return True

    def _written(self, part: Path, data: bytes) -> Path:
        """``data`` whole and durable under that name."""
        self._mounted()
        self._folders(part.parent)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 — the descriptor carries the mode
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # raised again: a full volume must not also keep the part
            part.unlink(missing_ok=True)
            raise
        return part

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        self._mounted()
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        self._mounted()
        yield from self._under(self._path(prefix) if prefix else self._root)

    def _under(self, folder: Path) -> Iterator[Stored]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._under(Path(entry.path))
            else:
                with suppress(FileNotFoundError):  # deleted between the two looks
                    told = entry.stat(follow_symlinks=False)
                    name = str(Path(entry.path).relative_to(self._root))
                    yield Stored(name, told.st_size, told.st_mtime)

    def folders(self, prefix: str) -> Sequence[str]:
        self._mounted()
        try:
            with os.scandir(self._path(prefix)) as entries:
                return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, name: str) -> None:
        path = self._path(name)
        self._mounted()
        path.unlink(missing_ok=True)
        for folder in (path.parent, *path.parent.parents):
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except OSError:  # others are in it
                return

    def _mounted(self) -> None:
        """What was mounted may be gone, and the directory under it is the node's own."""
        if self._root.stat().st_dev != self._device:
            raise OSError(f"{self._root}: is no longer the volume that was mounted there")

    def _folders(self, folder: Path) -> None:
        """Each durable in the one above it."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
            _sync(each.parent)

    def _path(self, name: str) -> Path:
        return self._root / check_name(name)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Together:
    """Several stores that were given the same objects, read as one: what one lacks another may have.

    One that can't answer is passed over from then on: ``away`` says why, by where it is or by name; what it holds is
    not known then. Raises OSError where none answers.
    """

    def __init__(self, stores: Sequence[ObjectStore], away: Mapping[str, str] = _NONE) -> None:
        """``away``: further ones that could not even be opened."""
        self._stores = tuple(stores)
        self.away: dict[str, str] = {**away}

    @property
    def where(self) -> str:
        return ", ".join(store.where for store in self._stores)

    @property
    def silent(self) -> bool:
        """Whether none of them answers."""
        return all(store.where in self.away for store in self._stores)

    def put(self, name: str, data: bytes) -> None:
        for _ in self._each(lambda store: store.put(name, data)):
            pass

    def put_new(self, name: str, data: bytes) -> bool:
        new = [*self._each(lambda store: store.put_new(name, data))]
        return all(new)

    def get(self, name: str) -> bytes | None:
        return next((data for data in self._each(lambda store: store.get(name)) if data is not None), None)

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """Of one name, the largest: a part of it may have been written last."""
        found: dict[str, Stored] = {}
        for each in itertools.chain.from_iterable(self._each(lambda store: tuple(store.list(prefix)))):
            known = found.get(each.name)
            if known is None or (each.nbytes, each.at) > (known.nbytes, known.at):
                found[each.name] = each
        yield from sorted(found.values(), key=lambda each: each.name)

    def folders(self, prefix: str) -> Sequence[str]:
        return sorted({name for found in self._each(lambda store: store.folders(prefix)) for name in found})

    def delete(self, name: str) -> None:
        for _ in self._each(lambda store: store.delete(name)):
            pass

    def _each(self, ask: Callable[[ObjectStore], _T]) -> Iterator[_T]:
        """What each of them answers that isn't away."""
        for store in self._stores:
            if store.where in self.away:
                continue
            try:
                answer = ask(store)
            except OSError as fault:
                self.away[store.where] = str(fault)
                continue
            yield answer
        if self.silent:
            raise OSError("; ".join(self.away.values()))
