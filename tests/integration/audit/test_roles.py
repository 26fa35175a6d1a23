"""audit.roles: a sidecar's own login is enough to work with, and whoever steals it can neither read nor rewrite."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from audit import roles, store
from audit.erasing import Officer
from audit.opening import Opener
from audit.retain import retain
from audit.roles import RoleKind
from sidecar.cli.db import app as db
from sidecar.cli.evidence import app as audit
from sidecar.cli.token import app as tokens
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import check
from tests.integration.identity.test_pooler import pooled
from tests.support.postgres import query
from tests.support.store import FakeJournal, Shipping, completed, event, keys_in, refused, signer_of, wait_until

Refused = psycopg.errors.InsufficientPrivilege


class Office:
    """`warden db` on one database."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn, self.directory = dsn, directory
        self.config = write_config(directory, dsn)

    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(db, [*arguments, "--config", str(self.config)])

    def enroll(self, name: str, kind: RoleKind = RoleKind.SIDECAR) -> str:
        """The DSN that was written."""
        out = self.directory / f"{kind}-{name}.dsn"
        done = self.run("enroll", name, "--for", str(kind), "-o", str(out), "--json")
        assert done.exit_code == 0, done.output
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert json.loads(done.stdout)["role"] == roles.role_name(kind, name)
        return out.read_text().strip()

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found | {"exit": done.exit_code}


@pytest.fixture
def office(dsn: str, tmp_path: Path) -> Office:
    return Office(dsn, tmp_path)


def ship(dsn: str, directory: Path, journal: FakeJournal, rows: int) -> str:
    """What the shipper stores and signs with this login; the log's name."""
    with Shipping(journal, dsn, directory, anchor=directory / "anchor") as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or (status.rows >= rows and status.signed_size == status.position))
    assert shipping.fault is None
    assert not shipping.shipper.status.tampered
    return status.log


def test_a_sidecar_sees_whether_retention_runs_and_only_the_owner_may_run_it(office: Office) -> None:
    own = office.enroll("pod-1")
    ids = (f"kept-{n}" for n in itertools.count())
    at = datetime.now(UTC)
    opener = Opener(keys_in(office.directory))
    engine = store.connect(office.enroll("ada", RoleKind.OFFICER), application="test")
    with pytest.raises(store.MismatchError, match="warden_of_ada does not own the audit tables"):
        retain(
            engine, opener, Officer("cli:ada", at, ids, "retention"), copies=timedelta(hours=24), signer_of=signer_of
        )
    engine.dispose()
    engine = store.connect(office.dsn, application="test")
    retain(engine, opener, Officer("cli:owner", at, ids, "retention"), copies=timedelta(hours=24), signer_of=signer_of)
    engine.dispose()
    journal = FakeJournal()
    journal.append(event())
    with Shipping(journal, own, office.directory) as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or (status.upkeep is not None and status.rows == 1))
    assert shipping.fault is None
    assert status.upkeep is not None
    assert status.upkeep.retained_at == at.timestamp()
    assert status.upkeep.room_until - at.timestamp() > 6 * 86400
    assert (status.anchor_trouble, status.witness_trouble) == (None, None)  # none is configured


def test_an_anchor_that_takes_nothing_is_told_until_it_does_again(office: Office) -> None:
    anchor = office.directory / "away" / "anchor"
    anchor.parent.write_text("not a directory")
    journal = FakeJournal()
    journal.append(event())
    with Shipping(journal, office.dsn, office.directory, anchor=anchor) as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or status.anchor_trouble)
        assert "away" in str(status.anchor_trouble)
        anchor.parent.unlink()
        wait_until(lambda: shipping.fault or status.anchor_trouble == "")
    assert shipping.fault is None
    assert anchor.exists()


