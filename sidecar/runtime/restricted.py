"""The secret that Triton asks every RPC for, read from where warden.yaml says it is (``triton.restricted_secret``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sidecar.core.model import Secret
from sidecar.runtime.settings import RestrictedSection
from sidecar.transports.upstream import Restricted

__all__ = ["load"]

LENGTH_MAX: Final = 1024  # bytes; a header's value, and the rest of the headers must fit beside it
LENGTH_MIN: Final = 16
_VALUE: Final = re.compile(rb"[\x21-\x7e]+")  # what a header can carry as it is; Triton compares byte for byte


def load(section: RestrictedSection | None, environment: Mapping[str, str]) -> Restricted | str | None:
    """The header and its secret; a text: why it can't be had, without the secret in it. None: none is configured."""
    if section is None:
        return None
    found = _from_file(section) if section.file is not None else _from_environment(section, environment)
    if isinstance(found, str):
        return f"triton.restricted_secret: {found}"
    if not LENGTH_MIN <= len(found) <= LENGTH_MAX or _VALUE.fullmatch(found) is None:
        return (
            f"triton.restricted_secret: {section.file or section.env} must hold {LENGTH_MIN} to {LENGTH_MAX} printable "
            "ASCII characters without spaces"
        )
    return Restricted(section.key, Secret(found))


def _from_file(section: RestrictedSection) -> bytes | str:
    assert section.file is not None
    try:
        with section.file.open("rb") as file:
            return file.read(LENGTH_MAX + 2).rstrip(b"\r\n")
    except OSError as fault:
        return f"{section.file}: {fault.strerror}"


def _from_environment(section: RestrictedSection, environment: Mapping[str, str]) -> bytes | str:
    assert section.env is not None
    value = environment.get(section.env)
    return f"the environment has no {section.env}" if value is None else value.encode("utf-8", "surrogateescape")
