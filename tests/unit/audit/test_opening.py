"""audit.opening: a record opens under its own data key; what was erased and what is merely not here are told apart."""

from __future__ import annotations

import secrets
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import sqlalchemy as sa

from audit.assemble import CallRecord
from audit.filekeys import FileKeys
from audit.opening import ERASED, NO_KEY, Opener, day_range, key_row
from audit.rows import CALL_COLUMNS, call_row
from audit.vault import KeyRow, Vault, commitment
from tests.support.store import PLACE, content, facts, settled

SEALED = ("identity_sealed", "prompt_sealed", "output_sealed", "error_sealed")


class Rows:
    """A connection that answers every query with these keys."""

    def __init__(self, *keys: KeyRow) -> None:
        self.keys, self.asked = keys, 0

    def execute(self, _: object) -> list[tuple[Any, ...]]:
        self.asked += 1
        return [cast("tuple[Any, ...]", msgspec.structs.astuple(key)) for key in self.keys]


def load(opener: Opener, rows: Rows, key_id: str) -> None:
    opener.load(cast("sa.Connection", rows), [key_id])


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return FileKeys(tmp_path / "keys", secrets.token_bytes)


def stored(keys: FileKeys) -> tuple[dict[str, Any], KeyRow]:
    call = facts(tenant="acme", subject="patient 7", prompt=content(b"a question"))
    record = CallRecord(PLACE, 0, 1, call, settled(call, b"an answer"), [b"an answer"])
    vault = Vault(keys, secrets.token_bytes)
    row = dict(zip(CALL_COLUMNS, call_row(record, vault, "log", 0)[0].values, strict=True))
    (key,) = vault.made([row["data_key"]])
    return row, key


def test_a_record_opens_with_its_key_and_its_salt_proves_the_text(keys: FileKeys) -> None:
    row, key = stored(keys)
    opener, rows = Opener(keys), Rows(key)
    load(opener, rows, key.id)
    found = opener.open(row, content=True)
    assert (found.prompt, found.output, found.error, found.why) == ([b"a question"], [b"an answer"], None, "")
    assert found.identity is not None
    assert found.identity.subject == "patient 7"
    assert commitment(found.salts["output"], settled(facts(), b"an answer").output_sha256) == row["output_digest"]
    bare = opener.open(row, content=False)
    assert (bare.identity, bare.prompt, bare.output) == (found.identity, None, None)
    load(opener, rows, key.id)
    assert rows.asked == 1  # it was unwrapped once


def test_erased_and_not_here_are_two_things(keys: FileKeys, tmp_path: Path) -> None:
    row, key = stored(keys)
    gone, elsewhere = Opener(keys), Opener(FileKeys(tmp_path / "others", secrets.token_bytes))
    load(gone, Rows(msgspec.structs.replace(key, wrapped=None)), key.id)
    load(elsewhere, Rows(key), key.id)
    assert gone.open(row, content=True).why == ERASED
    assert elsewhere.open(row, content=True).why == NO_KEY
    assert Opener(keys).open(row, content=True).why == NO_KEY  # never loaded
    assert gone.record_key(row) is None


@pytest.mark.parametrize("column", SEALED[:3])
def test_altered_bytes_are_told_and_nothing_of_them_is_shown(keys: FileKeys, column: str) -> None:
    row, key = stored(keys)
    opener = Opener(keys)
    load(opener, Rows(key), key.id)
    row[column] = row[column][:-1] + bytes([row[column][-1] ^ 1])
    found = opener.open(row, content=True)
    assert found.why.startswith("unreadable: altered")
    assert (found.identity, found.prompt, found.output) == (None, None, None)


def test_a_name_looks_different_under_each_master_key_and_for_each_tenant(keys: FileKeys) -> None:
    opener = Opener(keys)
    keys.current("acme")
    before = opener.pseudonym("acme", "patient 7")
    assert before == opener.pseudonym("acme", "patient 7") == opener.macs("acme", "patient 7")[0].hex()
    keys.rotate("acme")
    assert len(set(opener.macs("acme", "patient 7"))) == 2
    assert opener.pseudonym("acme", "patient 7") not in {before, opener.pseudonym("other", "patient 7")}


def test_a_key_is_read_back_as_it_was_whatever_the_driver_gives(keys: FileKeys) -> None:
    _, key = stored(keys)
    raw = [memoryview(value) if isinstance(value, bytes) else value for value in msgspec.structs.astuple(key)]
    assert key_row(raw) == key


def test_days_are_of_utc() -> None:
    east = timezone(timedelta(hours=9))
    assert day_range(datetime(2026, 11, 30, 3, tzinfo=east), None) == (date(2026, 11, 29), None)
    assert day_range(None, datetime(2026, 11, 30, tzinfo=UTC)) == (None, date(2026, 11, 30))
