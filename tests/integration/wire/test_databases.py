"""One sidecar, databases of two jurisdictions: whatever is recorded of a tenant goes where its rules say."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.postgres import Server, prepare, query
from tests.support.sidecar import INFER, Sidecar, echo, final, launch, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

# Where the journal may lie, and where the records: the pod is in the EU.
HERE = {"processing": ["EU"], "storage": ["EU", "US"], "telemetry": "withheld"}
TENANTS = {
    "overseas": HERE | {"records": ["US"]},
    "at-home": HERE,
    "never-here": HERE | {"storage": ["US"]},
    "nowhere": HERE | {"storage": ["EU", "CH"], "records": ["CH"]},
}


SPACE = 8 * 2**20  # of the journals together: a half for each database's
LARGE = b"prompt " * 40_000


@pytest.fixture(scope="module")
def us(wire: str, postgres: Server) -> str:  # one for each: their sidecars share no root key
    dsn = postgres.create_database()
    prepare(dsn, jurisdiction="US")
    return dsn


@pytest.fixture(scope="module")
def both(
    wire: str, us: str, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp(f"databases-{wire}")
    bundle = write_bundle(directory)
    regions = bundle / "bundle.yaml"
    regions.write_text(regions.read_text().replace("regions:", "regions:\n  eu-central-2: {jurisdiction: CH}", 1))
    for name, residency in TENANTS.items():
        audit = {"level": "full", "retention": "30d"}
        document = {"tenant": name, "plan": "ample", "status": "active", "models": ["*"], "audit": audit}
        (bundle / "tenants" / f"{name}.yaml").write_text(json.dumps(document | {"residency": residency}))
    key = directory / "us" / "root.key"
    key.parent.mkdir()
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    further = {
        "databases": {"US": {"dsn": us, "key_file": str(key)}},
        "journal": {"max_bytes": SPACE, "segment_bytes": SPACE // 8, "min_free": "1MiB", "tenant_share": 1.0},
    }
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    sidecar = launch(directory / "stack", wire, parts, bundle, overrides={"audit": further})
    yield sidecar
    sidecar.close()


def recorded(dsn: str, call_id: str) -> list[tuple[Any, ...]]:
    return query(dsn, "SELECT tenant, outcome, reason, status FROM warden.audit_calls WHERE call_id = %s", call_id)


def only_in(there: str, elsewhere: str, call_id: str) -> tuple[Any, ...]:
    """The call's one record, which is in one database and not in the other."""
    (found,) = eventually(lambda: recorded(there, call_id), what=f"the record of {call_id}", within_s=60)
    assert recorded(elsewhere, call_id) == []
    return found


def test_each_tenants_calls_go_to_its_own_database(both: Sidecar, us: str) -> None:
    eu = both.parts.postgres_dsn
    with both.bare() as bare:
        over = bare.unary(echo(b"across the sea"), both.headers("overseas"))
        home = bare.unary(echo(b"here"), both.headers("at-home"))
        stream = bare.stream([slow(4)], both.headers("overseas"))
        message_id = next(response.infer_response.id or "unnamed" for response in stream if final(response))
        assert message_id
        ended = stream.answer()
    assert (over.code, home.code, ended.code) == ("OK", "OK", "OK")
    assert only_in(us, eu, over.call_id)[:2] == ("overseas", "completed")
    assert only_in(eu, us, home.call_id)[:2] == ("at-home", "completed")
    ((stored,),) = eventually(
        lambda: query(us, "SELECT call_id FROM warden.audit_calls WHERE model = 'slow' AND outcome = 'completed'"),
        what="the stream's record", within_s=60,
    )  # fmt: skip
    assert stored.startswith(ended.call_id)
    assert recorded(eu, stored) == []


