"""audit.lostkeys on a real database: a lost key directory is told, nothing is sealed anew beside it, and giving it up
is an officer's act.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from audit import store, storing
from audit.keyring import Keyring, held_in
from audit.keys import KeyMissingError
from sidecar.cli.masterkeys import app
from tests.integration.audit import test_erasing as erasing
from tests.integration.audit.test_erasing import EVERYBODY, Desk, Unstored
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import check
from tests.support.postgres import query
from tests.support.store import Shipping, completed, keys_in, wait_until

desk = erasing.desk  # the fixture
GONE = "unreadable: the key it is sealed under is not here"


def run(desk: Desk, *arguments: str) -> Any:
    config = write_config(desk.directory, desk.dsn)
    return CliRunner().invoke(app, ["master-keys", *arguments, "--config", str(config)])


def states(desk: Desk) -> dict[str, Any]:
    done = run(desk, "status", "--json")
    return {each["tenant"]: each for each in map(json.loads, done.stdout.splitlines())} | {"exit": done.exit_code}


def test_records_wait_while_the_key_directory_is_not_there_and_are_stored_once_it_is_back(desk: Desk) -> None:
    directory, aside = desk.directory / "tenant-keys", desk.directory / "aside"
    directory.rename(aside)
    directory.mkdir()  # as where a volume is not mounted
    with Shipping(desk.journal, desk.dsn, desk.directory) as shipping:
        desk.journal.append(*completed(call_id="new", tenant="cobalt"), *completed(call_id="b2", subject="bob"))
        wait_until(lambda: shipping.fault or "'acme' lacks version 1" in str(shipping.shipper.status.last_error))
        assert not (directory / "t-acme").exists()
        assert shipping.shipper.status.poisoned == 0
        shutil.copytree(aside, directory, dirs_exist_ok=True)
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 2)
    assert shipping.fault is None
    assert desk.opened() == EVERYBODY | {"new": "", "b2": "bob"}


def test_a_lost_directory_is_given_up_on_record_and_then_everything_goes_on(desk: Desk) -> None:
    assert states(desk)["exit"] == 0
    done = run(desk, "give-up", "--tenant", "acme", "--versions", "1", "--reason", "by mistake")
    assert (done.exit_code, "is there" in done.output) == (1, True)
    assert desk.opened() == EVERYBODY
    shutil.rmtree(desk.directory / "tenant-keys")
    found = states(desk)
    assert (found["exit"], found["acme"]["missing"], found["acme"]["lost_keys"]) == (1, [1], 3)
    engine = store.connect(desk.dsn, application="test")
    with pytest.raises(KeyMissingError, match="give-up --tenant acme --versions 1 "):
        Keyring(keys_in(desk.directory), held_in(engine)).rotate("acme")
    engine.dispose()
    for arguments, code, words in (
        (["--versions", "1,2"], 1, "holds nothing under version 2"),
        (["--versions", "one"], 2, "write numbers"),
        (["--versions", "1"], 0, "3 data keys of acme are destroyed; 4 records"),
        (["--versions", "1"], 1, "holds nothing under version 1"),
    ):
        done = run(desk, "give-up", "--tenant", "acme", *arguments, "--reason", "the volume burnt")
        assert (done.exit_code, words in done.output) == (code, True), done.output
    found = states(desk)
    assert (found["exit"], list(found)) == (1, ["birch", "exit"])
    desk.journal.append(*completed(call_id="b2", subject="bob"))
    desk.ship(1)
    opened = desk.opened()
    assert opened["b2"] == "bob"
    assert {opened[name] for name in ("a1", "a2", "b1", "n1")} == {"erased"}
    assert opened["x1"] == GONE
    assert (desk.directory / "tenant-keys/t-acme/2.key").exists()  # no number is used twice
    events = "SELECT detail - 'login' FROM warden.audit_events WHERE kind = 'master_keys_given_up'"
    ((detail,),) = query(desk.dsn, events)
    assert detail == {"tenant": "acme", "versions": [1], "keys": 3, "records": 4}
    assert desk.erase("bob").records == 1
    assert check(desk.dsn, desk.directory / "anchor").faults == []


class _StoredLater(Unstored):
    """What it sealed is not stored when it ends."""

    def __exit__(self, *_: object) -> None:
        return


def test_an_altered_key_is_stored_as_it_is_told_in_the_log_and_counted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody destroyed it: what the officer reads must not say so. Its neighbours are stored as ever."""
    real, spoilt = storing.unwrap, []

    def altered(provider: Any, row: Any) -> Any:
        if not spoilt or row.id in spoilt:
            spoilt.append(row.id)
            row = msgspec.structs.replace(row, wrapped=row.wrapped[:-1] + bytes([row.wrapped[-1] ^ 1]))
        return real(provider, row)

    monkeypatch.setattr(storing, "unwrap", altered)
    with _StoredLater(desk, ("a5", "alice"), ("b5", "bob")):
        desk.erase("nobody")  # renews the key: the late ones are unwrapped, to be wrapped anew
    kinds = "SELECT detail FROM warden.audit_events WHERE kind = 'data_key_altered'"
    with Shipping(desk.journal, desk.dsn, desk.directory) as shipping:
        wait_until(lambda: shipping.fault or query(desk.dsn, kinds))
        assert shipping.shipper.status.poisoned == 1
    assert shipping.fault is None
    assert query(desk.dsn, kinds) == [({"data_key": spoilt[0], "tenant": "acme", "version": 1},)]
    kept = "SELECT version, wrapped IS NOT NULL, destroyed_at FROM warden.data_keys WHERE id = %s"
    assert query(desk.dsn, kept, spoilt[0]) == [(1, True, None)]
    assert set(desk.opened().values()) == {"alice", "bob", ""}
    flipped = "set_byte(wrapped, 20, 255 - get_byte(wrapped, 20))"
    query(desk.dsn, f"UPDATE warden.data_keys SET wrapped = {flipped} WHERE tenant = 'birch'")
    assert desk.opened()["x1"] == "unreadable: the key it is sealed under was altered"
