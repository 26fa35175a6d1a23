"""audit.seal: what opens only with the right key, segment and index; key files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from audit.seal import KeyFault, Sealer, create_key_file, key_id, load_root_key, same_volume, unwrap, wrap
from sidecar.core.model import Secret

ROOT = Secret(b"r" * 32)


def test_a_frame_opens_under_its_own_key_segment_and_index_only() -> None:
    sealed = Sealer(b"k" * 32, b"s" * 16).seal(7, b"entry")
    assert Sealer(b"k" * 32, b"s" * 16).open(7, sealed) == b"entry"
    assert Sealer(b"x" * 32, b"s" * 16).open(7, sealed) is None
    assert Sealer(b"k" * 32, b"x" * 16).open(7, sealed) is None
    assert Sealer(b"k" * 32, b"s" * 16).open(8, sealed) is None
    assert Sealer(b"k" * 32, b"s" * 16).open(7, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None


def test_a_wrapped_key_is_bound_to_root_and_context() -> None:
    wrapped = wrap(ROOT, b"k" * 32, b"context", os.urandom)
    assert unwrap(ROOT, wrapped, b"context") == b"k" * 32
    assert unwrap(ROOT, wrapped, b"other") is None
    assert unwrap(Secret(b"x" * 32), wrapped, b"context") is None
    assert unwrap(ROOT, wrapped[:-1], b"context") is None
    assert unwrap(ROOT, b"", b"context") is None


def test_a_key_file_is_made_once_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    made, read = create_key_file(path, os.urandom), load_root_key(path)
    assert isinstance(made, Secret)
    assert isinstance(read, Secret)
    assert made.reveal() == read.reveal()
    assert path.stat().st_mode & 0o777 == 0o600
    again = create_key_file(path, os.urandom)
    assert isinstance(again, KeyFault)
    assert str(path) in again.detail
    assert same_volume(path, tmp_path)
    assert key_id(made) != key_id(ROOT)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666, 0o601])
def test_a_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(b"k" * 32)
    path.chmod(mode)
    fault = load_root_key(path)
    assert isinstance(fault, KeyFault)
    assert str(path) in fault.detail
    assert f"{mode:04o}" in fault.detail


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_owner_and_group_may_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(b"k" * 32)
    path.chmod(mode)
    assert isinstance(load_root_key(path), Secret)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(b"k" * size)
    path.chmod(0o600)
    fault = load_root_key(path)
    assert isinstance(fault, KeyFault)
    assert str(path) in fault.detail


def test_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        fault = load_root_key(path)
        assert isinstance(fault, KeyFault)
        assert str(path) in fault.detail


def test_a_key_inside_the_journals_directory_is_refused(tmp_path: Path) -> None:
    inside, beside = tmp_path / "journal" / "root.key", tmp_path / "root.key"
    inside.parent.mkdir()
    for path in (inside, beside):
        create_key_file(path, os.urandom)
    fault = load_root_key(inside, apart_from=tmp_path / "journal")
    assert isinstance(fault, KeyFault)
    assert str(inside) in fault.detail
    assert isinstance(load_root_key(beside, apart_from=tmp_path / "journal"), Secret)
