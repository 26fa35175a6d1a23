"""audit.keys and audit.vault: a key opens its own and nothing else, and what was destroyed opens nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from audit.content import ContentError
from audit.filekeys import FileKeys
from audit.keys import KeyAlteredError, KeyFaultError, KeyGoneError, Survivors
from audit.vault import (
    Opened,
    Vault,
    commitment,
    lookup,
    open_column,
    open_content,
    open_subject,
    record_key,
    unwrap,
)

DAY = date(2026, 11, 30)
PLACE = {"tenant": "acme", "days": 30, "day": DAY, "subject": "patient 7"}


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return FileKeys(tmp_path / "keys", secrets.token_bytes)


@pytest.mark.parametrize("tenant", ["acme", "", "../acme", "é" * 200, "a/b", "\ud800"])
def test_every_tenant_has_its_own_keys_in_the_directory(tmp_path: Path, keys: FileKeys, tenant: str) -> None:
    assert keys.versions(tenant) == []
    assert keys.current(tenant) == keys.current(tenant) == 1
    wrapped = keys.wrap(tenant, 1, b"k" * 32, b"here")
    assert keys.unwrap(tenant, 1, wrapped, b"here") == b"k" * 32
    with pytest.raises(KeyAlteredError):
        keys.unwrap(tenant, 1, wrapped, b"there")
    keys.current("other")
    with pytest.raises(KeyAlteredError):
        keys.unwrap("other", 1, wrapped, b"here")
    (folder,) = [path for path in (tmp_path / "keys").iterdir() if path.name != "t-other"]
    (file,) = folder.iterdir()
    assert file.name == "1.key"
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_was_destroyed_unwraps_no_more_and_its_number_never_comes_back(tmp_path: Path, keys: FileKeys) -> None:
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"")
    second = keys.rotate("acme")
    kept = keys.wrap("acme", second, b"s" * 32, b"")
    other = FileKeys(tmp_path / "keys", secrets.token_bytes)  # another process, which remembers the key
    assert other.unwrap("acme", 1, wrapped, b"") == b"k" * 32
    keys.destroy("acme", 1, {"id-1": (second, kept)})
    for process in (keys, other):
        with pytest.raises(KeyGoneError):
            process.unwrap("acme", 1, wrapped, b"")
        assert process.survivor("acme", "id-1") == (second, kept)
        assert process.survivor("acme", "id-2") is None
        assert process.destroyed("acme", 1)
        assert not process.destroyed("acme", 2)
    keys.destroy("acme", 1, {})  # twice: nothing more happens
    keys.destroy("acme", 2, {})
    assert keys.rotate("acme") == 3


def test_a_destruction_that_breaks_off_anywhere_can_be_done_again_and_is_never_told_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant: a version is called destroyed only when its key's bytes are gone, and then it opens nothing."""
    for step in range(40):
        keys = FileKeys(tmp_path / f"keys-{step}", secrets.token_bytes)
        wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"")
        file = tmp_path / f"keys-{step}/t-acme/1.key"
        key = file.read_bytes()
        second = keys.rotate("acme")
        kept = keys.wrap("acme", second, b"s" * 32, b"")
        left = iter([*[True] * step, False])

        def broken_off(name: str, real: Any, left: Any = left) -> Any:
            def act(*arguments: Any, **options: Any) -> Any:
                if not next(left, True):
                    raise OSError(5, f"broken off at {name}")
                return real(*arguments, **options)

            return act

        with monkeypatch.context() as patch:
            for owner, name in ((os, "fsync"), (Path, "unlink"), (Path, "replace")):
                patch.setattr(owner, name, broken_off(name, getattr(owner, name)))
            try:
                keys.destroy("acme", 1, {"id-1": (second, kept)})
                whole = True
            except KeyFaultError:
                whole = False
        after = FileKeys(tmp_path / f"keys-{step}", secrets.token_bytes)
        there = file.exists() and file.read_bytes() == key
        assert after.destroyed("acme", 1) <= (not file.exists())
        assert after.versions("acme") == ([1, 2] if file.exists() else [2])
        assert (after.current("acme"), after.rotate("acme")) == (2, 3)
        if not there:
            with pytest.raises(KeyGoneError):
                after.unwrap("acme", 1, wrapped, b"")
        after.destroy("acme", 1, {"id-1": (second, kept)})
        assert (after.destroyed("acme", 1), after.versions("acme")) == (True, [2, 3])
        assert after.survivor("acme", "id-1") == (second, kept)
        if whole:
            assert step > 5
            return
    pytest.fail("no destruction came to its end")


