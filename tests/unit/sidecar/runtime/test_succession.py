"""Who starts on a journal's directory takes the place of who held it last, if that is known; it starts in any case."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.runtime.succession import FILE, succeed


def test_each_takes_the_place_of_those_before(tmp_path: Path) -> None:
    """Not only of the last: it may have crashed before it could tell Redis of the one before it."""
    assert succeed(tmp_path, "pod-1-aaaa") == ()
    assert succeed(tmp_path, "pod-1-bbbb") == ("pod-1-aaaa",)
    assert succeed(tmp_path, "pod-1-cccc") == ("pod-1-aaaa", "pod-1-bbbb")
    assert succeed(tmp_path, "pod-1-cccc") == ("pod-1-aaaa", "pod-1-bbbb")  # nobody's own
    for n in range(20):
        assert len(succeed(tmp_path, f"pod-1-{n}")) <= 8
    assert succeed(tmp_path, "pod-1-last")[-1] == "pod-1-19"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 10_000, b"", b"\n\n"])
def test_what_is_no_name_is_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert succeed(tmp_path, "pod-1-aaaa") == ()
    assert succeed(tmp_path, "pod-1-bbbb") == ("pod-1-aaaa",)


def test_one_that_can_neither_be_read_nor_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).mkdir()
    assert succeed(tmp_path, "pod-1-aaaa") == ()
    assert [record.message for record in caplog.records] == ["leases.predecessor_unknown", "leases.name_not_kept"]
