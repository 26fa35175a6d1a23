"""Pepper and signing key come from files that are their owner's alone; else it is said which file, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.core.model import Secret
from sidecar.identity import mint
from sidecar.identity.files import load_pepper, load_signing_key

LOADS: tuple[tuple[Callable[[Path], object], bytes, type], ...] = (
    (load_pepper, b"p" * 32 + b"\n", Secret),
    (load_signing_key, mint.generate_key(), mint.SigningKey),
)


@pytest.mark.parametrize(("load", "data", "kind"), LOADS)
def test_it_is_read_where_it_is_its_owners_alone(
    tmp_path: Path, load: Callable[[Path], object], data: bytes, kind: type
) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    for mode in (0o600, 0o400, 0o440):
        path.chmod(mode)
        assert isinstance(load(path), kind)
    for mode in (0o644, 0o604, 0o660, 0o666, 0o640 | 0o020):
        path.chmod(mode)
        assert f"{path}: mode {mode:04o} lets others use it" in str(load(path))


@pytest.mark.parametrize("load", [load_pepper, load_signing_key])
@pytest.mark.parametrize("data", [None, b"", b"short", b"x" * 100_000])
def test_else_it_is_said_which_and_why(tmp_path: Path, load: Callable[[Path], object], data: bytes | None) -> None:
    path = tmp_path / "key"
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o600)
    if load is load_pepper and data and len(data) > 100:
        return  # a long pepper is a pepper
    found = load(path)
    assert isinstance(found, str)
    assert str(path) in found
    assert "xxxx" not in found