@pytest.fixture
def stolen(office: Office) -> str:
    """pod-1's DSN, after it has shipped calls and events; an officer and a second sidecar have been at work too."""
    own = office.enroll("pod-1")
    act = "INSERT INTO warden.audit_events (id, at, kind, actor) VALUES ('act', now(), 'audit_search', 'ada')"
    query(office.dsn, act)
    journal = FakeJournal()
    journal.append(*completed(), refused(), event(), *completed(subject="alice"))
    ship(own, office.directory, journal, 4)
    query(office.dsn, "INSERT INTO warden.audit_logs (log, sidecar) VALUES ('pod-2.0123456789abcdef', 'pod-2')")
    return own


def test_a_sidecar_ships_signs_and_catches_up_with_its_own_login(office: Office, stolen: str) -> None:
    assert check(office.dsn, office.directory / "anchor").faults == []
    assert query(office.dsn, "SELECT count(*) FROM warden.fleet_entries WHERE event = 'act'") == [(1,)]
    assert "password" in psycopg.conninfo.conninfo_to_dict(stolen)


def test_it_does_so_through_a_pooler_too(office: Office) -> None:
    own = office.enroll("pod-1")
    given = psycopg.conninfo.conninfo_to_dict(own)
    with pooled(psycopg.conninfo.make_conninfo("", **{**given, "password": None}), office.directory) as through:
        journal = FakeJournal()
        journal.append(*completed(), event())
        ship(through, office.directory, journal, 2)
        with psycopg.connect(through) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("warden_sc_pod-1",)
    assert check(office.dsn, office.directory / "anchor").faults == []


def test_what_a_restored_database_lost_is_put_back_with_its_own_login(office: Office, postgres: Any) -> None:
    own = office.enroll("pod-1")
    journal = FakeJournal()
    journal.append(*completed())
    ship(own, office.directory, journal, 1)
    snapshot = postgres.snapshot(office.dsn)
    query(
        office.dsn, "INSERT INTO warden.audit_events (id, at, kind, detail) VALUES ('lost', now(), 'x', '{\"n\": 0.5}')"
    )
    journal.append(*completed())
    ship(own, office.directory, journal, 1)
    postgres.restore(snapshot, office.dsn)
    journal.append(*completed())
    ship(own, office.directory, journal, 1)
    assert query(office.dsn, "SELECT detail::text FROM warden.audit_events WHERE id = 'lost'") == [('{"n": 0.5}',)]
    assert check(office.dsn, office.directory / "anchor").faults == []


