"""audit.spool and audit.poison: files that are whole or not there, and hold what was put in them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from audit.content import ContentSealer
from audit.poison import PoisonKeeper
from audit.spool import BUNDLE_BYTES, drop_bundle, read_bundle, spool_bundle, write_whole


def test_a_bundle_waits_until_it_is_dropped(tmp_path: Path) -> None:
    path = spool_bundle(tmp_path, "sha256:0a", b"content")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_bundle(tmp_path, "sha256:0a") == b"content"
    drop_bundle(tmp_path, "sha256:0a")
    drop_bundle(tmp_path, "sha256:0a")
    assert read_bundle(tmp_path, "sha256:0a") is None


@pytest.mark.parametrize("digest", ["../x", "", "a/b", "x" * 129, "."])
def test_a_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        spool_bundle(tmp_path, digest, b"")
    assert read_bundle(tmp_path, digest) is None


def test_a_bundle_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="over"):
        spool_bundle(tmp_path, "a", bytes(BUNDLE_BYTES + 1))


def test_writing_replaces_whole_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two", durable=False)
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_what_could_not_be_written_leaves_nothing_on_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    write_whole(path, b"one")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_poison_is_sealed_and_keeping_twice_is_keeping_once(tmp_path: Path) -> None:
    keeper = PoisonKeeper(tmp_path / "poison", ContentSealer(b"k" * 32))
    path = keeper.keep("journal/1", 7, b"secret payload", "words")
    assert keeper.keep("journal/1", 7, b"secret payload", "words") == path
    assert path.parent == tmp_path / "poison"
    assert b"secret" not in path.read_bytes()
    assert keeper.open(path) == b"secret payload"
    assert len(list(path.parent.iterdir())) == 1
