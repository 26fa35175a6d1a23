"""A secret is read from a regular file that is its reader's alone, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.secretfile import FORBIDDEN_MODE, KeyFault, exposed, read_secret


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"hush")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", range(0o400, 0o1000))
def test_every_mode_is_judged_by_what_others_may_do(secret: Path, mode: int) -> None:
    """Invariant: refused exactly where the group may change it or anybody else may do anything."""
    secret.chmod(mode)
    found = read_secret(secret)
    assert (found == b"hush") == (mode & FORBIDDEN_MODE == 0) == (exposed(secret) is None)
    if isinstance(found, KeyFault):
        assert found == exposed(secret)
        assert f"{mode:04o}" in found.detail
        assert str(secret) in found.detail
        assert "0440" in found.detail  # what to do in Kubernetes


def test_no_more_is_read_than_one_byte_over_the_bound(secret: Path) -> None:
    assert read_secret(secret, 2) == b"hus"


def test_what_is_no_file_is_no_secret(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "absent", "No such file"), (tmp_path, "directory"), (Path("/dev/null"), "regular")):
        found = read_secret(path)
        assert isinstance(found, KeyFault)
        assert said in found.detail
        assert exposed(path) is not None or path == tmp_path
