"""Calls through a real sidecar, its bundle replaced meanwhile: explained under their own, replayed under others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from policies.bundle import Bundle, load
from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.cli.policy import app
from tests.support.bundle import write_bundle
from tests.support.postgres import Server, query
from tests.support.sidecar import Bare, Sidecar, echo, launch, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

CARD = b"pay with 4111 1111 1111 1111"
GUARDS = [
    {"id": "no-cards", "on": "prompt", "classes": ["card"], "then": "deny"},
    {"id": "not-that", "on": "output", "patterns": ["word4 word5"], "then": "deny"},
]
FORBID = b'@id("no-phi-echo") forbid(principal in Tenant::"acme", action, resource == Model::"echo") '
FORBID += b'when { context.data_class == "phi" };'


@dataclass
class Day:
    """What was called, by name: each call's id as it is recorded; ``old``: a copy of the bundle that is replaced."""

    sidecar: Sidecar
    old: Path
    new: Path
    calls: dict[str, str]
    digests: tuple[str, str]
    waiting: list[str]  # calls as "phi", until the new bundle was in force

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(app, [*arguments, "--json", "--config", str(self.sidecar.stack.config)])
        assert result.exit_code in (0, 1), result.output
        return result.exit_code, json.loads(result.stdout)

    def changed(self, *arguments: str) -> dict[str, tuple[str, str, str]]:
        """Of the calls of this day; by their names."""
        _, told = self.run("replay", *arguments, "--since", "1h")
        names = {call_id: name for name, call_id in self.calls.items()} | dict.fromkeys(self.waiting, "phi")
        return {names[each["call_id"]]: (each["old"], each["new"], each["rule"]) for each in told["changed"]}


def _digest(directory: Path) -> str:
    found = load(directory)
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found.digest


def _replace(bundle: Path) -> None:
    """acme's health data may no longer be echoed, cards only be flagged, anything be said; birch may call `echo`."""
    rules = YAML(typ="safe")
    acme = bundle / "tenants" / "acme.yaml"
    changed = {**rules.load(acme), "guards": [{**GUARDS[0], "then": "flag"}]}
    birch = (bundle / "tenants" / "birch.yaml").read_text()
    (bundle / "tenants" / "birch.yaml").write_text(birch.replace("models: [chat, vision]", "models: [chat, echo]"))
    acme.write_text(json.dumps(changed))
    (bundle / "access" / "echo.cedar").write_bytes(FORBID)


def _record(sidecar: Sidecar) -> dict[str, str]:
    """A day in small: allowed, refused for each kind of reason, cut, and never a bundle's to decide."""
    calls: dict[str, str] = {}

    def stream(bare: Bare, name: str, message: bytes) -> None:
        stream = bare.stream([message], sidecar.headers())
        calls[name] = f"{stream.answer().call_id}/1"

    with sidecar.bare() as bare:
        for name, tenant, more in (
            ("plain", "acme", {}),
            ("phi", "acme", {"x-data-class": "phi"}),
            ("undeclared", "acme", {"x-data-class": "phy"}),
            ("foreign", "birch", {}),
            ("elsewhere", "stored-in-us", {}),
            ("one", "one-a-minute", {}),
            ("too many", "one-a-minute", {}),
        ):
            calls[name] = bare.unary(echo(), sidecar.headers(tenant, **more)).call_id
        calls["nobody"] = bare.unary(echo(), {}).call_id
        stream(bare, "said", slow(2, prompt=b"hello"))
        stream(bare, "card", slow(2, prompt=CARD))
        stream(bare, "cut", slow(9, prompt=b"go"))
    for call_id in calls.values():
        sidecar.record(call_id)
    return calls


