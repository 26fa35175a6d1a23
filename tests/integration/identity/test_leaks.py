"""`warden keys leaked`: what is found in a text is ended, recorded, and never told again."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sidecar.cli import keys as keys_command
from sidecar.identity import keys
from tests.integration.identity.test_commands import answer, configure
from tests.support.postgres import query

pytestmark = pytest.mark.integration


@pytest.fixture
def config(dsn: str, tmp_path: Path) -> Path:
    return configure(tmp_path, dsn)


def leaked(config: Path, text: str, *more: str) -> Result:
    return CliRunner().invoke(keys_command.app, ["leaked", "--json", "--config", str(config), *more], input=text)


def results(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def issue(config: Path, name: str) -> dict[str, Any]:
    return answer(keys_command.app, config, "issue", "--tenant", "acme", "--name", name)


def state(config: Path, key_id: str) -> str:
    return str(answer(keys_command.app, config, "show", key_id)["state"])


def test_a_key_in_a_report_is_revoked_and_recorded_with_where(config: Path, dsn: str) -> None:
    made, kept = issue(config, "ci"), issue(config, "other")
    report = json.dumps([{"token": made["key"], "type": "warden_api_key", "source": "content"}])
    done = leaked(config, report, "--where", "https://git.example/acme/app/commit/1")
    assert (done.exit_code, results(done)) == (
        0, [{"id": made["id"], "result": "revoked", "tenant": "acme", "name": "ci"}],
    )  # fmt: skip
    assert made["key"] not in done.output
    assert (state(config, made["id"]), state(config, kept["id"])) == ("revoked", "active")
    again = leaked(config, report)
    assert (again.exit_code, results(again)[0]["result"]) == (0, "already")
    events = query(dsn, "SELECT detail->>'leaked', detail::text FROM warden.audit_events WHERE kind = 'key.revoked'")
    assert [where for where, _ in events] == ["https://git.example/acme/app/commit/1"]  # once
    assert made["key"][-49:] not in events[0][1]


def test_the_old_secret_of_a_rotation_ends_and_the_new_one_works_on(config: Path, dsn: str) -> None:
    made = issue(config, "ci")
    new = answer(keys_command.app, config, "rotate", made["id"], "--grace", "24h")
    done = leaked(config, made["key"])
    assert results(done)[0]["result"] == "ended"
    assert state(config, made["id"]) == "active"
    ((current, old),) = query(dsn, "SELECT secret_mac, rotated_mac FROM warden.api_keys WHERE id = %s", made["id"])
    assert bytes(old) != bytes(current)  # kept, so that it is known for what has ended
    pepper, key = keys.read_pepper((config.parent / "pepper").read_bytes()), keys.parse(new["key"].encode())
    assert not isinstance(pepper, str)
    assert key is not None
    assert bytes(current) == keys.mac(pepper, key.secret)
    assert results(leaked(config, made["key"]))[0]["result"] == "already"
    assert results(leaked(config, new["key"]))[0]["result"] == "revoked"


def test_nobody_is_believed_who_only_knows_an_id(config: Path) -> None:
    made = issue(config, "ci")
    forged = keys.generate("live", secrets.token_bytes)
    text = keys.ApiKey("live", made["id"], forged.secret).text()
    done = leaked(config, text)
    assert (done.exit_code, results(done)) == (1, [{"id": made["id"], "result": "unknown"}])
    elsewhere = keys.parse(made["key"].encode())
    assert elsewhere is not None
    other = keys.ApiKey("test", made["id"], elsewhere.secret).text()
    assert leaked(config, other).exit_code == 1
    assert state(config, made["id"]) == "active"


def test_where_may_hold_no_key_and_nothing_found_is_exit_1(config: Path) -> None:
    made = issue(config, "ci")
    refused = leaked(config, made["key"], "--where", f"https://x.example/?key={made['key']}")
    assert refused.exit_code == 2
    assert made["key"] not in refused.output
    assert state(config, made["id"]) == "active"
    assert leaked(config, "nothing here").exit_code == 1
