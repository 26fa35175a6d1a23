"""The bundle's directory: its files read within bounds, their digest, and one archive of them."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
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

Fingerprint = tuple[tuple[str, int, int, int], ...]  # of each file: name, mtime (ns), size, inode


def read_files(directory: Path) -> dict[str, bytes] | list[Problem]:
    """The bundle's files by their path in it, sorted; hidden files and Markdown are no part of it."""
    if not directory.is_dir():
        return [Problem(str(directory), 1, 1, "", "no such directory")]
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    total = 0
    root = directory.resolve()
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


def _walk(directory: Path) -> Iterator[tuple[str, Path]]:
    """Two levels: the directory and the folders in it. A folder in a folder is told as a file that can't be read."""
    root = directory.resolve()
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and entry.resolve().is_relative_to(root):
            for inner in sorted(entry.iterdir()):
                if not inner.name.startswith(".") and inner.suffix != ".md":
                    yield f"{entry.name}/{inner.name}", inner
        elif entry.suffix != ".md":
            yield entry.name, entry


def _read(root: Path, name: str, path: Path) -> bytes | Problem:
    try:
        # Kubernetes mounts a ConfigMap as links inside the directory: those are followed, others are not.
        real = path
        if path.is_symlink():  # else it is where its folder is, which was looked at
            real = Path(os.path.realpath(path, strict=True))  # Path.resolve tells a loop by a RuntimeError
            if not real.is_relative_to(root):
                return Problem(name, 1, 1, "", "a link that leaves the bundle")
        if not _belongs(name):
            return Problem(name, 1, 1, "", f"not part of a bundle{suggest(name, _names(name))}")
        if not stat.S_ISREG(real.stat().st_mode):
            return Problem(name, 1, 1, "", "not a file")
        with real.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as fault:
        return Problem(name, 1, 1, "", f"cannot be read: {fault.strerror}")
    if len(data) > MAX_FILE_BYTES:
        return Problem(name, 1, 1, "", f"larger than {MAX_FILE_BYTES} bytes")
    return data


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
    """What changes when the directory does: each file's name, mtime (ns), size and inode. Raises ``OSError``."""
    found = []
    for name, path in islice(_walk(directory), MAX_FILES + 1):  # beyond that it is refused anyway
        status = os.stat(path)  # noqa: PTH116 — Path.stat does the same in twice the time, and this is polled
        found.append((name, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


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
