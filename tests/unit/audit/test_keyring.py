"""audit.keyring: keys are made where none were, and never in the place of lost ones."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from audit.filekeys import FileKeys
from audit.keyring import Keyring, missing_of
from audit.keys import KeyFaultError, KeyMissingError


def keys_at(directory: Path) -> FileKeys:
    return FileKeys(directory, secrets.token_bytes)


def test_a_tenants_first_key_is_made_only_where_the_database_holds_nothing_of_it(tmp_path: Path) -> None:
    held: dict[str, list[int]] = {}
    ring = Keyring(keys_at(tmp_path), lambda tenant: held.get(tenant, []))
    assert ring.current("acme") == 1
    held["birch"] = [3, 1]
    for act in (ring.current, ring.rotate):
        with pytest.raises(KeyMissingError, match=r"t-birch: the master key of 'birch' lacks version 1,3,.*give-up"):
            act("birch")
    assert not (tmp_path / "t-birch").exists()
    held["birch"] = []
    assert ring.current("birch") == 1


def test_while_nobody_knows_what_the_database_holds_no_key_is_made(tmp_path: Path) -> None:
    def away(tenant: str) -> list[int]:
        raise KeyFaultError("the database does not answer")

    ring = Keyring(keys_at(tmp_path), away)
    with pytest.raises(KeyFaultError, match="does not answer"):
        ring.current("acme")
    assert list(tmp_path.iterdir()) == []
    keys_at(tmp_path).rotate("acme")
    assert ring.current("acme") == 1  # a tenant that has one needs nobody's word


def test_no_key_is_renewed_while_an_older_one_is_lost(tmp_path: Path) -> None:
    """Who erases would not find what lies under it."""
    keys = keys_at(tmp_path)
    keys.rotate("acme")
    keys.rotate("acme")
    ring = Keyring(keys, lambda _: [1, 2])
    (tmp_path / "t-acme/1.key").unlink()
    assert ring.current("acme") == 2
    with pytest.raises(KeyMissingError, match="version 1,"):
        ring.rotate("acme")
    ring.give_up("acme", [1])
    assert ring.rotate("acme") == 3
    assert missing_of(keys, "acme", [1, 2, 3]) == []
