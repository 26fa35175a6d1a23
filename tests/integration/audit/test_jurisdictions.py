"""Several jurisdictions' databases: each has a journal and gets its own and nothing else, and each fails alone."""

from __future__ import annotations

import json
import secrets
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from audit.files import OsFiles
from audit.follow import read_shipped
from audit.journal import Journal, Pressure, State, close_all
from audit.record import Admitted, Entry, Event, store_of
from audit.seal import load_root_key
from audit.segments import Origin, segments_in
from sidecar.cli.main import build
from sidecar.core.model import Secret
from sidecar.runtime import shipping
from sidecar.runtime.journals import open_journals
from sidecar.runtime.settings import load
from sidecar.runtime.shipping import ship
from sidecar.runtime.stranded import StrandedError
from tests.integration.audit.test_ship_process import count, report
from tests.integration.audit.test_ship_process import shipping as process_of
from tests.support.journal import put
from tests.support.postgres import Server, prepare, query, running_server
from tests.support.store import ROOT, completed, event, facts, refused, settled, wait_until

WORD = "nur-in-Europa"


@pytest.fixture(scope="module")
def america() -> Iterator[Server]:
    """A server of its own, which may be stopped or hang without the others'."""
    with running_server() as server:
        yield server


@pytest.fixture
def us(america: Server) -> str:
    query(america.shared, "DROP SCHEMA IF EXISTS warden CASCADE")
    prepare(america.shared, jurisdiction="US")
    return america.shared


@pytest.fixture
def place(tmp_path: Path, dsn: str, us: str) -> Path:
    """Of a pod in the EU with its own database and one of the US."""
    for name, key in (("journal.key", ROOT), ("us/root.key", secrets.token_bytes(32))):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(key)
        path.chmod(0o600)
    write(tmp_path, dsn, {"US": us})
    return tmp_path


def write(directory: Path, dsn: str, further: dict[str, str], **journal: Any) -> Path:
    """``further``: DSNs by jurisdiction."""
    audit: dict[str, Any] = {
        "journal": {"directory": "journal", "key_file": "journal.key", **journal},
        "database": {"dsn": dsn, "jurisdiction": "EU"},
    }
    audit["databases"] = {
        name: {"dsn": other, "key_file": f"{name.lower()}/root.key"} for name, other in further.items()
    }
    path = directory / "warden.yaml"
    sidecar = {"name": "pod-1", "region": "eu-west-1"}
    path.write_text(json.dumps({"sidecar": sidecar, "policy": {"bundle": "bundle"}, "identity": {}, "audit": audit}))
    return path


def run(place: Path, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(build(arguments[0]), [*arguments, "--config", str(place / "warden.yaml")])
    assert done.exit_code == code, done.output
    return done.output


class Shipping:
    """`warden ship` in a thread of this process, without the second that a new one takes; quicker to try again."""

    def __init__(self, config: Path) -> None:
        self._settings = load(config)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fault: Exception | None = None

    def _run(self) -> None:
        root = load_root_key(self._settings.audit.journal.key_file)
        assert isinstance(root, Secret)
        try:
            ship(self._settings, root, self._stop)
        except Exception as fault:  # noqa: BLE001 — handed to the test's thread
            self.fault = fault

    def __enter__(self) -> Shipping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    real = shipping._bounds
    monkeypatch.setattr(shipping, "_bounds", lambda settings: replace(real(settings), backoff_most=0.5))
    monkeypatch.setattr(shipping, "LAST_PAUSE", 0.5)
    for of_the_process in ("collect_seldom", "keep_memory"):
        monkeypatch.setattr(shipping, of_the_process, lambda: None)


def calls(number: int, store: str, tenant: str) -> Iterator[Entry]:
    """Whole calls, their outputs between."""
    for _ in range(number):
        for entry in completed(tenant=tenant, store=store, rule=f"tenants/{tenant}.yaml:models"):
            yield entry if isinstance(entry, Admitted) else _to(entry, store)


def _to(entry: Any, store: str) -> Entry:
    changed: Entry = type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__} | {"store": store})
    return changed


@contextmanager
def opened(directory: Path) -> Iterator[dict[str, Journal]]:
    journals = open_journals(load(directory / "warden.yaml"), Origin("pod-1", "eu-west-1", "EU"), OsFiles())
    assert isinstance(journals, dict), journals
    try:
        yield journals
    finally:
        close_all(journals.values())


