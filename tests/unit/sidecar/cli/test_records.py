"""Records as a person reads them: nothing is cut, an id stays whole, and no text of a tenant's acts or forges."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from audit.search import IDENTITY, Found
from audit.tables import audit_calls
from sidecar.cli.records import told, told_whole

CALL = "01934567-89ab-7cde-8f01-23456789abcd/12"


def found(prompt: str | None = None, output: str | None = None, content: str = "withheld", **columns: Any) -> Found:
    names = [*(column.name for column in audit_calls.c), *IDENTITY]
    every: dict[str, Any] = dict.fromkeys(names, "") | {"decision": {}}
    numbers = dict.fromkeys(
        ("status", "input_tokens", "output_tokens", "duration_ns", "prompt_bytes", "output_bytes"), 0
    )
    nothing = dict.fromkeys(("ttft_ns", "prompt_digest", "output_digest", "model_digest"))
    known = {
        "call_id": CALL, "started_at": datetime(2026, 11, 30, 11, 55, 7, 900_000, tzinfo=UTC), "tenant": "acme",
        "key_id": "abcdefghijkl", "model": "chat", "outcome": "completed", "method": "/inference.X/ModelInfer",
    }  # fmt: skip
    return Found(every | numbers | nothing | known | columns, prompt, output, content)


def lines(*records: Found, width: int | None = None, reveal: bool = False) -> list[str]:
    return [text.plain for text in told(records, width, reveal=reveal)]


def test_a_record_is_two_lines_that_fit_80_columns() -> None:
    refused = found(outcome="refused", reason="RATE_REQUESTS", status=8, key_id="", principal="robot", tenant="birch")
    assert lines(found(input_tokens=12, output_tokens=340, duration_ns=5_400_000), refused, width=80) == [
        "2026-11-30T11:55:07Z  acme   abcdefghijkl  chat  completed",
        f"  {CALL}  12+340 tokens  5 ms",
        "2026-11-30T11:55:07Z  birch  robot         chat  refused    RATE_REQUESTS",
        f"  {CALL}  0+0 tokens  0 ms",
    ]


def test_a_line_that_does_not_fit_in_columns_stays_one_line_without() -> None:
    long = found(key_id="", principal="alice@acme.example", model="", method="/inference.X/ModelStreamInfer")
    short = found(outcome="refused", reason="METHOD_NOT_ALLOWED")
    assert lines(long, short, width=80)[::2] == [
        "2026-11-30T11:55:07Z  acme  alice@acme.example  ModelStreamInfer  completed",
        "2026-11-30T11:55:07Z  acme  abcdefghijkl  chat  refused  METHOD_NOT_ALLOWED",
    ]
    assert lines(long, short, width=120)[2] == (
        "2026-11-30T11:55:07Z  acme  abcdefghijkl        chat              refused    METHOD_NOT_ALLOWED"
    )


@pytest.mark.parametrize("width", [None, 200, 80, 40, 10])
def test_nothing_is_cut_at_any_width(width: int | None) -> None:
    long = found(
        tenant="a-tenant-of-a-long-name-indeed", model="m" * 70, outcome="failed", reason="UPSTREAM_UNAVAILABLE"
    )
    said = lines(long, width=width)
    words = {word for line in said for word in line.split()}
    assert {"a-tenant-of-a-long-name-indeed", "m" * 70, "UPSTREAM_UNAVAILABLE", CALL, "abcdefghijkl"} <= words
    assert (len(said) == 2) is (width in (None, 200))
    if width == 80:
        assert max(map(len, said)) <= 80


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"reason": "MODEL_NOT_FOUND", "would_refuse": "MODEL_NOT_FOUND", "outcome": "failed"}, "MODEL_NOT_FOUND"),
        ({"would_refuse": "RATE_TOKENS"}, "would be RATE_TOKENS"),
        ({"reason": "DEADLINE", "would_refuse": "RATE_TOKENS"}, "DEADLINE; would be RATE_TOKENS"),
        ({"status": 5}, "status 5"),
    ],
)
def test_why_says_each_thing_once(columns: dict[str, Any], why: str) -> None:
    first, _ = lines(found(**columns))
    assert first.rpartition("chat  ")[2].split("  ", 1)[1].strip() == why


def test_what_was_revealed_is_below_whole_and_indented() -> None:
    prompt = "First line, " + "word " * 40 + "\n2026-11-30T00:00:00Z  forged\n\n  kept  spaces"
    said = lines(found(prompt, "é" * 100, "revealed"), width=80, reveal=True)
    assert max(map(len, said)) <= 80
    at = said.index("  output:")
    assert said[2] == "  prompt:"
    assert "    2026-11-30T00:00:00Z  forged" in said
    assert "      kept  spaces" in said
    assert all(line.startswith("    ") or not line for line in said[3:at] + said[at + 1 :])
    assert "".join(line[4:] for line in said[3:at]) == prompt.replace("\n", "")
    assert "".join(line[4:] for line in said[at + 1 :]) == "é" * 100
    assert lines(found(prompt, "x", "revealed"), reveal=True)[3] == "    " + prompt.partition("\n")[0]


def test_why_there_is_no_content_is_told_instead() -> None:
    said = lines(found(content="unreadable: altered"), reveal=True)
    assert said[2:] == ["  prompt: unreadable: altered", "  output: unreadable: altered"]


def test_a_tenants_text_neither_acts_nor_forges() -> None:
    said = lines(found("\x1b[31m[red]", "", "revealed", model="a\nb\x1b[2J", tenant=""), reveal=True)
    assert "a\ufffdb\ufffd[2J" in said[0]
    assert "acme" not in said[0]
    assert "  -  " in said[0]
    assert said[3] == "    \ufffd[31m[red]"
    assert not any("\x1b" in line or "\n" in line for line in said)


@pytest.mark.parametrize("width", [None, 80])
def test_show_tells_every_column_and_breaks_no_digest(width: int | None) -> None:
    record = found("one\ntwo", content="revealed", prompt_digest=b"\x01" * 32, internal="why " * 40)
    said = [text.plain for text in told_whole(record, width)]
    assert any(line.split() == ["prompt", "digest", "01" * 32] for line in said) or "    " + "01" * 32 in said
    assert any(line.startswith("call id ") and line.endswith(CALL) for line in said)
    assert said[said.index("    two") - 1].split() == ["prompt", "one"]
    assert sum(line.split().count("why") for line in said) == 40 + 1, "and the column route_why"
