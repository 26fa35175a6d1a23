"""The restricted protocols' secret: from a file or the environment, checked, and in no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.runtime.restricted import load
from sidecar.runtime.settings import RestrictedSection
from sidecar.transports.upstream import Restricted

SECRET = "0123456789abcdef-secret"


def test_none_is_configured() -> None:
    assert load(None, {}) is None


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_from_a_file(tmp_path: Path, end: str) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + end)
    found = load(RestrictedSection(key="warden", file=file), {})
    assert isinstance(found, Restricted)
    assert found.metadata() == (("triton-grpc-protocol-warden", SECRET),)
    assert SECRET not in repr(found)


def test_from_the_environment() -> None:
    found = load(RestrictedSection(key="k", env="TRITON_SECRET"), {"TRITON_SECRET": SECRET})
    assert isinstance(found, Restricted)
    assert found.metadata() == (("triton-grpc-protocol-k", SECRET),)


@pytest.mark.parametrize(
    "value", ["", "short", SECRET + " x", "ü" * 20, "x" * 1025, "x" * 20 + "\x00", "x" * 20 + "\ny"]
)
def test_what_no_header_can_carry_is_refused_without_being_shown(tmp_path: Path, value: str) -> None:
    file = tmp_path / "secret"
    file.write_text(value)
    for found in (
        load(RestrictedSection(key="warden", file=file), {}),
        load(RestrictedSection(key="warden", env="S"), {"S": value}),
    ):
        assert isinstance(found, str)
        assert found.startswith("triton.restricted_secret: ")
        assert "must hold 16 to 1024 printable ASCII characters" in found
        assert not value or value not in found


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert load(RestrictedSection(key="k", env="NO_SUCH"), {}) == (
        "triton.restricted_secret: the environment has no NO_SUCH"
    )
    missing = tmp_path / "no such"
    assert load(RestrictedSection(key="k", file=missing), {}) == (
        f"triton.restricted_secret: {missing}: No such file or directory"
    )
