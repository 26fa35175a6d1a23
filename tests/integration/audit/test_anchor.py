"""The fleet's heads in a directory and in a real S3 bucket: what `audit verify` reads there, and what it then says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.anchor import anchored_in, head_name
from audit.objects import LocalObjects, ObjectStore
from sidecar.cli.evidence import app
from tests.integration.audit.test_search import write_config
from tests.support.evidence import Forger
from tests.support.postgres import query
from tests.support.s3 import BUCKET, S3Server
from tests.support.store import FakeJournal, Shipping, completed, wait_until

pytestmark = pytest.mark.integration


class Fleet:
    """One sidecar that keeps its fleet's heads in a store, and an officer who verifies."""

    def __init__(self, dsn: str, directory: Path, store: ObjectStore, section: dict[str, Any]) -> None:
        self.dsn, self.directory, self.store = dsn, directory, store
        self.journal = FakeJournal()
        self.config = write_config(directory, dsn)
        with self.config.open("a") as file:
            file.write(f"  anchor: {json.dumps({'objects': section})}\n")

    def ship(self) -> str:
        """One more call, and the sidecar ends; its log."""
        self.journal.append(*completed())
        with Shipping(self.journal, self.dsn, self.directory, objects=self.store) as shipping:
            status = shipping.shipper.status
            wait_until(lambda: shipping.fault or (status.rows >= 1 and status.signed_size == status.position))
        assert (shipping.fault, status.anchor_trouble) == (None, "")
        return status.log

    def verify(self, *more: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["verify", "--config", str(self.config), "--json", "--jobs", "1", *more])
        assert done.exit_code in {0, 1}, done.output
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@pytest.fixture
def mounted(dsn: str, tmp_path: Path) -> Fleet:
    (tmp_path / "heads-here").mkdir()
    return Fleet(dsn, tmp_path, LocalObjects(tmp_path / "heads-here"), {"directory": "heads-here"})


def test_heads_go_to_a_bucket_and_a_fleets_log_cut_back_is_known_by_them(
    dsn: str, tmp_path: Path, s3: S3Server
) -> None:
    place = {
        "bucket": BUCKET,
        "prefix": tmp_path.name,
        "endpoint": s3.endpoint,
        "credentials_file": str(s3.credentials),
    }
    fleet = Fleet(dsn, tmp_path, s3.objects(tmp_path.name), {"s3": place})
    log = fleet.ship()
    told = fleet.verify()
    (head, *_) = anchored_in(fleet.store)
    assert (told["ok"], told["anchored"], told["anchored_size"]) == (True, True, head.size)
    assert query(dsn, "SELECT count(*) FROM warden.fleet_entries") == [(head.size,)]
    Forger(dsn, log).drop_log(fleet=True)
    told = fleet.verify()
    assert (told["ok"], told["anchored"]) == (False, False)
    assert "truncated_tail" in {fault["kind"] for fault in told["faults"]}


def test_an_anchor_that_is_away_or_empty_is_not_said_to_back_anything(mounted: Fleet) -> None:
    mounted.ship()
    heads = mounted.directory / "heads-here"
    assert mounted.verify()["anchored"]
    heads.rename(mounted.directory / "away")
    done = CliRunner().invoke(app, ["verify", "--config", str(mounted.config)])
    assert (done.exit_code, "audit.anchor.objects" in done.output) == (3, True)
    assert mounted.verify("--anchor", str(mounted.directory / "away"))["anchored"]  # a copy of it
    heads.mkdir()
    told = mounted.verify()
    assert (told["anchored"], told["anchored_size"]) == (False, 0)


def test_an_anchor_put_back_is_named_by_verify_and_in_the_log(mounted: Fleet, dsn: str) -> None:
    mounted.ship()
    old = {each.size for each in anchored_in(mounted.store)}
    mounted.ship()  # tells, in the fleet's log, what was anchored before
    told = mounted.verify()
    assert (told["faults"], told["anchored"]) == ([], True)
    for each in anchored_in(mounted.store):
        mounted.store.delete(head_name(each.size))
    told = mounted.verify()
    assert ([fault["kind"] for fault in told["faults"]], told["anchored"]) == (["anchor_rolled_back"], False)
    assert told["faults"][0]["position"] >= max(old)
    mounted.ship()
    assert query(dsn, "SELECT count(*) FROM warden.audit_events WHERE kind = 'anchor_rolled_back'") == [(1,)]
    told = mounted.verify()
    assert (told["faults"], told["anchored"]) == ([], True)


def test_a_head_that_was_altered_in_the_store_is_named(mounted: Fleet) -> None:
    mounted.ship()
    (head, *_) = anchored_in(mounted.store)
    mounted.store.put(head_name(head.size), head.note.replace(str(head.size), str(head.size + 1), 1).encode())
    told = mounted.verify()
    assert "replaced_checkpoint" in {fault["kind"] for fault in told["faults"]}
    assert not told["anchored"]


def test_a_mount_that_is_not_there_holds_up_no_record(mounted: Fleet) -> None:
    gone = mounted.directory / "gone"
    gone.mkdir()
    store = LocalObjects(gone)
    gone.rmdir()
    mounted.journal.append(*completed())
    with Shipping(mounted.journal, mounted.dsn, mounted.directory, objects=store) as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or (status.rows == 1 and status.anchor_trouble))
    assert shipping.fault is None
    assert "No such file" in str(status.anchor_trouble)
