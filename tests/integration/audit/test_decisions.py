"""A recorded call explained under the bundle that decided it, and a day replayed under another, on a real Postgres."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit import store
from audit.record import Refused
from audit.spool import spool_bundle
from policies.bundle import Bundle, load
from sidecar.cli.policy import app
from tests.integration.audit.test_search import write_config
from tests.support.policy import DEMO_BUNDLE, demo_bundle
from tests.support.postgres import query
from tests.support.store import FakeJournal, Shipping, completed, event, facts, wait_until

AT = datetime.now(UTC).replace(microsecond=0)
ASKED = {
    "tenant": "acme", "principal": "alice", "principal_kind": "jwt", "roles": ["tenant"], "peer": "10.0.0.1:1",
    "method": "/inference.GRPCInferenceService/ModelInfer", "subject": "",
}  # fmt: skip


@pytest.fixture
def recorded(dsn: str, tmp_path: Path) -> Path:
    """Four calls under the demo's bundle, stored with it; the configuration that finds them."""
    bundle = demo_bundle()
    spool_bundle(tmp_path, bundle.digest, bundle.content())
    more = {**ASKED, "bundle": bundle.digest}
    journal = FakeJournal()
    journal.append(
        event("bundle_loaded", digest=bundle.digest, previous="", mode="enforce"),
        *completed(AT - timedelta(minutes=4), call_id="p1", model="chat", rule="tenants/acme.yaml:models[0]", **more),
        *completed(
            AT - timedelta(minutes=3), call_id="p2", model="chat", data_class="phi", classes=["phi"],
            rule="tenants/acme.yaml:models[0]", **more,
        ),
        Refused(
            facts(
                AT - timedelta(minutes=2), call_id="p3", model="rag", data_class="phi", classes=["phi"],
                rule="phi-not-in-rag", **more,
            ),
            "POLICY_FORBIDS", 7,
        ),
        Refused(facts(AT - timedelta(minutes=1), call_id="p4", rule="", **more), "TOKEN_EXPIRED", 16),
    )  # fmt: skip
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 5)
    return write_config(tmp_path, dsn)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_a_past_call_is_explained_under_the_bundle_that_decided_it(recorded: Path, tmp_path: Path, dsn: str) -> None:
    config = ("--config", str(recorded))
    code, out, err = run("explain", "--call", "p3", "--json", *config)
    told = json.loads(out)
    assert (code, err) == (1, "")
    assert (told["verdict"], told["reason"], told["rule"]) == ("deny", "POLICY_FORBIDS", "phi-not-in-rag")
    assert (told["bundle"], told["same"]) == (demo_bundle().digest, True)
    code, out, _ = run("explain", "--call", "p2", *config)
    assert code == 0
    assert "recorded: allow  by tenants/acme.yaml:models[0]\n" in out
    # Since replaced by another, under which it would be otherwise: asked for, that is told as well.
    other = changed(tmp_path)
    code, out, _ = run("explain", str(other), "--call", "p2", "--json", *config)
    told = json.loads(out)
    assert (code, told["rule"], told["same"]) == (1, "phi-not-in-rag", False)
    assert run("explain", "--call", "none", *config)[0] == 1
    looks = query(dsn, "SELECT count(*) FROM warden.audit_events WHERE kind = 'policy_explain'")
    assert looks == [(4,)], "each look is a record"


def changed(directory: Path) -> Path:
    """The demo's bundle, with health data kept out of chat instead of rag."""
    other = Path(shutil.copytree(DEMO_BUNDLE, directory / "other"))
    policy = other / "access" / "health-data.cedar"
    policy.write_text(policy.read_text().replace('Model::"rag"', 'Model::"chat"'))
    assert isinstance(load(other), Bundle)
    return other


def test_a_replay_reports_the_calls_that_would_change_and_no_others(recorded: Path, tmp_path: Path) -> None:
    config = ("--config", str(recorded), "--json")
    code, out, err = run("replay", str(DEMO_BUNDLE), "--since", "1h", *config)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["changed"] == []
    assert told["counts"] == {"same": 1, "changed": 0, "not decided by a bundle": 1, "content not judged": 2}
    assert told["undecided"] == {"its content was not asked for": 2}, "the rule on phi looks at every prompt of an llm"
    assert told["since"] < told["until"]
    code, out, _ = run("replay", str(changed(tmp_path)), "--since", "1h", *config)
    assert code == 1
    told = {call["call_id"]: (call["old"], call["new"], call["rule"]) for call in json.loads(out)["changed"]}
    assert told == {
        "p2": ("allow", "POLICY_FORBIDS", "phi-not-in-rag"),
        "p3": ("POLICY_FORBIDS", "allow", "tenants/acme.yaml:models[2]"),
    }
    assert run("replay", str(DEMO_BUNDLE), "--since", "yesterday", *config)[0] == 2


def test_a_bundle_that_was_never_stored_is_said_to_be_missing(recorded: Path, dsn: str) -> None:
    engine = store.connect(dsn, application="test")
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE warden.bundles DISABLE TRIGGER ALL")  # as its owner alone may
        connection.exec_driver_sql("DELETE FROM warden.bundles")
    engine.dispose()
    code, _, err = run("explain", "--call", "p1", "--config", str(recorded))
    assert code == 1
    assert "has no bundle sha256:" in err