def test_a_key_that_comes_back_with_a_copy_of_the_directory_opens_nothing_and_goes_with_the_next_destruction(
    tmp_path: Path, keys: FileKeys
) -> None:
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"")
    file = tmp_path / "keys/t-acme/1.key"
    copy = file.read_bytes()
    keys.rotate("acme")
    keys.destroy("acme", 1, {})
    file.write_bytes(copy)
    with pytest.raises(KeyGoneError, match="was destroyed"):
        keys.unwrap("acme", 1, wrapped, b"")
    assert (keys.versions("acme"), keys.current("acme"), keys.destroyed("acme", 1)) == ([1, 2], 2, False)
    keys.destroy("acme", 1, {})
    assert (keys.versions("acme"), keys.destroyed("acme", 1)) == ([2], True)


def test_versions_are_given_up_one_by_one_and_their_numbers_never_come_back(tmp_path: Path, keys: FileKeys) -> None:
    keys.current("acme")
    for _ in range(3):
        keys.rotate("acme")
    (tmp_path / "keys/t-acme/2.key").unlink()
    keys.give_up("acme", [2, 6])
    assert [keys.destroyed("acme", version) for version in range(1, 8)] == [
        False, True, False, False, False, True, False,
    ]  # fmt: skip
    assert keys.rotate("acme") == 7
    keys.destroy("acme", 4, {})
    assert [version for version in range(1, 9) if keys.destroyed("acme", version)] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("text", ["", "two", "1 x"])
def test_a_mark_that_says_nothing_is_a_fault(tmp_path: Path, keys: FileKeys, text: str) -> None:
    """Else a number might be used again, or a destroyed key open."""
    keys.current("acme")
    (tmp_path / "keys/t-acme/destroyed").write_text(text)
    with pytest.raises(KeyFaultError, match="destroyed"):
        keys.current("acme")


def test_an_altered_key_is_told_from_one_that_was_destroyed(keys: FileKeys) -> None:
    vault = Vault(keys, secrets.token_bytes)
    vault.sealer(**PLACE, call_id="c1")
    (row,) = vault.made(list(vault._made))
    assert row.wrapped is not None
    altered = msgspec.structs.replace(row, wrapped=row.wrapped[:-1] + bytes([row.wrapped[-1] ^ 1]))
    assert unwrap(keys, altered) == Opened(None, altered=True)
    keys.rotate("acme")
    secret = unwrap(keys, row).secret
    assert secret is not None
    keys.destroy("acme", 1, {row.id: (2, keys.wrap("acme", 2, secret, row.context))})
    assert unwrap(keys, altered).secret == secret  # kept aside, whatever became of the database's


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 33])
def test_a_key_file_of_another_size_is_a_fault_that_may_pass(tmp_path: Path, keys: FileKeys, data: bytes) -> None:
    """A file that a power failure emptied was not destroyed by anybody."""
    keys.current("acme")
    (tmp_path / "keys/t-acme/1.key").write_bytes(data)
    for act in (lambda: keys.wrap("acme", 1, b"k" * 32, b""), lambda: keys.covers("acme")):
        with pytest.raises(KeyFaultError, match=r"1\.key"):
            act()


