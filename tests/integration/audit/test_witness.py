"""audit.witness against a real one: the fleet's heads are cosigned, and no witness signs a log that was cut back."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.verify import Options, Report, verify
from audit.witness import Witness
from sidecar.cli.evidence import app
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import keys
from tests.support.evidence import Forger
from tests.support.postgres import query
from tests.support.store import FakeJournal, Shipping, completed, wait_until
from tests.support.witness import WitnessServer, serving


@pytest.fixture
def witness() -> Iterator[tuple[WitnessServer, Witness]]:
    with serving(keys("fleet")) as made:
        yield made


def cosigned(dsn: str) -> int:
    """The largest head that the witness has signed and the database has."""
    notes = query(dsn, "SELECT size, note FROM warden.audit_checkpoints WHERE log = 'fleet'")
    return max((size for size, note in notes if "witness.example" in note), default=0)


def ship(
    dsn: str, directory: Path, journal: FakeJournal, witness: Witness, until: Callable[[], bool] | None = None
) -> None:
    """One more call, ``until`` something holds: that a head of the fleet's log with it is cosigned.

    Where it isn't, the sidecar says why.
    """
    before = cosigned(dsn)
    holds = until or (lambda: cosigned(dsn) > before)
    journal.append(*completed())
    with Shipping(journal, dsn, directory, witnesses=[witness]) as shipping:
        wait_until(lambda: shipping.fault or (shipping.shipper.status.rows == 1 and holds()))
        if until is not None:
            wait_until(lambda: shipping.fault or witness.url in str(shipping.shipper.status.last_error))
    assert shipping.fault is None


def check(dsn: str, witness: Witness, later: timedelta = timedelta()) -> Report:
    options = Options(keys, datetime.now(UTC) + later, witnesses=[witness.verifier])
    return verify(dsn, options, jurisdiction="EU")


def test_heads_are_cosigned_as_the_log_grows_and_verify_says_when(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    server, place = witness
    journal = FakeJournal()
    ship(dsn, tmp_path, journal, place)
    ship(dsn, tmp_path, journal, place)
    assert server.size == cosigned(dsn)
    assert 422 not in server.asked
    report = check(dsn, place)
    assert (report.faults, report.anchored) == ([], True)
    assert report.witnessed is not None
    assert not check(dsn, place, timedelta(hours=4)).anchored  # too long ago: what came since may be cut off
    assert not verify(dsn, Options(keys, datetime.now(UTC)), jurisdiction="EU").anchored  # nobody's witness


@pytest.mark.parametrize("at", [2**63, 4_000_000_000])
def test_what_a_witness_signs_for_the_future_vouches_for_nothing(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness], at: int
) -> None:
    server, place = witness
    server.now = lambda: float(at)
    ship(dsn, tmp_path, FakeJournal(), place)
    report = check(dsn, place)
    assert (report.witnessed, report.anchored, report.faults) == (None, False, [])


def test_a_sidecar_that_forgot_what_a_witness_has_seen_asks_it(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    server, place = witness
    journal = FakeJournal()
    ship(dsn, tmp_path, journal, place)
    (tmp_path / "fleet/witnesses.json").unlink()
    server.asked.clear()
    ship(dsn, tmp_path, journal, place)
    assert server.asked[:2] == [409, 200]


def test_a_fleets_log_cut_back_with_all_memory_of_it_is_not_cosigned(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    """Who has the database and the pod's volume, and even the key, cannot make the witness forget."""
    server, place = witness
    journal = FakeJournal()
    ship(dsn, tmp_path, journal, place)
    ship(dsn, tmp_path, journal, place)
    seen = server.size
    ((log,),) = query(dsn, "SELECT log FROM warden.audit_logs WHERE log <> 'fleet'")
    Forger(dsn, log).drop_log(fleet=True)
    query(dsn, "DELETE FROM warden.journal_cursors")
    server.asked.clear()
    other = tmp_path / "other"
    fresh = FakeJournal()
    shutil.copytree(tmp_path / "tenant-keys", other / "tenant-keys")  # all pods of a jurisdiction share them
    ship(dsn, other, fresh, place, lambda: len(server.asked) >= 2)
    assert 200 not in server.asked
    assert (server.size, cosigned(dsn)) == (seen, 0)
    assert not check(dsn, place).anchored


def test_a_witness_that_is_down_or_signs_something_else_holds_up_nothing(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    server, place = witness
    journal = FakeJournal()
    for fault in ("down", "forged"):
        setattr(server, fault, True)
        server.asked.clear()
        ship(dsn, tmp_path, journal, place, lambda: bool(server.asked))
        assert cosigned(dsn) == 0
        setattr(server, fault, False)
    ship(dsn, tmp_path, journal, place)
    assert check(dsn, place).anchored


def test_of_what_a_witness_says_only_its_own_line_is_kept(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    server, place = witness
    wrong = base64.b64encode(server.log.key_hash + bytes(64)).decode()
    server.noise = f"\u2014 {server.log.name} {wrong}\nno line at all\n"  # it would make the log's own count as wrong
    ship(dsn, tmp_path, FakeJournal(), place)
    report = check(dsn, place)
    assert (report.faults, report.anchored) == ([], True)


def test_a_witness_that_makes_no_sense_keeps_no_other_from_being_asked(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, place = witness
    with serving(keys("fleet")) as (mad, other):
        monkeypatch.setattr(mad, "answer", lambda _: (409, "\u00b2"))  # a digit, but no number
        journal = FakeJournal()
        journal.append(*completed())
        with Shipping(journal, dsn, tmp_path, witnesses=[other, place]) as shipping:
            wait_until(lambda: shipping.fault or cosigned(dsn))
        assert shipping.fault is None


def test_the_command_takes_witnesses_from_the_configuration(
    dsn: str, tmp_path: Path, witness: tuple[WitnessServer, Witness]
) -> None:
    _, place = witness
    ship(dsn, tmp_path, FakeJournal(), place)
    config = write_config(tmp_path, dsn)
    section = f"  anchor: {{witnesses: [{{url: '{place.url}', key: '{place.verifier.text}'}}]}}\n"
    plain = config.read_text()
    config.write_text(plain + section)
    done = CliRunner().invoke(app, ["verify", "--config", str(config), "--json", "--jobs", "1"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["anchored"], bool(told["witnessed"])) == (0, True, True)
    for wrong in ("  anchor: {}\n", section.replace("http://127.0.0.1", "http://w.example"), section.replace("+", " ")):
        config.write_text(plain + wrong)
        assert CliRunner().invoke(app, ["verify", "--config", str(config)]).exit_code == 2