def test_so_do_its_refusals_however_early_they_come(both: Sidecar, us: str) -> None:
    eu = both.parts.postgres_dsn
    with both.bare() as bare:
        malformed = bare.unary(b"\xff\xff", both.headers("overseas"))
        barred = bare.unary(b"", both.headers("overseas"), path=INFER.rpartition("/")[0] + "/TraceSetting")
        foreign = bare.unary(echo(), both.headers("never-here"))
        lost = bare.unary(echo(), both.headers("nowhere"))
        unknown = bare.unary(echo(), {"authorization": "Bearer nobody"})
    assert only_in(us, eu, malformed.call_id)[2] == "REQUEST_MALFORMED"
    assert only_in(us, eu, barred.call_id)[2] == "METHOD_NOT_ALLOWED"
    # The journal is storage too: what may lie in the US alone can't be served here, and that is told there.
    assert only_in(us, eu, foreign.call_id)[2] == "RESIDENCY_STORAGE"
    # Where no database here may have it there is no default; its refusal, without content, is the pod's own.
    assert lost.told().reason == "RESIDENCY_STORAGE"
    assert "here it would go to EU or US; allowed: CH" in lost.text
    assert only_in(eu, us, lost.call_id)[2] == "RESIDENCY_STORAGE"
    assert only_in(eu, us, unknown.call_id)[0] == ""


def test_what_is_no_tenants_record_is_the_pods_own(both: Sidecar, us: str) -> None:
    kinds = "SELECT DISTINCT kind FROM warden.audit_events WHERE kind IN ('bundle_loaded', 'journal_opened')"
    eventually(lambda: len(query(both.parts.postgres_dsn, kinds)) == 2, what="the pod's events", within_s=60)
    # Only what is of its own journal.
    eventually(lambda: query(us, kinds) == [("journal_opened",)], what="its journal's event", within_s=60)
    assert query(us, "SELECT count(*) FROM warden.bundles") == [(0,)]


def test_each_database_is_shown_by_itself(both: Sidecar) -> None:
    for jurisdiction in ("EU", "US"):
        eventually(
            lambda of=jurisdiction: both.metric("warden_ship_database_up", jurisdiction=of) == 1,
            what=f"the database of {jurisdiction}", within_s=60,
        )  # fmt: skip
        assert both.metric("warden_ship_tampered", jurisdiction=jurisdiction) == 0


def test_one_that_stays_away_fills_its_own_journal_and_no_other(both: Sidecar, us: str, postgres: Server) -> None:
    """Only its tenants are refused, once its part is full; the others' calls are served and stored all the while."""
    journal: Path = both.stack.directory / "journal"
    kept: dict[str, set[str]] = {"overseas": set(), "at-home": set()}

    def call(tenant: str) -> bool:
        answer = bare.stream([slow(1, prompt=LARGE)], both.headers(tenant))
        (first, *_) = list(answer)
        refused = first.error_message
        assert not refused or refused.startswith("[AUDIT_UNAVAILABLE]")
        if not refused:
            kept[tenant].add(answer.answer().call_id)
        return not refused

    def missing(tenant: str) -> set[str]:
        dsn = us if tenant == "overseas" else both.parts.postgres_dsn
        found = query(dsn, "SELECT call_id FROM warden.audit_calls WHERE tenant = %s AND model = 'slow'", tenant)
        assert len(found) == len({row[0] for row in found})
        return kept[tenant] - {row[0].partition("/")[0] for row in found}

    with both.bare() as bare:
        with postgres.closed(us):
            eventually(lambda: not call("overseas"), what="its journal to be full", within_s=60)
            assert all(call("at-home") for _ in range(4))
            for _ in range(SPACE // len(LARGE) // 2):  # more than its part holds: what is stored makes room
                eventually(lambda: call("at-home"), what="the others to go on", within_s=60)
            assert not call("overseas")
            assert both.metric("warden_journal_pressure", jurisdiction="US") == 3
            assert both.metric("warden_journal_pressure", jurisdiction="EU") < 3
            assert all(check["ok"] for check in both.ready().values())
            assert "full" in both.ready()["journal US"]["detail"]
            assert sum(path.stat().st_size for path in journal.rglob("*.seg")) < SPACE + 2**20
            eventually(lambda: missing("at-home") == set(), what="the others to be stored", within_s=60)
        eventually(lambda: call("overseas"), what="its tenants to be served again", within_s=120)

    eventually(lambda: missing("overseas") == set(), what="all of its own", within_s=60)
