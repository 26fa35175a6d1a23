"""Lists that are told while they are found: whole as JSON, bounded for reading, and no JSON where they broke off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.cli.listing import MOST_TOLD, Lines, Object


def test_an_object_is_written_a_key_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    told = Object()
    assert told.items("none", []) == 0
    assert told.items("some", ({"n": n, "é": '"'} for n in range(3))) == 3
    told.value("counts", {"a": 1})
    told.end()
    out = capsys.readouterr().out
    assert json.loads(out) == {"none": [], "some": [{"n": n, "é": '"'} for n in range(3)], "counts": {"a": 1}}


def test_what_was_broken_off_is_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Object().items("some", broken())
    out = capsys.readouterr().out
    assert '{"n": 1}' in out
    with pytest.raises(json.JSONDecodeError):
        json.loads(out)


def test_lines_are_bounded_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for number in range(MOST_TOLD + 5):
        lines.add(str(number))
    lines.end()
    out = capsys.readouterr().out.splitlines()
    assert len(out) == MOST_TOLD + 1
    assert out[-1] == "… and 5 more lines; --json has all"
