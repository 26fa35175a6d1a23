"""Reads what identity keeps in files of its own: the pepper of API keys, and the key that signs tokens."""

from __future__ import annotations

from pathlib import Path

from audit.secretfile import KeyFault, read_secret
from sidecar.core.model import Secret
from sidecar.identity import mint
from sidecar.identity.keys import read_pepper


def load_pepper(path: Path) -> Secret | str:
    """The pepper, or in words why there is none: absent, open to others, too short."""
    data = read_secret(path)
    if isinstance(data, KeyFault):
        return data.detail
    pepper = read_pepper(data)
    return f"key file {path}: {pepper}" if isinstance(pepper, str) else pepper


def load_signing_key(path: Path) -> mint.SigningKey | str:
    """The signing key, or in words why there is none: absent, open to others, of no use."""
    data = read_secret(path)
    if isinstance(data, KeyFault):
        return data.detail
    key = mint.load_key(data)
    return f"key file {path}: {key}" if isinstance(key, str) else key
