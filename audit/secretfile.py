"""Reads a secret from a file that is its reader's alone."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_SECRET: Final = 64 * 1024  # bytes; no key, pepper or PEM comes near it
# Group may read: Kubernetes mounts a secret 0440 where the pod has an fsGroup. Nobody else may do anything.
FORBIDDEN_MODE: Final = 0o037


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Why a key file can't be used; ``detail`` names the file."""

    detail: str


def read_secret(path: Path, most: int = MAX_SECRET) -> bytes | KeyFault:
    """At most ``most`` bytes and one more of ``path``: a regular file that others can neither read nor change."""
    try:
        with path.open("rb") as file:
            exposed = _exposed(path, os.fstat(file.fileno()).st_mode)
            return exposed or file.read(most + 1)
    except OSError as fault:
        return KeyFault(f"key file {path}: {fault.strerror}")


def exposed(path: Path) -> KeyFault | None:
    """Why ``path``, which some library reads by itself, is no place for a secret; None where it is one."""
    try:
        return _exposed(path, path.stat().st_mode)
    except OSError as fault:
        return KeyFault(f"key file {path}: {fault.strerror}")


def _exposed(path: Path, mode: int) -> KeyFault | None:
    if not stat.S_ISREG(mode):
        return KeyFault(f"key file {path}: not a regular file")
    if mode & FORBIDDEN_MODE:
        cure = "chmod 0600 it (in Kubernetes: defaultMode 0440 with an fsGroup)"
        return KeyFault(f"key file {path}: mode {stat.S_IMODE(mode):04o} lets others use it; {cure}")
    return None
