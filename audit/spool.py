"""Where serve leaves a policy bundle's full content for ship to store, before the journal names its digest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["drop_bundle", "read_bundle", "spool_bundle", "write_whole"]

BUNDLE_BYTES: Final = 128 * 2**20  # of one bundle: 64 MiB of files, and of each of 20,000 a header and its padding
_DIGEST: Final = re.compile(r"[A-Za-z0-9:_-]{1,128}")


def spool_bundle(directory: Path, digest: str, content: bytes | Iterable[bytes]) -> Path:
    """Keep ``content`` under the journal's ``directory`` until it is in the database; durable when this returns.

    Piece by piece where it comes in pieces, so that a large one need not be in memory whole.
    """
    path = _path(directory, digest)
    write_whole(path, _bounded((content,) if isinstance(content, bytes) else content))
    return path


def _bounded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > BUNDLE_BYTES:
            raise ValueError(f"a bundle is over {BUNDLE_BYTES} bytes")
        yield piece


def read_bundle(directory: Path, digest: str) -> bytes | None:
    """None where nothing is spooled under this digest (stored already, or never written)."""
    try:
        return _path(directory, digest).read_bytes()
    except (FileNotFoundError, ValueError):
        return None


def drop_bundle(directory: Path, digest: str) -> None:
    """Forget a bundle that the database has."""
    _path(directory, digest).unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | Iterable[bytes], *, durable: bool = True) -> None:
    """Replace ``path`` at once: a reader sees the old content or the new, never a part. One writer per path."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 — the descriptor carries the mode
            file.writelines((content,) if isinstance(content, bytes) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # raised again; whatever it was, on a full disk the part holds the last that was free
        part.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _path(directory: Path, digest: str) -> Path:
    if _DIGEST.fullmatch(digest) is None:
        raise ValueError(f"{digest!r} is not a bundle's digest")
    return directory / "bundles" / f"{digest.replace(':', '-')}.bundle"
