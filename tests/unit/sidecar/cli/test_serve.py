"""`warden serve`: what it refuses to start with, on either wire, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sidecar.cli.main import build
from tests.support.config import document, write


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build("serve"), ["serve", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("wire", ["envoy", "grpc"])
def test_a_bad_configuration_is_told_whole(tmp_path: Path, wire: str) -> None:
    path = tmp_path / "warden.yaml"
    path.write_text("mode: enforced\n")
    code, out, err = run("--config", str(path), "--wire", wire)
    assert (code, out) == (2, "")
    assert err.startswith("warden: cannot start:\n")
    for key in ("mode", "sidecar", "policy", "identity", "audit"):
        assert f": {key}:" in err


@pytest.mark.parametrize("wire", ["envoy", "grpc"])
def test_a_bundle_that_cannot_be_used_is_told(tmp_path: Path, wire: str) -> None:
    sidecar = document(tmp_path)["sidecar"] | {"region": "mars-1"}
    code, _, err = run("--config", str(write(tmp_path, sidecar=sidecar)), "--wire", wire)
    assert code == 2
    assert "mars-1" in err


def test_a_wire_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    code, _, err = run("--config", str(write(tmp_path)), "--wire", "carrier-pigeon")
    assert code == 2
    assert "carrier-pigeon" in err


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    assert run("--config", str(path)) == (
        2,
        "",
        f"warden: {path}: no such file; name one with --config, or in WARDEN_CONFIG\n",
    )
