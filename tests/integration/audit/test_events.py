"""`warden audit events` on a real Postgres: who looked at what, and what else is recorded beside calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from audit.roles import RoleKind
from sidecar.cli.evidence import app
from tests.integration.audit.test_roles import Office
from tests.integration.audit.test_search import AT, filled, run, write_config
from tests.support.postgres import query

__all__ = ["filled"]


@pytest.fixture
def config(filled: str, tmp_path: Path) -> Path:
    """What an officer with a login of their own reads with, after two looks: one at acme's content."""
    own = Office(filled, tmp_path).enroll("ada", RoleKind.OFFICER)
    path = write_config(tmp_path, own)
    for asked in (["--tenant", "birch"], ["--call", "c4", "--reveal", "--reason", "ticket 12"]):
        assert run(app, "search", "--config", str(path), *asked).exit_code == 0
    return path


def events(config: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run(app, "events", "--config", str(config), "--json", *arguments)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_who_saw_what_and_why(config: Path) -> None:
    (seen,) = events(config, "--kind", "content_revealed")
    assert (seen["reason"], seen["detail"]["calls"]) == ("ticket 12", ["c4"])
    assert seen["detail"]["login"] == "warden_of_ada"
    assert seen == events(config, "--tenant", "acme")[-1]
    assert {each["kind"] for each in events(config, "--tenant", "birch")} == {"audit_search"}
    assert events(config, "--actor", "cli:nobody") == []


def test_the_look_itself_is_an_event(config: Path) -> None:
    events(config, "--sidecar", "pod-1")
    newest = events(config)[0]
    assert (newest["kind"], newest["detail"]["of"]) == ("audit_search", "events")
    assert newest["detail"]["filter"] == {"sidecar": "pod-1", "limit": 100}


def test_pages_hold_each_event_once(config: Path) -> None:
    for _ in range(4):
        newest = events(config)
    until = newest[0]["at"]
    whole = [each["id"] for each in events(config, "--until", until)]
    pages, after = [], []
    while True:
        page = events(config, "--until", until, "--limit", "2", *after)
        pages += [each["id"] for each in page]
        if "next" not in page[-1]:
            break
        after = ["--after", page[-1]["next"]]
    assert pages == whole
    assert len(whole) > 4


def test_a_kind_that_there_is_none_of_is_told_with_those_there_are(config: Path) -> None:
    done = run(app, "events", "--config", str(config), "--kind", "content_reveald")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "none of kind content_reveald; there are" in done.stderr
    assert "content_revealed" in done.stderr
    none_now = run(app, "events", "--config", str(config), "--kind", "content_revealed", "--until", f"{AT:%Y}-01-01Z")
    assert none_now.stderr == "warden: no event fits\n"


@pytest.mark.parametrize(
    "wrong",
    [("--limit", "0"), ("--limit", "10001"), ("--after", "x"), ("--after", "2026-11-30~e"), ("--since", "soon")],
)
def test_what_is_no_question_is_refused(config: Path, wrong: tuple[str, str]) -> None:
    assert run(app, "events", "--config", str(config), *wrong).exit_code == 2


def test_a_terminal_is_safe_from_what_is_recorded(config: Path, filled: str) -> None:
    detail = json.dumps({"t": "\x1b[31m"})
    columns = "id, at, kind, detail"
    query(filled, f"INSERT INTO warden.audit_events ({columns}) VALUES ('x', now(), 'odd', '{detail}') RETURNING 1")
    done = run(app, "events", "--config", str(config), "--kind", "odd")
    assert "t=\ufffd[31m" in done.stdout
    assert "\x1b" not in done.stdout