def test_a_directory_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"a file")
    with pytest.raises(KeyFaultError):
        FileKeys(tmp_path / "keys", secrets.token_bytes).current("acme")


def test_one_data_key_for_a_subject_and_day_and_another_for_everything_else(keys: FileKeys) -> None:
    vault = Vault(keys, secrets.token_bytes)
    one = vault.sealer(**PLACE, call_id="c1").data_key
    assert vault.sealer(**PLACE, call_id="c2").data_key == one
    for change in (
        {"subject": ""},
        {"subject": "patient 8"},
        {"tenant": "birch"},
        {"days": 31},
        {"day": date(2026, 12, 1)},
    ):
        assert vault.sealer(**PLACE | change, call_id="c1").data_key != one
    (row,) = vault.made([one, one, "unknown"])
    secret = unwrap(keys, row).secret
    assert secret is not None
    assert open_subject(secret, row) == b"patient 7"
    vault.stored([row])
    assert vault.made([one]) == []
    assert vault.sealer(**PLACE, call_id="c1").data_key == one


def test_a_record_key_opens_its_record_and_no_other(keys: FileKeys) -> None:
    vault = Vault(keys, secrets.token_bytes)
    sealer, other = vault.sealer(**PLACE, call_id="c1"), vault.sealer(**PLACE, call_id="c2")
    digest = hashlib.sha256(b"text").digest()
    sealed, told = sealer.content("prompt", digest, [b"te", b"xt"])
    (row,) = vault.made([sealer.data_key])
    secret = unwrap(keys, row).secret
    assert secret is not None
    key = record_key(secret, row.id, "acme", "c1")
    salt, parts = open_content(key, "prompt", sealed)
    assert parts == [b"te", b"xt"]
    assert told == commitment(salt, digest) != other.content("prompt", digest, [b"te", b"xt"])[1]
    for wrong, column in (
        (record_key(secret, row.id, "acme", "c2"), "prompt"),
        (record_key(secret, row.id, "birch", "c1"), "prompt"),
        (record_key(secret, "another", "acme", "c1"), "prompt"),
        (key, "output"),
    ):
        with pytest.raises(ContentError):
            open_column(wrong, column, sealed)
    for altered in (sealed[:-1] + bytes([sealed[-1] ^ 1]), sealed[:5], b"", b"\x01" + sealed[1:]):
        with pytest.raises(ContentError):
            open_column(key, "prompt", altered)
    assert sealer.lookup("conversation", "k") == lookup(secret, "conversation", "k") != lookup(secret, "other", "k")


def test_a_key_that_was_destroyed_is_told_from_one_that_is_not_here(tmp_path: Path, keys: FileKeys) -> None:
    vault = Vault(keys, secrets.token_bytes)
    vault.sealer(**PLACE, call_id="c1")
    (row,) = vault.made(list(vault._made))
    elsewhere = FileKeys(tmp_path / "elsewhere", secrets.token_bytes)
    assert not unwrap(elsewhere, row).destroyed
    assert unwrap(elsewhere, row).secret is None
    keys.rotate("acme")
    keys.destroy("acme", 1, {})
    assert unwrap(keys, row).destroyed
    assert unwrap(keys, msgspec.structs.replace(row, wrapped=None)).destroyed


def test_no_part_of_a_key_that_could_not_be_made_is_left(
    tmp_path: Path, keys: FileKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a volume that knows no hard links."""

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(KeyFaultError, match="t-acme: Operation not permitted"):
        keys.current("acme")
    assert list((tmp_path / "keys/t-acme").iterdir()) == []


def test_survivors_that_were_written_anew_within_one_tick_of_the_clock_are_found(tmp_path: Path) -> None:
    survivors, file = Survivors(tmp_path), tmp_path / "t-acme/survivors"
    for version in (1, 2):
        survivors.keep("acme", version, {"k": (version, b"wrapped")})
        os.utime(file, ns=(7, 7))
        assert survivors.find("acme", "k") == (version, b"wrapped")