ATTACKS: list[tuple[str, str]] = [
    ("read calls", "SELECT * FROM warden.audit_calls LIMIT 1"),
    ("count calls", "SELECT count(*) FROM warden.audit_calls"),
    ("read a partition", "SELECT * FROM warden.audit_calls_{today}"),
    ("write past the parent", "INSERT INTO warden.audit_calls_{today} (started_at, call_id) VALUES (now(), 'x')"),
    ("alter calls", "UPDATE warden.audit_calls SET outcome = 'x'"),
    ("delete calls", "DELETE FROM warden.audit_calls"),
    ("truncate calls", "TRUNCATE warden.audit_calls"),
    ("alter events", "UPDATE warden.audit_events SET kind = 'x'"),
    ("delete events", "DELETE FROM warden.audit_events"),
    ("fake an officer's act", "INSERT INTO warden.audit_events (id, at, kind) VALUES ('fake', now(), 'hold_released')"),
    ("event in another's log",
     "INSERT INTO warden.audit_events (id, at, kind, log, position) VALUES ('f', now(), 'x', '{other}', 0)"),
    ("alter leaves", "UPDATE warden.audit_leaves SET hashes = ''"),
    ("delete leaves", "DELETE FROM warden.audit_leaves"),
    ("leaves in another's log", "INSERT INTO warden.audit_leaves VALUES ('{other}', 0, '')"),
    ("head of another's log", "INSERT INTO warden.audit_checkpoints VALUES ('{other}', 1, 'x', now())"),
    ("delete heads", "DELETE FROM warden.audit_checkpoints"),
    ("alter the fleet's log", "UPDATE warden.fleet_entries SET body = ''"),
    ("begin another's log", "INSERT INTO warden.audit_logs (log, sidecar) VALUES ('pod-3.0123456789abcdef', 'pod-3')"),
    ("cut its own log", "UPDATE warden.audit_logs SET next_position = 0 WHERE log = '{own}'"),
    ("move another's cursor",
     "INSERT INTO warden.journal_cursors (journal, log, needed, done) VALUES ('j', '{other}', 9, 9)"),
    ("delete cursors", "DELETE FROM warden.journal_cursors"),
    ("read data keys", "SELECT * FROM warden.data_keys"),
    ("destroy data keys", "UPDATE warden.data_keys SET wrapped = NULL"),
    ("release holds", "UPDATE warden.legal_holds SET released_at = now()"),
    ("place an erasure", "INSERT INTO warden.erasures (id, tenant, requested_at) VALUES ('e', 'acme', now())"),
    ("make an API key good", "UPDATE warden.api_keys SET revoked_at = NULL"),
    ("forget a revoked token", "DELETE FROM warden.token_denials"),
    ("change the jurisdiction", "UPDATE warden.database_facts SET value = 'US'"),
    ("switch a trigger off", "ALTER TABLE warden.audit_leaves DISABLE TRIGGER ALL"),
    ("switch row-level security off", "ALTER TABLE warden.audit_logs DISABLE ROW LEVEL SECURITY"),
    ("detach a partition", "ALTER TABLE warden.audit_calls DETACH PARTITION warden.audit_calls_{today}"),
    ("drop a partition", "DROP TABLE warden.audit_calls_{today}"),
    ("replica mode", "SET session_replication_role = replica"),
    ("be the owner", "SET ROLE postgres"),
    ("make a role", "CREATE ROLE thief"),
    ("a function of its own", "CREATE FUNCTION warden.f() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
]  # fmt: skip


@pytest.fixture
def places(office: Office, stolen: str) -> dict[str, str]:
    ((own,),) = query(office.dsn, "SELECT log FROM warden.audit_logs WHERE sidecar = 'pod-1'")
    ((today,),) = query(office.dsn, "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    return {"own": own, "other": "pod-2.0123456789abcdef", "today": today}


def test_a_stolen_login_gets_nowhere(office: Office, stolen: str, places: dict[str, str]) -> None:
    before = evidence(office.dsn)
    passed = []
    for name, attack in ATTACKS:
        with psycopg.connect(stolen) as connection:
            try:
                connection.execute(attack.format(**places))
            except psycopg.errors.InsufficientPrivilege:
                continue
            passed.append(name)
    assert passed == []
    assert evidence(office.dsn) == before
    assert check(office.dsn, office.directory / "anchor").faults == []


def evidence(dsn: str) -> list[Any]:
    return [query(dsn, f"SELECT t::text FROM warden.{table} t ORDER BY 1")
            for table in (*roles.APPEND_ONLY, "journal_cursors", "data_keys")]  # fmt: skip


def test_what_it_sees_is_no_content(stolen: str, places: dict[str, str]) -> None:
    """Of others it sees that there are logs, and what officers did, which the fleet's log must take up."""

    def seen(statement: str) -> list[Any]:
        with psycopg.connect(stolen) as connection:
            return connection.execute(statement).fetchall()

    assert seen("SELECT id FROM warden.audit_events WHERE kind <> 'role_enrolled'") == [("act",)]
    assert {log for (log,) in seen("SELECT DISTINCT log FROM warden.audit_checkpoints")} == {"fleet"}
    assert {log for (log,) in seen("SELECT log FROM warden.audit_logs")} == {"fleet", places["own"], places["other"]}


def rows_of_another(connection: psycopg.Connection[Any], places: dict[str, str]) -> None:
    statement = (
        "COPY warden.audit_calls (started_at, call_id, sidecar, log, position, journal, first_sequence, sequence,"
    )
    with connection.cursor().copy(statement + " decided_at, status, data_key, identity_sealed) FROM STDIN") as copy:
        copy.write_row(("now", "c", "pod-2", places["other"], 0, "j", 0, 0, "now", 0, "k", b""))


def test_rows_of_another_log_are_refused_however_they_come(stolen: str, places: dict[str, str]) -> None:
    with psycopg.connect(stolen) as connection, pytest.raises(psycopg.errors.CheckViolation, match="own_log"):
        rows_of_another(connection, places)


def test_what_a_thief_adds_to_the_fleets_log_is_never_signed(office: Office, stolen: str) -> None:
    """It may write there, as every sidecar does; it hasn't the key, and no shipper signs what nobody has signed."""
    from audit.fleet import FLEET  # noqa: PLC0415
    from audit.merkle import Frontier, leaf_hash  # noqa: PLC0415

    with psycopg.connect(stolen) as thief:
        size, frontier = thief.execute(
            "SELECT next_position, frontier FROM warden.audit_logs WHERE log = 'fleet'"
        ).fetchone()
        body = '{"at":"2026-01-01T00:00:00+00:00","kind":"born","log":"pod-9.0123456789abcdef","sidecar":"pod-9"}'
        grown = Frontier.unpack(size, frontier).extended([leaf_hash(body.encode())])
        thief.execute("INSERT INTO warden.fleet_entries VALUES (%s, %s)", (size, body))
        thief.execute("INSERT INTO warden.audit_leaves VALUES ('fleet', %s, %s)", (size, leaf_hash(body.encode())))
        update = "UPDATE warden.audit_logs SET next_position = %s, frontier = %s WHERE log = 'fleet'"
        thief.execute(update, (grown.size, grown.pack()))
    heads = query(office.dsn, "SELECT note FROM warden.audit_checkpoints WHERE log = %s ORDER BY 1", FLEET)
    with Shipping(FakeJournal(), stolen, office.directory, anchor=office.directory / "anchor") as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.tampered)
        assert "nobody with the jurisdiction's key signed" in str(shipping.shipper.status.last_error)
    assert query(office.dsn, "SELECT note FROM warden.audit_checkpoints WHERE log = %s ORDER BY 1", FLEET) == heads


def test_status_says_what_is_in_force(office: Office, stolen: str) -> None:
    found = office.status()
    assert (found["exit"], found["append_only"], found["connected_kind"]) == (0, True, "superuser")
    assert [each["role"] for each in found["roles"]] == ["warden_sc_pod-1"]
    engine = store.connect(stolen, application="test")
    with store.transaction(engine) as connection:
        own = roles.in_force(connection)
    engine.dispose()
    assert (own.kind, own.can_change, own.append_only) == ("sidecar", [], True)


SWITCHES: list[tuple[str, Callable[[dict[str, Any]], list[str]], str]] = [
    ("ALTER TABLE warden.audit_leaves DISABLE TRIGGER append_only", lambda f: f["triggers_off"], "audit_leaves"),
    ("ALTER TABLE warden.bundles ENABLE TRIGGER append_only", lambda f: f["triggers_off"], "bundles"),
    ("DROP TRIGGER no_truncate ON warden.audit_calls_{today}", lambda f: f["triggers_off"], "audit_calls_{today}"),
    ("ALTER TABLE warden.audit_logs NO FORCE ROW LEVEL SECURITY", lambda f: f["row_security_off"], "audit_logs"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "told", "what"), SWITCHES)
def test_status_names_a_guard_that_is_off(
    office: Office, statement: str, told: Callable[[dict[str, Any]], list[str]], what: str
) -> None:
    ((today,),) = query(office.dsn, "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
    query(office.dsn, statement.format(today=today))
    found = office.status()
    assert (found["exit"], found["append_only"], told(found)) == (1, False, [what.format(today=today)])


def test_every_partition_is_guarded_made_now_or_later(office: Office) -> None:
    own = office.enroll("pod-1")
    with psycopg.connect(own) as connection:
        for table in ("audit_calls", "audit_terms", "audit_calls"):
            connection.execute("SELECT warden.make_partition(%s, '2031-01-01')", (table,))
        with pytest.raises(Refused, match="has no partitions"):
            connection.execute("SELECT warden.make_partition('audit_events', '2031-01-01')")
    assert office.status()["triggers_off"] == []
    off = ("SELECT count(*) FROM pg_trigger t JOIN pg_inherits i ON i.inhrelid = t.tgrelid"
           " WHERE i.inhparent = 'warden.audit_calls'::regclass AND t.tgenabled <> 'A'")  # fmt: skip
    assert query(office.dsn, off) == [(0,)]


def test_a_revoked_login_is_cut_off_and_an_enrolled_one_can_be_renewed(office: Office) -> None:
    own = office.enroll("pod-1")
    with psycopg.connect(own) as connection:
        connection.execute("SELECT 1")
        assert office.run("revoke", "pod-1").exit_code == 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="not permitted to log in"):
        psycopg.connect(own)
    assert office.status()["roles"][0]["revoked_at"] is not None
    assert office.run("revoke", "pod-9").exit_code == 1
    (office.directory / "sidecar-pod-1.dsn").unlink()
    with psycopg.connect(office.enroll("pod-1")) as connection:
        assert connection.execute("SELECT count(*) FROM warden.audit_logs").fetchone() == (0,)


def test_who_steals_a_sidecars_login_cannot_take_all_of_the_servers_connections(office: Office) -> None:
    own = office.enroll("pod-1")
    with ExitStack() as held:
        for _ in range(roles.SIDECAR_CONNECTIONS):
            held.enter_context(psycopg.connect(own))
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            psycopg.connect(own)
        psycopg.connect(office.dsn).close()


def test_wrong_use_is_named(office: Office) -> None:
    office.enroll("pod-1")
    twice = office.run("enroll", "pod-2", "-o", str(office.directory / "sidecar-pod-1.dsn"))
    assert (twice.exit_code, "File exists" in twice.output) == (2, True)
    bad = office.run("enroll", "po d", "-o", str(office.directory / "new"))
    assert (bad.exit_code, "letters, digits" in bad.output) == (2, True)
    assert not (office.directory / "new").exists()


def test_readers_officers_and_key_desks_have_what_they_need_and_no_more(office: Office, stolen: str) -> None:
    """``audit search`` and ``verify`` as a reader, ``hold`` as an officer, ``token`` as the key desk; nobody else's.

    Each by a configuration that names the file which ``enroll`` wrote, and no other login.
    """
    for kind in (RoleKind.READER, RoleKind.OFFICER, RoleKind.KEYS):
        own = office.enroll("ada", kind)
        path = office.directory / f"{kind}.yaml"
        path.write_text(office.config.read_text().replace(f'dsn: "{office.dsn}"', f"sidecar_dsn_file: {kind}-ada.dsn"))

        def run(*arguments: str, path: Path = path, app: Any = audit) -> int:
            return CliRunner().invoke(app, [*arguments, "--config", str(path)]).exit_code

        reads = kind is not RoleKind.KEYS
        assert (run("search", "--json") == 0) is reads
        assert (run("verify", "--jobs", "1") == 0) is reads
        held = run("hold", "add", "--tenant", "acme", "--reason", "r")
        assert (held == 0) is (kind is RoleKind.OFFICER)
        ended = run("revoke", "--issuer", "https://sso.example.com", "--jti", f"t-{kind}", app=tokens)
        assert ended == (0 if kind is RoleKind.KEYS else 1)
        with psycopg.connect(own) as connection, pytest.raises(Refused):
            connection.execute("DELETE FROM warden.audit_events")
        with psycopg.connect(own) as connection, pytest.raises(Refused):
            connection.execute(
                "INSERT INTO warden.audit_events (id, at, kind, log) VALUES ('f', now(), 'x', 'pod-2.0123456789abcdef')"
            )
        if kind is not RoleKind.KEYS:
            with psycopg.connect(own) as connection, pytest.raises(Refused):
                connection.execute("SELECT secret_mac FROM warden.api_keys")