def append(directory: Path, entries: Iterable[Entry]) -> None:
    with opened(directory) as journals:
        put_all(journals, entries)


def tenants(dsn: str) -> dict[str, int]:
    return dict(query(dsn, "SELECT tenant, count(*) FROM warden.audit_calls GROUP BY tenant"))


def ids(dsn: str) -> list[str]:
    return [row[0] for row in query(dsn, "SELECT call_id FROM warden.audit_calls")]


def of(place: Path, jurisdiction: str) -> dict[str, Any]:
    found: dict[str, Any] = report(place).get("databases", {}).get(jurisdiction, {})
    return found


def dump(dsn: str) -> str:
    """Every row of every table, as text; sealed columns as hexadecimal."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'warden' AND c.relkind = 'r'"
        ).fetchall()
        rows = [connection.execute(f"SELECT t::text FROM {table} t").fetchall() for (table,) in tables]
    return "\n".join(row[0] for found in rows for row in found)


def verified(place: Path, jurisdiction: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        run(place, "audit", "verify", "--jobs", "1", "--jurisdiction", jurisdiction, "--json")
    )
    return told


def test_each_database_gets_its_own_and_nothing_else(place: Path, dsn: str, us: str) -> None:
    european = completed(tenant="acme", subject=WORD, conversation=WORD)
    european_ids = {entry.call.call_id for entry in european if isinstance(entry, Admitted)}
    append(place, [
        *calls(20, "EU", "acme"), *calls(30, "US", "birch"), *european, refused(tenant="acme", store="EU"),
        refused(tenant="birch", store="US", rule="birch"), event("bundle_loaded", digest="sha256:none"),
        Event("folded", 1, "refusals_counted", "serve", {"from": "tenant birch"}, "US"),
    ])  # fmt: skip
    with process_of(place / "warden.yaml") as process:
        wait_until(lambda: count(dsn) == 22 and count(us) == 31)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert (tenants(dsn), tenants(us)) == ({"acme": 22}, {"birch": 31})
    kinds = "SELECT kind FROM warden.audit_events WHERE kind IN ('bundle_loaded', 'refusals_counted')"
    assert (query(dsn, kinds), query(us, kinds)) == ([("bundle_loaded",)], [("refusals_counted",)])
    assert not query(us, "SELECT 1 FROM warden.audit_events WHERE kind = 'settled_without_admission'")
    written = dump(us)
    for word in (WORD, "acme", *european_ids, WORD.encode().hex()):
        assert word not in written
    assert "birch" not in dump(dsn)
    for jurisdiction, records in (("EU", 23), ("US", 32)):
        told = verified(place, jurisdiction)
        assert (told["ok"], told["records"], told["faults"]) == (True, records, [])
    # Each log's key follows from its own jurisdiction's root key.
    logs = [query(each, "SELECT log FROM warden.audit_logs WHERE log <> 'fleet'") for each in (dsn, us)]
    assert len(logs[0]) == len(logs[1]) == 1
    assert logs[0] != logs[1]
    # Each journal lets go of what its own database has.
    for jurisdiction, journal in (("EU", place / "journal"), ("US", place / "journal" / "databases" / "US")):
        assert read_shipped(journal) == of(place, jurisdiction)["shipped_sequence"]


@pytest.mark.parametrize("how", ["hangs", "is down"])
def test_one_that_fails_holds_up_no_other(place: Path, dsn: str, us: str, america: Server, how: str) -> None:
    append(place, [*calls(5, "EU", "acme"), *calls(5, "US", "birch")])
    with Shipping(place / "warden.yaml"):
        wait_until(lambda: count(dsn) == 5 and count(us) == 5)
        with america.hung() if how == "hangs" else _down(america):
            append(place, [*calls(40, "US", "birch"), *calls(40, "EU", "acme")])
            wait_until(lambda: count(dsn) == 45)
            wait_until(lambda: of(place, "EU").get("lag_records") == 0)
            assert of(place, "EU")["database_up"]
            wait_until(lambda: of(place, "US").get("lag_records", 0) > 0)
            # What the other has not got stays in its own journal.
            assert segments_in(place / "journal" / "databases" / "US")
        wait_until(lambda: count(us) == 45)
    assert (tenants(dsn), tenants(us)) == ({"acme": 45}, {"birch": 45})
    assert len(set(ids(us))) == 45
    for jurisdiction in ("EU", "US"):
        assert verified(place, jurisdiction)["faults"] == []


def test_one_that_hangs_fills_its_own_journal_and_no_other(place: Path, dsn: str, us: str, america: Server) -> None:
    """Neither the other's space nor what it reads grows with it; each record is stored once, when it is back."""
    write(place, dsn, {"US": us}, max_bytes=2 * 2**20, segment_bytes=256 * 2**10, min_free=2**20)
    with Shipping(place / "warden.yaml"), opened(place) as journals:
        put_all(journals, calls(1, "US", "birch"))
        wait_until(lambda: count(us) == 1)
        with america.hung():
            written = 1
            while journals["US"].state is State.OK:
                put_all(journals, calls(1, "US", "birch"))
                written += 1
            assert 2**19 < journals["US"].nbytes < 2**20 + 2**19
            for n in range(1, 11):  # more than all the space there is goes through the other
                for entry in calls(200, "EU", "acme"):
                    if isinstance(entry, Admitted):  # what is stored makes room, within a second or two
                        wait_until(lambda: journals["EU"].state is State.OK)
                    put_all(journals, [entry])
                wait_until(lambda n=n: count(dsn) == 200 * n)
            wait_until(lambda: journals["EU"].pressure < Pressure.REFUSE)
            assert journals["US"].state is State.FULL
        wait_until(lambda: count(us) == written)
        wait_until(lambda: journals["US"].state is State.OK)
    assert (tenants(dsn), tenants(us)) == ({"acme": 2000}, {"birch": written})


