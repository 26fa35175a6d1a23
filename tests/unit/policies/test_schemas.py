"""JSON Schemas for editors: what ships passes them, and they refuse what is wrong at sight."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from policies.schemas import CEDAR_SCHEMAS, cedar_schemas, schemas
from policies.yamlfile import Document, read
from sidecar.cli.policy import app
from tests.support.policy import DEMO_BUNDLE

SCHEMAS = schemas()
DOCUMENTS = [
    (name, path) for name, schema in SCHEMAS.items() for path in sorted(DEMO_BUNDLE.glob(schema["x-warden-files"]))
]


def data(path: Path) -> Any:
    found = read(path)
    assert isinstance(found, Document)
    return found.data


def errors(name: str, document: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMAS[name]).iter_errors(document)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize(("name", "path"), DOCUMENTS, ids=[str(path.name) for _, path in DOCUMENTS])
def test_what_ships_passes(name: str, path: Path) -> None:
    assert errors(name, data(path)) == []


def test_every_kind_of_document_is_among_what_ships() -> None:
    assert {name for name, _ in DOCUMENTS} == set(SCHEMAS)


@pytest.mark.parametrize(
    ("name", "file", "path", "value"),
    [
        ("bundle.schema.json", "bundle.yaml", ("regions", "eu-west-1", "jurisdiktion"), "EU"),
        ("models.schema.json", "models.yaml", ("chat", "contract"), "vlm"),
        ("models.schema.json", "models.yaml", ("chat", "pool"), {"kv_memory": "lively"}),
        ("plans.schema.json", "plans.yaml", ("gold", "kv_memory"), "8GB"),
        ("plans.schema.json", "plans.yaml", ("gold", "kv_memory"), None),
        ("plans.schema.json", "plans.yaml", ("gold", "concurrency"), 0),
        ("tenant.schema.json", "tenants/acme.yaml", ("status",), "paused"),
        ("tenant.schema.json", "tenants/acme.yaml", ("from",), "2026-12-01 09:00"),
        ("tenant.schema.json", "tenants/acme.yaml", ("models",), [{"modle": "chat"}]),
        ("tenant.schema.json", "tenants/acme.yaml", ("audit", "retention"), "a year"),
        ("cases.schema.json", "tests/demo.yaml", (0, "expect"), "RATE_REQUESTS"),
    ],
)
def test_what_is_wrong_at_sight_is_refused(name: str, file: str, path: tuple[str | int, ...], value: object) -> None:
    document = deepcopy(data(DEMO_BUNDLE / file))
    inner = document
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    assert errors(name, document)


def test_unlimited_and_dated_limits_are_offered() -> None:
    plan = deepcopy(data(DEMO_BUNDLE / "plans.yaml"))
    plan["gold"] = dict.fromkeys(plan["gold"], "unlimited")
    assert errors("plans.schema.json", plan) == []
    tenant = deepcopy(data(DEMO_BUNDLE / "tenants" / "acme.yaml"))
    tenant |= {
        "models": ["chat", {"model": "rag", "until": "2027-01-01", "shadow": True}],
        "limits": [{"concurrency": 4}, {"from": "2026-12-01T09:00+01:00", "tokens": "unlimited"}],
        "keys": {"ci": {"models": ["chat"], "data_class": "phi"}},
    }
    assert errors("tenant.schema.json", tenant) == []


def test_the_command_writes_them(tmp_path: Path) -> None:
    run = CliRunner()
    out = run.invoke(app, ["schema", str(tmp_path / "schemas")])
    assert out.exit_code == 0, out.output
    assert {path.name for path in (tmp_path / "schemas").iterdir()} == {*SCHEMAS, *CEDAR_SCHEMAS}
    assert json.loads((tmp_path / "schemas" / "tenant.schema.json").read_text()) == SCHEMAS["tenant.schema.json"]
    told = json.loads(run.invoke(app, ["schema"]).output)
    assert told == {**SCHEMAS, **cedar_schemas()}
    (tmp_path / "file").write_text("")
    refused = run.invoke(app, ["schema", str(tmp_path / "file" / "in")])
    assert refused.exit_code == 2
