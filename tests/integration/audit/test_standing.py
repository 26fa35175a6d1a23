"""audit.standing: holds and erasures that stand otherwise than officers' acts say, in the real database."""

from __future__ import annotations

from datetime import timedelta

from audit import erasing
from audit.evidence import FaultKind
from tests.integration.audit.test_erasing import Desk, desk, holding, officer
from tests.integration.audit.test_verify import check
from tests.support.postgres import query

__all__ = ["desk"]


def test_holds_and_erasures_are_what_officers_did(desk: Desk) -> None:
    """Each tampering by itself, put right again before the next."""
    desk.act(holding, subject="bob")
    desk.act(holding, subject=None, name="h2")
    desk.act(lambda connection, _: erasing.release_hold(connection, officer(), "h2"))
    desk.erase("alice")
    desk.ship(0)
    later = timedelta(minutes=30)  # what is younger, the fleet's log may not have taken up yet
    assert check(desk.dsn, desk.directory / "anchor", later=later).faults == []
    erased, held = "UPDATE warden.erasures SET ", "UPDATE warden.legal_holds SET "
    for table in ("erasures", "legal_holds"):
        query(desk.dsn, f"CREATE TABLE warden.kept_{table} AS SELECT * FROM warden.{table}")
    for statement, kind, words in (
        ("DELETE FROM warden.legal_holds WHERE id = 'h1'", FaultKind.DELETION, "h1 of acme is gone"),
        (held + "released_at = placed_at WHERE id = 'h1'", FaultKind.ALTERED_COLUMN, "h1 is released, and nobody"),
        (held + "released_at = NULL WHERE id = 'h2'", FaultKind.ALTERED_COLUMN, "h2 was released"),
        (held + "tenant = 'birch' WHERE id = 'h1'", FaultKind.ALTERED_COLUMN, "h1 of acme is not what was placed"),
        (held + "subject_wrapped = '\\x00', version = 1 WHERE id = 'h2'", FaultKind.ALTERED_COLUMN, "not what was"),
        (held + "subject_wrapped = NULL WHERE id = 'h1'", FaultKind.ALTERED_COLUMN, "holds everybody"),
        ("INSERT INTO warden.legal_holds (id, tenant, placed_at) VALUES ('h3', 'acme', now() - interval '1 d')",
         FaultKind.INSERTION, "h3 that nobody placed"),
        ("DELETE FROM warden.erasures", FaultKind.DELETION, "erasure e1 is gone"),
        (erased + "done_at = erased_at", FaultKind.ALTERED_COLUMN, "e1 says it is done"),
        (erased + "erased_at = NULL", FaultKind.ALTERED_COLUMN, "e1 was carried out, and says it was not"),
        (erased + "records = 7", FaultKind.ALTERED_COLUMN, "e1 was of 1 keys and 2 records"),
        (erased + "requested_by = 'cli:bob'", FaultKind.ALTERED_COLUMN, "e1 is not as it was asked for"),
        (erased + "requested_login = 'warden_of_eve'", FaultKind.ALTERED_COLUMN, "asked for by another login"),
        (erased + "confirmed_by = 'cli:bob'", FaultKind.ALTERED_COLUMN, "e1 was carried out by cli:ada"),
        (erased + "confirmed_by = 'cli:ada', confirmed_login = 'x'", FaultKind.ALTERED_COLUMN, "by another login"),
        ("INSERT INTO warden.erasures (id, tenant, requested_at) VALUES ('e9', 'acme', now() - interval '1 d')",
         FaultKind.INSERTION, "e9 that nobody asked for"),
    ):  # fmt: skip
        query(desk.dsn, statement)
        (fault,) = check(desk.dsn, desk.directory / "anchor", later=later).faults
        assert (fault.kind, words in fault.detail) == (kind, True), (statement, fault.detail)
        for table in ("erasures", "legal_holds"):
            query(desk.dsn, f"DELETE FROM warden.{table}")
            query(desk.dsn, f"INSERT INTO warden.{table} SELECT * FROM warden.kept_{table}")
