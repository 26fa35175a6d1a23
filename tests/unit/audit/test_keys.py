"""audit.keys and audit.vault: a key opens its own and nothing else, and what was destroyed opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from datetime import date
from pathlib import Path

import msgspec
import pytest

from audit.content import ContentError
from audit.keys import FileKeys, KeyAlteredError, KeyFaultError, KeyGoneError
from audit.vault import (
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


def test_a_key_file_of_another_size_is_a_fault_that_may_pass(tmp_path: Path, keys: FileKeys) -> None:
    keys.current("acme")
    (tmp_path / "keys/t-acme/1.key").write_bytes(b"short")
    with pytest.raises(KeyFaultError, match="32 bytes"):
        keys.wrap("acme", 1, b"k" * 32, b"")


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