@pytest.fixture(scope="module")
def day(
    wire: str, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Day]:
    directory = tmp_path_factory.mktemp(f"day-{wire}")
    bundle = write_bundle(directory / "policy")
    acme = bundle / "tenants" / "acme.yaml"
    acme.write_text(json.dumps({**YAML(typ="safe").load(acme), "guards": GUARDS}))
    old = Path(shutil.copytree(bundle, directory / "old"))
    sidecar = launch(
        directory / "sidecar", wire, Parts(otlp, triton.running.addresses, postgres.create_database()), bundle
    )
    try:
        calls = _record(sidecar)
        new = sidecar.stack.bundle  # its own copy, which it watches
        _replace(new)
        digests = _digest(old), _digest(new)
        with sidecar.bare() as bare:
            ask, waiting = {"x-data-class": "phi"}, list[str]()

            def refused() -> str:
                answer = bare.unary(echo(), sidecar.headers("acme", **ask))
                if answer.code == "PERMISSION_DENIED":
                    return answer.call_id
                waiting.append(answer.call_id)
                return ""

            calls["phi again"] = str(eventually(refused, what="the new bundle in force", within_s=60))
        sidecar.record(calls["phi again"])
        stored = "SELECT 1 FROM warden.bundles WHERE digest = %s"  # written beside the calls, so it may come after one
        eventually(
            lambda: query(sidecar.parts.postgres_dsn, stored, digests[1]),
            what="the new bundle in the database",
            within_s=30,
        )
        yield Day(sidecar, old, new, calls, digests, waiting)
    finally:
        sidecar.close()


def test_a_call_is_explained_under_the_bundle_that_was_in_force_then(day: Day) -> None:
    old, new = day.digests
    code, told = day.run("explain", "--call", day.calls["phi"])
    assert (code, told["verdict"], told["bundle"], told["same"]) == (0, "allow", old, True)
    assert told["recorded"]["bundle"] == old
    code, told = day.run("explain", "--call", day.calls["phi again"])
    assert (code, told["reason"], told["rule"], told["bundle"], told["same"]) == (
        1, "POLICY_FORBIDS", "no-phi-echo", new, True,
    )  # fmt: skip
    code, told = day.run("explain", str(day.new), "--call", day.calls["phi"])
    assert (code, told["rule"], told["same"]) == (1, "no-phi-echo", False)


def test_every_recorded_call_is_explained_as_it_was_decided(day: Day) -> None:
    for name, call_id in day.calls.items():
        _, told = day.run("explain", "--call", call_id)
        record = day.sidecar.record(call_id)
        assert told["same"], name
        assert told["recorded"]["bundle"] == record["bundle"]
        decided = name not in ("nobody", "too many", "card")
        assert not decided or told["rule"] == record["rule"], name


def test_its_content_is_put_to_the_guards_only_where_that_is_asked_for_and_why(day: Day) -> None:
    code, told = day.run("explain", "--call", day.calls["card"])
    assert (code, told["verdict"], told["recorded"]["verdict"]) == (0, "allow", "POLICY_FORBIDS")
    content = ("--content", "--reason", "a complaint")
    code, told = day.run("explain", "--call", day.calls["card"], *content)
    assert (code, told["reason"], told["rule"], told["same"]) == (1, "POLICY_FORBIDS", "guards.no-cards", True)
    code, told = day.run("explain", "--call", day.calls["cut"], *content)
    assert (code, told["verdict"], told["rule"], told["same"]) == (1, "cut", "guards.not-that", True)
    assert CARD.decode() not in json.dumps(told)
    events = query(
        day.sidecar.parts.postgres_dsn,
        "SELECT reason, detail ->> 'content' FROM warden.audit_events WHERE kind = 'policy_explain' AND reason <> ''",
    )
    assert events == [("a complaint", "true")] * 2
    result = CliRunner().invoke(app, ["explain", "--call", "x", "--content"])
    assert (result.exit_code, "--reason" in result.stderr) == (2, True)


def test_exactly_the_calls_that_would_change_are_named(day: Day) -> None:
    content = ("--content", "--reason", "before it is rolled out")
    access = {
        "phi": ("allow", "POLICY_FORBIDS", "no-phi-echo"),
        "foreign": ("MODEL_NOT_FOUND", "allow", "tenants/birch.yaml:models[1]"),
    }
    assert day.changed(str(day.new), *content) == {
        **access,
        "card": ("POLICY_FORBIDS", "allow", "tenants/acme.yaml:models[0]"),
        "cut": ("cut", "allow", "tenants/acme.yaml:models[0]"),
    }
    assert day.changed(str(day.old), *content) == {
        "phi again": ("POLICY_FORBIDS", "allow", "tenants/acme.yaml:models[0]")
    }
    _, told = day.run("replay", str(day.new), "--since", "1h")
    assert {each["call_id"] for each in told["changed"]} == {*day.waiting, *(day.calls[name] for name in access)}
    assert told["undecided"] == {"its content was not asked for": told["counts"]["content not judged"]}
    assert told["counts"]["content not judged"] >= 3, "said, card and cut, apart"
