"""Whom serve and ship are for the database: their own least role where one is enrolled, else the configured one."""

from __future__ import annotations

from audit.secretfile import KeyFault, read_secret
from sidecar.runtime.settings import DatabaseSection

__all__ = ["command_dsn", "sidecar_dsn"]

_MOST = 4096  # bytes of a DSN


def sidecar_dsn(section: DatabaseSection) -> str | KeyFault:
    """The DSN in ``sidecar_dsn_file`` (`warden db enroll` writes it), or ``dsn`` where there is none."""
    path = section.sidecar_dsn_file
    if path is None:
        return section.dsn
    data = read_secret(path, _MOST)
    if isinstance(data, KeyFault):
        return data
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        return KeyFault(f"{path}: not UTF-8")
    if not text or "\n" in text or len(data) > _MOST:
        return KeyFault(f"{path}: must hold one DSN, on one line")
    return text


def command_dsn(section: DatabaseSection) -> str | KeyFault:
    """Whom commands are for the database: ``dsn``, else who is in the file, as an officer's own login is."""
    return section.dsn or sidecar_dsn(section)
