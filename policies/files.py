"""The bundle's directory: its files read within bounds, their digest, and one archive of them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from policies.yamlfile import Problem, suggest

__all__ = ["REQUIRED", "Fingerprint", "digest", "fingerprint", "pack", "read_files", "unpack"]

MAX_FILES: Final = 20_000
MAX_FILE_BYTES: Final = 2**20
MAX_BYTES: Final = 64 * 2**20
MAX_PROBLEMS: Final = 1000

REQUIRED: Final = ("bundle.yaml", "models.yaml", "plans.yaml")
_FOLDERS: Final = {"tenants": ".yaml", "access": ".cedar", "guards": ".cedar", "tests": ".yaml", "engines": ".json"}

# Never waits: what stands in a file's place may be a pipe that nobody writes into.
_READING: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Differs when the directory does, but for an edit in the very tick of the clock of its ``newest`` (epoch ns)."""

    digest: bytes
    newest: int


def read_files(directory: Path) -> dict[str, bytes] | list[Problem]:
    """The bundle's files by their path in it, sorted; hidden files and Markdown are no part of it."""
    if not directory.is_dir():
        return [Problem(str(directory), 1, 1, "", "no such directory")]
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    total = 0
    root = os.path.realpath(directory)
    try:
        for name, path in _walk(directory):
            if len(files) + len(problems) >= MAX_FILES or total > MAX_BYTES:
                bounds = f"a bundle holds at most {MAX_FILES} files and {MAX_BYTES} bytes"
                problems.append(Problem(name, 1, 1, "", bounds))
                break
            data = _read(root, name, path) if name.isprintable() else _unprintable(name)
            if isinstance(data, Problem):
                problems.append(data)
            else:
                files[name] = data
                total += len(data)
    except OSError as fault:
        problems.append(Problem(str(fault.filename or directory), 1, 1, "", f"cannot be read: {fault.strerror}"))
    return problems[:MAX_PROBLEMS] or dict(sorted(files.items()))


def _walk(directory: Path) -> Iterator[tuple[str, str]]:
    """Two levels: the directory and the folders in it. A folder in a folder is told as a file that can't be read.

    As text: ten thousand paths as objects are a pause when the collector walks them, and this is polled.
    """
    top = str(directory)
    root = os.path.realpath(top)
    for name in sorted(os.listdir(top)):  # noqa: PTH208
        path = f"{top}/{name}"
        if name.startswith("."):
            continue
        if stat.S_ISDIR(_mode(path)) and _within(os.path.realpath(path), root):
            for inner in sorted(os.listdir(path)):  # noqa: PTH208
                if not inner.startswith(".") and not inner.endswith(".md"):
                    yield f"{name}/{inner}", f"{path}/{inner}"
        elif not name.endswith(".md"):
            yield name, path


def _mode(path: str) -> int:
    """0 where it can't be looked at: whoever reads it will tell why."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return 0


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")


def _read(root: str, name: str, path: str) -> bytes | Problem:
    try:
        # Kubernetes mounts a ConfigMap as links inside the directory: those are followed, others are not.
        real = path
        if os.path.islink(path):  # noqa: PTH114 — else it is where its folder is, which was looked at
            real = os.path.realpath(path, strict=True)
            if not _within(real, root):
                return Problem(name, 1, 1, "", "a link that leaves the bundle")
        if not _belongs(name):
            return Problem(name, 1, 1, "", f"not part of a bundle{suggest(name, _names(name))}")
        data = _content(real)
    except OSError as fault:
        return Problem(name, 1, 1, "", f"cannot be read: {fault.strerror}")
    return Problem(name, 1, 1, "", data) if isinstance(data, str) else data


def _content(path: str) -> bytes | str:
    """Or why there is none. What is looked at is what was opened: another thing may stand there a moment later."""
    descriptor = os.open(path, _READING)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "not a file"
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    return data if len(data) <= MAX_FILE_BYTES else f"larger than {MAX_FILE_BYTES} bytes"


def _unprintable(name: str) -> Problem:
    """Nor is what is no UTF-8 printable: no digest, record or message could name it."""
    return Problem(name.encode("unicode_escape").decode(), 1, 1, "", "a file's name that can't be printed")


def _belongs(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return name in REQUIRED if not folder else Path(file).suffix == _FOLDERS.get(folder)


def _names(name: str) -> list[str]:
    """What a file that doesn't belong was probably meant to be."""
    folder, _, file = name.rpartition("/")
    return list(REQUIRED) if not folder else [f"{known}/{Path(file).stem}{end}" for known, end in _FOLDERS.items()]


def fingerprint(directory: Path) -> Fingerprint:
    """Of each file's name, mtime, ctime, size and inode; of what can't be looked at, why.

    The ctime is the kernel's own: an edit that puts the mtime back can't put that back.
    """
    whole = hashlib.blake2b()
    newest = 0
    try:
        for name, path in islice(_walk(directory), MAX_FILES + 1):  # beyond that it is refused anyway
            told, changed = _looked_at(path)
            newest = max(newest, changed)
            whole.update(os.fsencode(f"{name}\0{told}\0"))
    except OSError as fault:
        whole.update(b"%d" % (fault.errno or 0))
    return Fingerprint(whole.digest(), newest)


def _looked_at(path: str) -> tuple[str, int]:
    """What differs when a file does, and its ctime."""
    try:
        found = os.stat(path)  # noqa: PTH116 — Path.stat does the same in twice the time, and this is polled
    except OSError as fault:
        return str(fault.errno), 0
    return f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_size} {found.st_ino}", found.st_ctime_ns


def digest(files: Mapping[str, bytes]) -> str:
    """``sha256:…`` over each file's path and bytes, lengths first so that no two sets of files read the same."""
    whole = hashlib.sha256()
    for name, data in sorted(files.items()):
        whole.update(b"%d %s %d\n" % (len(name.encode()), name.encode(), len(data)))
        whole.update(data)
    return f"sha256:{whole.hexdigest()}"


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ustar archive without times, owners or modes: the same files make the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    """The files of a stored bundle, for ``compile_bundle``. Raises ``tarfile.TarError``."""
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            data = archive.extractfile(member)
            if data is not None:
                files[member.name] = data.read()
    return files
