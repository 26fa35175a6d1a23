"""JSON that two readers could read differently is refused; what passes reads as Python's own reader reads it."""

from __future__ import annotations

import json
import time

import pytest

from sidecar.core.model import MalformedRequest
from sidecar.core.reasons import Reason
from sidecar.triton.strictjson import DEPTH_MAX, SIZE_MAX, parse_object

M, A, L = Reason.REQUEST_MALFORMED, Reason.REQUEST_AMBIGUOUS, Reason.REQUEST_TOO_LARGE


@pytest.mark.parametrize(
    "document",
    [
        "{}",
        ' {"max_tokens": 5, "temperature": 0.1, "stop": ["\\n", "]}{["], "x": null, "y": true} ',
        '{"a": {"a": {"a": 1}}, "b": {"a": 2}}',
        '{"a":' * (DEPTH_MAX - 1) + "{}" + "}" * (DEPTH_MAX - 1),
        json.dumps({str(n): [] for n in range(100)}),
        json.dumps({"quoted": '\\"[[[[[[[[[[[[[[[[[[[[[[[[[['}),
        '{"é": "\\u00e9", "n": -12, "e": 1.5e-3}',
    ],
)
def test_reads_as_python_does(document: str) -> None:
    assert parse_object(document.encode(), "sampling") == json.loads(document)


@pytest.mark.parametrize(
    ("document", "reason", "says"),
    [
        ('{"max_tokens": 1, "max_tokens": 4096}', A, "'max_tokens' occurs twice"),
        ('{"a": {"b": 1, "b": 1}}', A, "'b' occurs twice"),
        ('{"max_tokens": 1, "max\\u005ftokens": 2}', A, "'max_tokens' occurs twice"),
        ('{"a": [{"b\\n": 1, "b\\n": 1}]}', A, r"'b\n' occurs twice"),
        ('{"t": NaN}', M, "NaN"),
        ('{"t": Infinity}', M, "Infinity"),
        ('{"t": -Infinity}', M, "Infinity"),
        ('{"t": 1e999}', M, "too large"),
        ('{"t": ' + "9" * 5000 + "}", M, "not JSON"),
        ('{"a":' * DEPTH_MAX + "{}" + "}" * DEPTH_MAX, M, "deeper than 16"),
        ('{"a":' + "[" * 30_000 + "]" * 30_000 + "}", M, "deeper than 16"),
        ('{"a":' + "[" * 30_000, M, "deeper than 16"),
        ("[]", M, "must be a JSON object"),
        ("1", M, "must be a JSON object"),
        ("null", M, "must be a JSON object"),
        ("", M, "not JSON"),
        ("{'a': 1}", M, "not JSON"),
        ('{"a": 1} {}', M, "not JSON"),
        ('{"a": 1,}', M, "not JSON"),
        ("\ufeff{}", M, "not JSON"),
        ('{"a": "' + "x" * SIZE_MAX + '"}', L, "at most 65536"),
    ],
)
def test_refuses(document: str, reason: Reason, says: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_object(document.encode(), "sampling")
    assert caught.value.reason is reason
    assert says in caught.value.detail
    assert caught.value.detail.startswith("sampling: ")
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize("tail", ['\\"', '"\\', '["', "[]", "\\", '"'])
def test_no_document_takes_long(tail: str) -> None:
    """64 KiB of anything is refused in well under a second; a pattern that backtracks would take half a minute."""
    document = "[" * (DEPTH_MAX + 2) + tail * (60_000 // len(tail))
    started = time.process_time()
    with pytest.raises(MalformedRequest):
        parse_object(document.encode(), "sampling")
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("document", [b"\xff{}", '{"a": 1}'.encode("utf-16")])
def test_refuses_what_is_not_utf8(document: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_object(document, "sampling")
