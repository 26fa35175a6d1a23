"""The journal's root keys as the configuration says, and what of the journal is under which."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from audit.follow import read_shipped
from audit.rootkeys import RootKeys
from audit.seal import KeyFault, key_id, load_root_key
from audit.segments import read_info, segments_in
from sidecar.core.model import Secret
from sidecar.runtime.settings import JournalSection

__all__ = ["Sealed", "first_id", "problems", "root_keys", "sealed_in", "strict_root_keys"]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment, the id of the root key that it is under (b"": its header can't be read), and whether all of it is
    stored.
    """

    name: str
    root: bytes
    shipped: bool


def root_keys(section: JournalSection, key_file: Path | None = None) -> RootKeys | KeyFault:
    """``key_file``: another first one. What is wrong with those in the directory is told where one is needed."""
    first = load_root_key(key_file or section.key_file, apart_from=section.directory)
    return RootKeys(first, section.keys_directory) if isinstance(first, Secret) else first


def strict_root_keys(section: JournalSection) -> RootKeys | KeyFault:
    """For who writes: the key that is named as in use must be there. A fault begins with the section's key."""
    directory = section.keys_directory
    if directory is not None and directory.resolve().is_relative_to(section.directory.resolve()):
        words = f"lies in {section.directory}, beside what its keys seal; put it on another volume"
        return KeyFault(f"keys_directory: {directory}: {words}")
    keys = root_keys(section)
    if isinstance(keys, KeyFault):
        return KeyFault(f"key_file: {keys.detail}")
    fault = keys.fault()
    return keys if fault is None else KeyFault(f"keys_directory: {fault.detail}")


def sealed_in(directory: Path) -> list[Sealed]:
    """The journal's segments, oldest first. Raises OSError."""
    if not directory.exists():
        return []
    found, shipped = segments_in(directory), read_shipped(directory)
    sealed = []
    for place, (_, path) in enumerate(found):
        following = found[place + 1][0] if place + 1 < len(found) else None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # released between the two looks
        try:
            header = read_info(descriptor)
        finally:
            os.close(descriptor)
        stored = following is not None and following - 1 <= shipped
        sealed.append(Sealed(path.name, b"" if header is None else header[0].root, stored))
    return sealed


def problems(section: JournalSection, keys: RootKeys) -> list[str]:
    """What of the journal cannot be shipped for want of its root key. Raises OSError where it can't be read."""
    sealed = [each for each in sealed_in(section.directory) if each.root and not each.shipped]
    told = []
    for identity in keys.missing(each.root for each in sealed):
        names = [each.name for each in sealed if each.root == identity]
        told.append(
            f"root key {identity.hex()} is missing: {names[0]} and {len(names) - 1} more segments are under it, with"
            f" records that are not stored yet; put it back until they are (warden journal keys). {keys.where}"
        )
    return told


def first_id(section: JournalSection) -> bytes | None:
    """Of the key file's; None where it can't be read."""
    first = load_root_key(section.key_file)
    return key_id(first) if isinstance(first, Secret) else None
