"""What Envoy is told of TLS, and how the portable wire's files are followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.runtime.settings import TlsSection
from sidecar.runtime.tls import _Files, fault, faults, transport_socket
from tests.support.certificates import Authority, put

AUTHORITY = Authority()


@pytest.fixture
def section(tmp_path: Path) -> TlsSection:
    certificate, key = AUTHORITY.server()
    put(tmp_path / "tls.crt", certificate)
    put(tmp_path / "tls.key", key)
    put(tmp_path / "ca.pem", AUTHORITY.pem)
    return TlsSection(cert_file=tmp_path / "tls.crt", key_file=tmp_path / "tls.key", client_ca_file=tmp_path / "ca.pem")


def test_envoy_follows_the_files(section: TlsSection, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    context: dict[str, Any] = transport_socket(section, run)["typed_config"]
    common = context["common_tls_context"]
    assert common["alpn_protocols"] == ["h2"]
    assert context["require_client_certificate"] is False
    (secret,) = common["tls_certificate_sds_secret_configs"]
    path = Path(secret["sds_config"]["path_config_source"]["path"])
    (written,) = json.loads(path.read_text())["resources"]
    assert written["name"] == secret["name"]
    assert written["tls_certificate"]["private_key"] == {"filename": str(section.key_file)}
    assert written["tls_certificate"]["watched_directory"] == {"path": str(tmp_path)}
    assert "PRIVATE" not in path.read_text()  # the key itself stays where it was
    assert "validation_context_sds_secret_config" in common


def test_without_an_authority_no_client_certificate_is_asked_for(section: TlsSection, tmp_path: Path) -> None:
    plain = section.model_copy(update={"client_ca_file": None})
    common = transport_socket(plain, tmp_path)["typed_config"]["common_tls_context"]
    assert "validation_context_sds_secret_config" not in common


def test_files_are_taken_when_they_changed_and_fit(section: TlsSection) -> None:
    told: list[str] = []
    files = _Files(section, told.append)
    first = files.changed()
    assert first is not None
    assert files.changed() is None
    certificate, key = AUTHORITY.server()
    put(section.cert_file, certificate)
    assert files.changed() is None  # beside the old key
    assert len(told) == 1
    put(section.key_file, key)
    assert files.changed() == (certificate, key, AUTHORITY.pem)
    assert files.changed() is None
    section.key_file.unlink()
    assert files.changed() is None
    put(section.key_file, key)
    assert files.changed() == (certificate, key, AUTHORITY.pem)


def test_a_private_key_that_others_can_use_is_not_taken_later_either(section: TlsSection) -> None:
    told: list[str] = []
    files = _Files(section, told.append)
    assert files.changed() is not None
    certificate, key = AUTHORITY.server()
    put(section.cert_file, certificate)
    put(section.key_file, key)
    section.key_file.chmod(0o644)
    assert files.changed() is None
    assert "mode 0644" in told[0]
    section.key_file.chmod(0o600)
    assert files.changed() == (certificate, key, AUTHORITY.pem)


def test_a_private_key_that_others_can_use_starts_nothing(section: TlsSection) -> None:
    assert faults(section) == []
    section.key_file.chmod(0o644)
    (said,) = faults(section)
    assert said.startswith("listen.tls.key_file: ")
    assert "mode 0644" in said
    section.key_file.chmod(0o440)
    assert faults(section) == []


def test_what_cannot_serve_is_said(section: TlsSection, tmp_path: Path) -> None:
    assert fault(section) is None
    for name, data in (("tls.crt", b"nothing"), ("tls.key", AUTHORITY.server()[1]), ("ca.pem", b"nothing")):
        kept = (tmp_path / name).read_bytes()
        put(tmp_path / name, data)
        said = fault(section)
        assert said is not None
        assert said.startswith("listen.tls: ")
        put(tmp_path / name, kept)
