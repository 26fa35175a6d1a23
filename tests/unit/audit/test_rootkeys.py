"""audit.rootkeys: a new root key is taken with the next segment; an old one is needed until no segment is under it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from audit.follow import Follower
from audit.journal import Journal
from audit.rootkeys import CURRENT, NewRootKey, RootKeys, new_root_key
from audit.seal import KeyFault, key_id
from audit.segments import FaultKind, JournalFault, read_info, segments_in
from sidecar.core.model import Secret
from tests.support.journal import ORIGIN, ROOT, SMALL, crash, wall_ns


def opened(directory: Path, root: RootKeys) -> Journal | JournalFault:
    return Journal.open(directory / "journal", root, ORIGIN, SMALL, random=os.urandom, wall_ns=wall_ns, monotonic=None)


def made(directory: Path) -> NewRootKey:
    found = new_root_key(directory, secrets.token_bytes)
    assert isinstance(found, NewRootKey)
    return found


def roots(directory: Path) -> list[bytes]:
    """Of the journal's segments, oldest first."""
    found = []
    for _, path in segments_in(directory / "journal"):
        descriptor = os.open(path, os.O_RDONLY)
        header = read_info(descriptor)
        os.close(descriptor)
        assert header is not None
        found.append(header[0].root)
    return found


def read(directory: Path, root: RootKeys) -> list[bytes]:
    follower = Follower(directory / "journal", root)
    try:
        return [data for _, data, _ in follower]
    finally:
        follower.close()


def test_a_rotation_needs_no_restart_and_each_segment_opens_with_its_own_key(tmp_path: Path) -> None:
    """Invariant: what was written before, between and after two rotations is read back, by writer and reader."""
    directory = tmp_path / "keys"
    journal = opened(tmp_path, RootKeys(ROOT, directory))
    assert isinstance(journal, Journal)
    reader = Follower(tmp_path / "journal", RootKeys(ROOT, directory))
    ids, written = [key_id(ROOT)], []
    for _ in range(3):
        for _ in range(12):  # several segments each
            entry = secrets.token_bytes(200)
            written.append(entry)
            assert isinstance(journal.append(entry), int)
        assert [data for _, data, _ in reader.read(100)] == written[-12:]
        ids.append(made(directory).identity)
    reader.close()
    found = roots(tmp_path)
    assert list(dict.fromkeys(found)) == ids[:3]
    crash(journal)
    again = opened(tmp_path, RootKeys(ROOT, directory))  # torn tail, open calls: recovery reads the newest with its key
    assert isinstance(again, Journal)
    assert isinstance(again.append(b"last"), int)
    assert roots(tmp_path)[-1] == ids[3]
    assert again.close() is None
    assert read(tmp_path, RootKeys(ROOT, directory)) == [*written, b"last"]


def test_a_key_that_was_removed_too_early_is_named_and_nothing_is_skipped_or_changed(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    old = made(directory)
    journal = opened(tmp_path, RootKeys(ROOT, directory))
    assert isinstance(journal, Journal)
    assert isinstance(journal.append(b"under the old one"), int)
    assert journal.close() is None
    made(directory)
    aside = old.path.rename(tmp_path / "aside")
    roots_here = RootKeys(ROOT, directory)
    assert roots_here.missing(roots(tmp_path)) == [old.identity]
    fault = opened(tmp_path, roots_here)
    assert isinstance(fault, JournalFault)
    assert fault.kind is FaultKind.KEY
    assert f"sealed under root key {old.identity.hex()}, but the key file is {key_id(ROOT).hex()}" in fault.detail
    assert str(directory) in fault.detail
    follower = Follower(tmp_path / "journal", roots_here)
    assert list(follower) == []
    assert [each.kind for each in follower.faults] == [FaultKind.KEY]
    aside.rename(old.path)
    follower.seek(0)
    assert [data for _, data, _ in follower] == [b"under the old one"]  # as soon as it is back, without a restart
    follower.close()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda keys, new: new.path.unlink(), "No such file"),
        (lambda keys, new: new.path.write_bytes(b"z" * 32), "holds another key"),
        (lambda keys, new: new.path.chmod(0o644), "lets others use it"),
        (lambda keys, new: (keys / CURRENT).write_text("../../etc/passwd"), "names no root key"),
        (lambda keys, new: (keys / CURRENT).write_text(""), "names no root key"),
        (lambda keys, new: (keys / CURRENT).write_bytes(b"\xff"), "current"),
    ],
)
def test_what_cannot_be_used_is_named_and_a_running_sidecar_goes_on_with_what_it_has(
    tmp_path: Path, spoil: object, told: str
) -> None:
    roots = RootKeys(ROOT, tmp_path / "keys")
    first = made(tmp_path / "keys")
    assert key_id(roots.current()) == first.identity
    new = made(tmp_path / "keys")
    spoil(tmp_path / "keys", new)  # type: ignore[operator]
    fault = roots.fault()
    assert isinstance(fault, KeyFault)
    assert told in fault.detail
    assert key_id(roots.current()) == first.identity
    assert isinstance(RootKeys(ROOT, tmp_path / "keys").fault(), KeyFault)


def test_without_a_directory_or_with_an_empty_one_it_is_the_key_files(tmp_path: Path) -> None:
    for roots in (RootKeys(ROOT), RootKeys(ROOT, tmp_path), RootKeys(ROOT, tmp_path / "absent")):
        assert (roots.current(), roots.fault(), roots.ids()) == (ROOT, None, [key_id(ROOT)])
        assert roots.find(b"12345678") is None


def test_a_key_is_made_whole_private_and_never_over_another(tmp_path: Path) -> None:
    (tmp_path / ".new.key").write_bytes(b"a half")  # a rotation that broke off
    one, two = made(tmp_path), made(tmp_path)
    assert one.identity != two.identity
    assert (tmp_path / CURRENT).read_text().strip() == two.identity.hex()
    for each in (one, two):
        assert (each.path.stat().st_mode & 0o777, each.path.stat().st_size) == (0o600, 32)
        assert each.path.name == f"{each.identity.hex()}.key"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CURRENT, one.path.name, two.path.name])
    (tmp_path / "file").write_bytes(b"")
    assert isinstance(new_root_key(tmp_path / "file", secrets.token_bytes), KeyFault)
    found = RootKeys(ROOT, tmp_path).find(one.identity)
    assert isinstance(found, Secret)
    assert key_id(found) == one.identity
