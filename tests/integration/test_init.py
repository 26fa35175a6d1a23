"""`warden init` on the real Triton: the draft is accepted as it is, and the steps it prints end in a sidecar."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as kserve
from typer.testing import CliRunner

from policies.bundle import Bundle, load
from sidecar.cli import audit, config, db, keys, policy
from sidecar.cli.demo.ports import free_ports
from sidecar.cli.demo.process import end, spawn, wait_ready
from sidecar.cli.demo.triton import start_triton
from sidecar.cli.main import build
from sidecar.core.model import Contract
from sidecar.identity.mint import SigningKey, load_key
from sidecar.runtime.settings import Settings
from sidecar.runtime.settings import load as load_settings
from tests.support.postgres import JURISDICTION
from tests.support.stack import MODELS, ROOT, Triton, eventually, tensor

pytestmark = pytest.mark.integration

INNER = {"generate", "retrieve"}  # what the ensemble `rag` is made of
PLACE = ("--region", "eu-west-1", "--jurisdiction", JURISDICTION)
CONTRACTS = {
    "stopping": Contract.TRTLLM,
    "chat": Contract.VLLM,
    "slow": Contract.VLLM,
    "rag": Contract.TRTLLM,
}  # the rest: generic


@dataclass(frozen=True, slots=True)
class Drafted:
    directory: Path
    stdout: str
    stderr: str

    @property
    def config(self) -> Path:
        return self.directory / "warden.yaml"

    @property
    def bundle(self) -> Path:
        return self.directory / "bundle"


def run(app: Any, *arguments: str | Path) -> str:
    """A command that must succeed; its stdout."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def draft(triton: Triton, directory: Path, *options: str) -> Drafted:
    arguments = ["init", "--triton", triton.grpc, "--dir", str(directory), *PLACE, *options]
    result = CliRunner().invoke(build("init"), arguments)
    assert result.exit_code == 0, result.output
    return Drafted(directory, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def drafted(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> Drafted:
    return draft(triton, tmp_path_factory.mktemp("init") / "new", "--tenant", "acme")


def test_the_draft_is_accepted_as_it_is(drafted: Drafted) -> None:
    assert run(config.app, "check", drafted.config).endswith("warden.yaml: good\n")
    assert "good (1 tenants" in run(policy.app, "check", drafted.bundle)
    assert ", 0 failed" in run(policy.app, "test", drafted.bundle)


def test_it_names_the_front_models_and_their_contracts(drafted: Drafted) -> None:
    bundle = load(drafted.bundle)
    assert isinstance(bundle, Bundle)
    front = set(MODELS) - INNER
    assert {name: profile.contract for name, profile in bundle.models.items()} == {
        name: CONTRACTS.get(name, Contract.GENERIC) for name in front
    }
    assert "because only ensembles call them: generate, retrieve." in drafted.stderr


def test_it_observes_the_triton_it_was_shown(drafted: Drafted, triton: Triton) -> None:
    settings = load_settings(drafted.config)
    assert (settings.mode, settings.triton.grpc) == ("observe", triton.grpc)
    assert (settings.listen, settings.bounds) == (
        Settings.model_fields["listen"].default,
        Settings.model_fields["bounds"].default,
    )


def test_the_keys_are_secret_and_fit_each_other(drafted: Drafted) -> None:
    directory = drafted.directory / "keys"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("journal.key", "pepper.key", "signing.pem"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    signing = load_key((directory / "signing.pem").read_bytes())
    assert isinstance(signing, SigningKey)
    assert [key["kid"] for key in json.loads((directory / "jwks.json").read_text())["keys"]] == [signing.kid]


def test_the_next_steps_are_told(drafted: Drafted) -> None:
    said = [line.strip() for line in drafted.stdout.splitlines()]
    for step in ("config check", "policy test", "db upgrade", "keys issue --tenant acme", "serve", "audit search"):
        assert any(f"warden {step}" in line for line in said), step
    assert "127.0.0.1:8011" in drafted.stdout


def test_json_and_a_second_time(triton: Triton, tmp_path: Path) -> None:
    assert json.loads(draft(triton, tmp_path, "--json").stdout) == {
        "config": str(tmp_path / "warden.yaml"),
        "bundle": str(tmp_path / "bundle"),
        "models": sorted(set(MODELS) - INNER),
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = CliRunner().invoke(build("init"), ["init", "--triton", triton.grpc, "--dir", str(tmp_path), *PLACE])
    assert again.exit_code == 2
    assert "already there, and not overwritten" in again.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_http_port_is_told_from_the_grpc_one(triton: Triton, tmp_path: Path) -> None:
    directory = str(tmp_path / "new")
    result = CliRunner().invoke(build("init"), ["init", "--triton", triton.http, "--dir", directory, *PLACE])
    assert result.exit_code == 3
    assert "is this its gRPC port (8001), not the HTTP one (8000)?" in result.stderr


# --- the steps it prints, taken ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    drafted: Drafted
    grpc: str
    key: str

    def records(self) -> list[dict[str, Any]]:
        found = run(audit.app, "search", "--since", "1h", "--json", "--config", self.drafted.config)
        return [json.loads(line) for line in found.splitlines()]


@pytest.fixture
def running(triton: Triton, dsn: str, tmp_path: Path) -> Iterator[Running]:
    """`warden serve` with a draft in which only the database's address and the ports were changed."""
    made = draft(triton, tmp_path)
    grpc, admin = free_ports(2)
    changes = {
        "postgresql://warden@127.0.0.1:5432/warden": json.dumps(dsn),
        "127.0.0.1:8011 #": f"127.0.0.1:{grpc} #",
        "127.0.0.1:8012 #": f"127.0.0.1:{admin} #",
    }
    text = made.config.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    made.config.write_text(text)
    run(db.app, "upgrade", "--config", made.config)
    issued = run(keys.app, "issue", "--tenant", "main", "--name", "first", "--json", "--config", made.config)
    log = tmp_path / "serve.log"
    process = spawn(
        [sys.executable, "-m", "sidecar.cli.main", "serve", "--config", made.config, "--wire", "grpc"],
        log=log,
        env=dict(os.environ),
        cwd=tmp_path,
        on_parent_death=signal.SIGKILL,
    )
    try:
        wait_ready(process, lambda: _ready(admin), name="Warden", log=log, deadline_s=60)
        yield Running(made, f"127.0.0.1:{grpc}", json.loads(issued)["key"])
    finally:
        end(process, grace_s=60)


def _ready(admin: int) -> bool:
    """Ready, and the key that was issued is loaded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=2) as answer:
            checks = json.load(answer)["checks"]
    except OSError:
        return False
    return bool(checks["keys"]["detail"] == "1 keys")


def test_the_sidecar_serves_and_records_who_came_without_a_credential(running: Running) -> None:
    with kserve.InferenceServerClient(running.grpc) as client:
        for headers in ({}, {"x-api-key": running.key}):
            result = client.infer("echo", [tensor("text", "BYTES", "hello")], headers=headers)
            assert result.as_numpy("text").tolist() == [b"hello"]
        # Only the ensemble `rag` should call it: enforced, that would be no such model.
        client.infer(
            "retrieve", [tensor("text_input", "BYTES", "what is recorded?")], headers={"x-api-key": running.key}
        )
    records = eventually(
        lambda: found if len(found := running.records()) == 3 else [], what="three records", within_s=30
    )
    told = {(r["tenant"], r["model"]): (r["outcome"], r["reason"], r["would_refuse"]) for r in records}
    assert told == {
        ("(observed)", "echo"): ("completed", None, "CREDENTIAL_MISSING"),
        ("main", "echo"): ("completed", None, None),
        ("main", "retrieve"): ("completed", None, "MODEL_NOT_FOUND"),
    }
    assert {(r["region"], r["jurisdiction"], r["sidecar"]) for r in records} == {
        ("eu-west-1", JURISDICTION, load_settings(running.drafted.config).sidecar.name)
    }


def test_a_triton_that_wants_its_secret_is_drafted_with_it(tmp_path: Path) -> None:
    (tmp_path / "triton.secret").write_text("a-secret-of-this-pod-0123456789\n")
    shutil.copytree(ROOT / "examples/models/echo", tmp_path / "models" / "echo")
    running = start_triton(tmp_path / "triton", tmp_path / "models", secret="a-secret-of-this-pod-0123456789")
    try:
        asked = ["init", "--triton", running.addresses.grpc, *PLACE]
        silent = CliRunner().invoke(build("init"), [*asked, "--dir", str(tmp_path / "none")])
        assert (silent.exit_code, "--restricted" in silent.stderr) == (3, True)
        given = f"warden={tmp_path / 'triton.secret'}"
        run(build("init"), *asked, "--dir", tmp_path / "new", "--restricted", given)
        drafted = load_settings(tmp_path / "new" / "warden.yaml")
        assert isinstance(drafted, Settings)
        secret = drafted.triton.restricted_secret
        assert secret is not None
        assert (secret.key, secret.file) == ("warden", tmp_path / "triton.secret")
        assert "a-secret-of" not in (tmp_path / "new" / "warden.yaml").read_text()
    finally:
        running.stop()