def put_all(journals: dict[str, Journal], entries: Iterable[Entry]) -> None:
    """Each to the journal of its database, as the recorder does."""
    for entry in entries:
        put(journals[store_of(entry) or "EU"], entry)


class _down:  # noqa: N801 — beside ``Server.hung``
    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> None:
        self._server.stop()

    def __exit__(self, *_: object) -> None:
        self._server.start()


def test_a_database_of_another_jurisdiction_than_the_configuration_says_is_refused(
    place: Path, dsn: str, us: str
) -> None:
    query(us, "DROP SCHEMA warden CASCADE")
    prepare(us, jurisdiction="CH")
    append(place, [*calls(3, "US", "birch"), *calls(3, "EU", "acme")])
    with Shipping(place / "warden.yaml"):
        wait_until(lambda: count(dsn) == 3)
        wait_until(lambda: "'CH'" in str(of(place, "US").get("last_error")))
        assert not of(place, "US")["database_up"]
        assert count(us) == 0
        # It is looked at again: put right, it gets what waited.
        query(us, "DROP SCHEMA warden CASCADE")
        prepare(us, jurisdiction="US")
        wait_until(lambda: count(us) == 3)
    assert (tenants(dsn), tenants(us)) == ({"acme": 3}, {"birch": 3})


def test_a_database_is_not_taken_out_before_it_has_what_is_its(place: Path, dsn: str, us: str, america: Server) -> None:
    config = place / "warden.yaml"
    append(place, [*calls(3, "US", "birch"), *calls(3, "EU", "acme")])
    america.stop()
    try:
        with Shipping(config):
            wait_until(lambda: count(dsn) == 3)
        write(place, dsn, {})
        with Shipping(config) as stranded:
            wait_until(lambda: stranded.fault)
        assert isinstance(stranded.fault, StrandedError)
        assert "put audit.databases.US back" in str(stranded.fault)
    finally:
        america.start()
    write(place, dsn, {"US": us})
    with Shipping(config):
        wait_until(lambda: count(us) == 3)
    write(place, dsn, {})
    append(place, [*calls(2, "EU", "acme")])
    with Shipping(config):
        wait_until(lambda: count(dsn) == 5)


def test_a_command_says_whose_database_it_means(place: Path, dsn: str, us: str) -> None:
    call = facts(tenant="birch", store="US")
    append(place, [Admitted(call), _to(settled(call), "US")])
    with Shipping(place / "warden.yaml"):
        wait_until(lambda: count(us) == 1)
    assert "databases of EU, US: say which, with --jurisdiction" in run(place, "audit", "search", code=2)
    assert "has a database of EU, US only" in run(place, "audit", "search", "--jurisdiction", "CH", code=2)
    assert call.call_id in run(place, "audit", "search", "--jurisdiction", "US", "--json")
    assert "no record" in run(place, "audit", "show", call.call_id, "--jurisdiction", "EU", code=1)
    assert "jurisdiction" in run(place, "db", "status", "--jurisdiction", "US", "--json")
