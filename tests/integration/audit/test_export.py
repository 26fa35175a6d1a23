"""audit.export, audit.verify_export: what is taken out proves itself offline; whatever is changed in it is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.evidence import FaultKind
from audit.verify import Report
from audit.verify_export import verify_export
from sidecar.cli.evidence import app
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import fill, keys
from tests.support.store import FakeJournal, completed, refused


def run(config: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--config", str(config)])


@pytest.fixture
def config(dsn: str, tmp_path: Path) -> Path:
    journal = FakeJournal()
    journal.append(
        *completed(call_id="a1", subject="alice", request_id="=1+1"), *completed(call_id="b1", subject="bob"),
        refused(call_id="a2", subject="alice", conversation="=cmd|' /C calc'!A0"),
    )  # fmt: skip
    fill(dsn, tmp_path, journal=journal, calls=3, rounds=1)
    return write_config(tmp_path, dsn)


@pytest.fixture
def made(config: Path, tmp_path: Path) -> Path:
    out = tmp_path / "export"
    done = run(config, "export", "-o", str(out), "--reveal", "--reason", "court", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["unproven"] == 0
    return out


def check(out: Path) -> Report:
    return verify_export(out, keys)


def test_an_export_proves_itself_without_the_database(made: Path, config: Path, tmp_path: Path) -> None:
    report = check(made)
    assert (report.faults, report.records, report.unsigned, report.checkpoints) == ([], 6, 0, 1)
    trusted = tmp_path / "keys.txt"  # handed to an auditor by another way
    told = run(config, "verifiers")
    manifest = json.loads((made / "manifest.json").read_text())
    assert "limit" not in manifest["query"], "an export is whole, and says nothing else of itself"
    assert set(told.stdout.split()) >= {*manifest["keys"], manifest["signer"]}
    trusted.write_text(told.stdout)
    named = [json.loads(line) for line in run(config, "verifiers", "--json").stdout.splitlines()]
    assert [each["verifier"] for each in named] == told.stdout.split()
    assert named[0]["log"] == "fleet"
    done = CliRunner().invoke(app, ["verify", str(made), "--keys", str(trusted), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["ok"]) == (0, True), done.output
    assert run(config, "verify", str(made)).exit_code == 0
    (tmp_path / "none.txt").write_text("")
    assert CliRunner().invoke(app, ["verify", str(made), "--keys", str(tmp_path / "none.txt")]).exit_code == 1


def test_everything_about_one_subject_and_nothing_else(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "gdpr15"
    done = run(
        config, "export", "-o", str(out), "--tenant", "acme", "--subject", "alice", "--reveal", "--reason", "asked"
    )
    assert done.exit_code == 0, done.output
    records = [json.loads(line)["record"] for line in (out / "records.ndjson").read_text().splitlines()]
    assert {record["call_id"] for record in records} == {"a1", "a2"}
    assert {record["subject"] for record in records} == {"alice"}
    assert check(out).faults == []


def test_content_leaves_only_with_a_reason(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "plain"
    assert run(config, "export", "-o", str(out), "--reveal").exit_code == 2
    assert run(config, "export", "-o", str(out)).exit_code == 0
    text = (out / "records.ndjson").read_text()
    assert "library" not in text
    assert "record_key" not in text
    assert check(out).faults == []
    assert run(config, "export", "-o", str(out)).exit_code == 2  # not empty


def test_a_spreadsheet_takes_no_text_for_a_formula(made: Path) -> None:
    table = (made / "records.csv").read_text()
    assert "'=cmd" in table
    assert ",=cmd" not in table


def edit(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Path], None]:
    def act(out: Path) -> None:
        lines = [json.loads(line) for line in (out / name).read_text().splitlines()]
        changed = change(lines)
        (out / name).write_text("".join(json.dumps(line) + "\n" for line in (lines if changed is None else changed)))

    return act


def manifest(out: Path) -> None:
    data = json.loads((out / "manifest.json").read_text())
    data["records"] -= 1
    (out / "manifest.json").write_text(json.dumps(data))


CHANGES: list[tuple[str, FaultKind, Callable[[Path], None]]] = [
    ("a column", FaultKind.ALTERED_COLUMN, edit("records.ndjson", lambda a: a[0]["record"].update(outcome="failed"))),
    ("a time", FaultKind.ALTERED_COLUMN,
     edit("records.ndjson", lambda a: a[0]["record"].update(started_at="2020-01-01T00:00:00Z"))),
    ("a prompt", FaultKind.ALTERED_COLUMN, edit("records.ndjson", lambda a: a[-1]["record"].update(prompt="other"))),
    ("sealed bytes", FaultKind.ALTERED_COLUMN,
     edit("records.ndjson", lambda a: a[0]["sealed"].update(prompt_sealed="AAAA"))),
    ("a leaf", FaultKind.EDIT, edit("records.ndjson", lambda a: a[0].update(leaf=a[1]["leaf"]))),
    ("a record is left out", FaultKind.DELETION, edit("records.ndjson", lambda a: a[1:])),
    ("a record is there twice", FaultKind.INSERTION, edit("records.ndjson", lambda a: [*a, a[0]])),
    ("a head", FaultKind.REPLACED_CHECKPOINT, edit("checkpoints.ndjson", lambda a: a[0].update(size=2))),
    ("a proof", FaultKind.EDIT, edit("proofs.ndjson", lambda a: a[0].update(path=a[1]["path"]))),
    ("the manifest", FaultKind.REPLACED_CHECKPOINT, manifest),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "change"), CHANGES, ids=[name for name, *_ in CHANGES])
def test_what_was_changed_is_named(made: Path, name: str, kind: FaultKind, change: Callable[[Path], None]) -> None:
    change(made)
    assert kind in {fault.kind for fault in check(made).faults}


def test_what_is_no_export_is_told(config: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run(config, "verify", str(tmp_path / "empty")).exit_code == 2
