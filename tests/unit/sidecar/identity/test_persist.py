"""What is kept for an outage comes back whole, or not at all, and tells nothing to who has not its key."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from sidecar.core.model import Secret
from sidecar.identity.denials import Age, DenyList
from sidecar.identity.keyrow import KeyRow
from sidecar.identity.keytable import KeyTable
from sidecar.identity.persist import Kept, SnapshotFile
from tests.support.identity import NOW, key_row

ROOT = Secret(b"r" * 32)
ROWS = KeyTable(
    key_row(f"{n:012}", bytes([n % 256]) * 32, models=("chat",) if n % 2 else None, expires_at=NOW + n)
    for n in range(600)
)
GONE = (key_row("gone00000000", b"g" * 32, revoked_at=NOW),)
DENIED = DenyList({("i", f"{n}"): NOW + n for n in range(600)}, {"acme": (NOW, NOW + 2)})


def file_in(directory: Path, root: Secret = ROOT, context: str = "EU live") -> SnapshotFile:
    return SnapshotFile(directory / "identity.snapshot", root, context, secrets.token_bytes)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file_in(tmp_path).save(Kept(ROWS, DENIED, Age(NOW, 2.0), GONE), lambda: None)
    return tmp_path / "identity.snapshot"


def test_it_comes_back_whole(saved: Path) -> None:
    kept = file_in(saved.parent).load()
    assert kept == Kept(ROWS, DENIED, Age(NOW, 2.0), GONE)
    assert isinstance(kept.rows["000000000001"], KeyRow)


def test_nothing_there_is_nothing(tmp_path: Path) -> None:
    assert file_in(tmp_path).load() is None


def test_nobody_else_may_read_it_and_it_shows_nothing(saved: Path) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600
    data = saved.read_bytes()
    assert b"acme" not in data
    assert bytes([7]) * 32 not in data


@pytest.mark.parametrize(("mode", "good"), [(0o600, True), (0o660, True), (0o604, False), (0o666, False)])
def test_one_that_all_the_world_could_read_or_change_is_not_taken(saved: Path, mode: int, good: bool) -> None:
    """Its group may: an fsGroup makes every file of a volume 0660."""
    saved.chmod(mode)
    found = file_in(saved.parent).load()
    assert isinstance(found, Kept) if good else f"mode {mode:04o}" in str(found)
    file_in(saved.parent).save(Kept(ROWS, DENIED, Age(NOW)), lambda: None)
    assert saved.stat().st_mode & 0o777 == 0o600  # the next one is as it should be


def test_a_directory_in_its_place_is_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "identity.snapshot").mkdir()
    assert "identity.snapshot" in str(file_in(tmp_path).load())


def test_a_later_confirmation_makes_it_younger(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.confirm(Age(NOW + 5))  # of nothing: no harm
    file.save(Kept(ROWS, DENIED, Age(NOW)), lambda: None)
    file.confirm(Age(NOW + 10, 1.0))
    kept = file_in(tmp_path).load()
    assert isinstance(kept, Kept)
    assert kept.age == Age(NOW + 10, 1.0)


def test_another_snapshots_stamp_does_not_count(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.save(Kept(ROWS, DENIED, Age(NOW)), lambda: None)
    file.confirm(Age(NOW + 10))
    file.save(Kept(KeyTable(), DENIED, Age(NOW + 1)), lambda: None)
    kept = file_in(tmp_path).load()
    assert isinstance(kept, Kept)
    assert kept.age == Age(NOW + 1)


@pytest.mark.parametrize("place", [0, 9, 24, 28, 40, 600, -1, -30])
def test_one_changed_byte_spoils_it(saved: Path, place: int) -> None:
    data = bytearray(saved.read_bytes())
    data[place] ^= 1
    saved.write_bytes(data)
    assert isinstance(file_in(saved.parent).load(), str)


def test_cut_off_anywhere_it_is_no_snapshot(saved: Path) -> None:
    """Between two pieces too, where what is left would decrypt."""
    data = saved.read_bytes()
    first = 24 + 4 + int.from_bytes(data[24:28], "big")
    for end in (0, 8, 24, first, len(data) - 20):
        saved.write_bytes(data[:end])
        assert isinstance(file_in(saved.parent).load(), str), end


@pytest.mark.parametrize(("root", "context"), [(Secret(b"s" * 32), "EU live"), (ROOT, "US live"), (ROOT, "EU test")])
def test_another_key_or_place_does_not_open_it(saved: Path, root: Secret, context: str) -> None:
    found = file_in(saved.parent, root, context).load()
    assert isinstance(found, str)
    assert "another key" in found


def test_a_failed_write_leaves_the_old_one(saved: Path) -> None:
    def fails() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        file_in(saved.parent).save(Kept(ROWS, DENIED, Age(NOW + 99)), fails)
    kept = file_in(saved.parent).load()
    assert isinstance(kept, Kept)
    assert kept.age.confirmed_at == NOW
