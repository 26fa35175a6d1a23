"""One JSON line an event; no secret, no credential, no content; repeats are counted instead of printed."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import audit
import policies
import sidecar
from sidecar.core.model import Secret
from sidecar.telemetry import logs

LOG = logging.getLogger("warden.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, loud = list(root.handlers), root.level, logging.raiseExceptions
    written = io.StringIO()
    logs.setup("info", written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = loud
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line(stream: io.StringIO) -> None:
    logs.event(LOG, logging.WARNING, "call.refused", call_id="c-1", tenant="acme", reason="RATE_REQUESTS", rule=None)
    [line] = lines(stream)
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "warden.test",
        "event": "call.refused",
        "call_id": "c-1",
        "tenant": "acme",
        "reason": "RATE_REQUESTS",
    }


def test_a_line_break_in_a_value_makes_no_second_line(stream: io.StringIO) -> None:
    logs.event(LOG, logging.INFO, "x", detail='a\n{"event": "forged"}')
    assert len(lines(stream)) == 1


@pytest.mark.parametrize(
    "content", ["prompt", "output", "message", "secret", "authorization", "token", "key", "text", "body"]
)
def test_a_value_under_another_name_is_not_shown(stream: io.StringIO, content: str) -> None:
    assert content not in logs.FIELDS
    logs.event(LOG, logging.INFO, "x", **{content: "what nobody may read"})
    assert lines(stream)[0][content] == "[not a field of the log]"
    assert "nobody" not in stream.getvalue()


def test_every_event_in_the_source_keeps_to_the_fields() -> None:
    found = 0
    for package in (sidecar, audit, policies):
        for path in Path(package.__path__[0]).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and _name(node.func) == "event" and len(node.args) >= 3:
                    names = {keyword.arg for keyword in node.keywords}
                    assert names <= logs.FIELDS, f"{path.name}:{node.lineno} logs {names - logs.FIELDS}"
                    found += 1
    assert found


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_no_value_shows_more_than_it_should(stream: io.StringIO) -> None:
    logs.event(
        LOG, logging.INFO, "x", detail=Secret(b"hunter2"), kind=b"prompt text", name={"prompt": "text"}, checks=[b"12"]
    )
    [line] = lines(stream)
    assert (line["detail"], line["kind"], line["name"], line["checks"]) == (
        "[Secret]", "[11 bytes]", "[dict]", ["[2 bytes]"],
    )  # fmt: skip
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize(
    "credential",
    [
        "wdn_live_0abc123_S3cretS3cretS3cretS3cretS3cretXYZ",
        "Bearer abc.def-ghi",
        "bearer   opaque/token==",
        "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl",
        "postgresql://warden:hunter2@db/warden",
        "host=db password=hunter2",
    ],
)
def test_a_credential_in_any_text_is_redacted(stream: io.StringIO, credential: str) -> None:
    logs.event(LOG, logging.INFO, "x", detail=f"got {credential} here")
    LOG.warning("a library says %s", credential)
    for secret in ("S3cret", "abc.def", "opaque", "eyJ", "hunter2", "c2lnbm"):
        assert secret not in stream.getvalue()
    assert stream.getvalue().count("[redacted]") >= 2


def test_no_half_of_a_credential_is_left_where_a_text_is_cut(stream: io.StringIO) -> None:
    logs.event(LOG, logging.INFO, "x", detail="a" * 500 + " wdn_live_abc_" + "S" * 50)
    [line] = lines(stream)
    assert "SSS" not in line["detail"]
    assert len(line["detail"]) <= 513


def test_an_exception_shows_where_but_not_what_it_says(stream: io.StringIO) -> None:
    try:
        int("the prompt was: my secret prompt")
    except ValueError:
        LOG.exception("call.crashed")
    [line] = lines(stream)
    assert line["exception"] == "ValueError"
    assert any("test_logs.py" in frame for frame in line["frames"])
    assert "prompt was" not in stream.getvalue()


def test_a_librarys_malformed_format_is_still_a_line(stream: io.StringIO) -> None:
    LOG.warning("%d things", "many")
    assert lines(stream)[0]["event"] == "%d things"


def record(created: float, message: str = "call.refused", reason: str = "A") -> logging.LogRecord:
    made = logging.LogRecord("warden", logging.WARNING, "", 0, message, (), None)
    made.created = created
    made.warden = {"reason": reason}
    return made


def test_repeats_are_counted_and_the_count_is_told() -> None:
    repeats = logs.RepeatFilter(burst=2, window=10.0)
    assert [bool(repeats.filter(record(100.0 + n))) for n in range(5)] == [True, True, False, False, False]
    assert repeats.filter(record(101.0, reason="B")), "another reason is another event"
    later = record(110.0)
    assert repeats.filter(later)
    assert later.suppressed == 3  # type: ignore[attr-defined]  # set by the filter
    assert "suppressed" in json.loads(logs.JsonFormatter().format(later))


def test_the_memory_of_repeats_is_bounded() -> None:
    repeats = logs.RepeatFilter(burst=1)
    for n in range(3 * logs.RepeatFilter.KEYS):
        assert repeats.filter(record(1.0, f"event-{n}"))
    assert len(repeats._seen) <= logs.RepeatFilter.KEYS
