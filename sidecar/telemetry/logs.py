"""The log: one JSON object a line on stderr, in fields of a closed list; no secret, no prompt, no output, ever."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

__all__ = ["FIELDS", "JsonFormatter", "RepeatFilter", "event", "setup"]

# What a line may say besides ts, level, logger and event; a value under another name isn't shown, so that content can't
# slip in. tests/unit/sidecar/telemetry/test_logs.py finds such names in the source: a log line must not end a call.
FIELDS: Final = frozenset(
    {
        "address", "age_seconds", "bundle", "bytes", "call_id", "check", "checks", "code", "config", "count",
        "detail", "digest", "directory", "duration_seconds", "error", "exit_code", "file", "grace", "in_flight",
        "issuer", "jurisdiction", "key_id", "kind", "lag_records", "lag_seconds", "limit", "line", "method",
        "metric", "mode", "model", "name", "path", "pid", "poisoned", "port", "position", "posture", "ready",
        "reason", "records", "region", "restart_in", "rows", "rule", "segment", "sequence", "sidecar", "signal",
        "state", "status", "tenant", "trace_id", "upstream", "version", "wire",
    }
)  # fmt: skip
TEXT_BOUND: Final = 512  # characters of one value or message
FRAMES_BOUND: Final = 20  # innermost frames of a traceback

# Credentials as they would look if a library put one in its own message: our API keys, bearer tokens, JWTs, and the
# password of a database URL.
_CREDENTIALS: Final = re.compile(
    r"wdn_[a-z0-9]+_[A-Za-z0-9_]+"
    r"|(?i:bearer)\s+[^\s'\",;]+"
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,4}"
    r"|(?<=://)[^\s/:@]*:[^\s/@]+(?=@)"
    r"|(?i:password)=[^\s&'\"]+"
)


def event(logger: logging.Logger, level: int, name: str, /, **fields: object) -> None:
    """Log ``name`` ("bundle.loaded") with ``fields``, whose names are of ``FIELDS``."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"warden": fields})


class JsonFormatter(logging.Formatter):
    """Renders a record as one line. An exception shows type and frames, never its message: it may quote a request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _text(_message(record)),
        }
        fields: Mapping[str, object] = getattr(record, "warden", {})
        line.update((name, _value(name, value)) for name, value in fields.items() if value is not None)
        suppressed = getattr(record, "suppressed", 0)
        if suppressed:
            line["suppressed"] = suppressed
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])[-FRAMES_BOUND:]
            line["frames"] = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


class RepeatFilter(logging.Filter):
    """Lets ``burst`` lines of one event and reason through per ``window`` (seconds); the next says how many not."""

    KEYS = 1024  # events told apart; beyond it the memory starts afresh

    def __init__(self, *, burst: int = 5, window: float = 10.0) -> None:
        super().__init__()
        self._burst, self._window = burst, window
        self._seen: dict[tuple[str, str, str], list[float]] = {}  # since, lines, suppressed
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        fields: Mapping[str, object] = getattr(record, "warden", {})
        key = (record.name, str(record.msg)[:TEXT_BOUND], str(fields.get("reason") or fields.get("error") or ""))
        with self._lock:
            seen = self._seen.get(key)
            if seen is None:
                if len(self._seen) >= self.KEYS:
                    self._seen.clear()
                seen = self._seen[key] = [record.created, 0, 0]
            if record.created - seen[0] >= self._window:
                record.suppressed = int(seen[2])
                seen[:] = [record.created, 0, 0]
            seen[1] += 1
            if seen[1] > self._burst:
                seen[2] += 1
                return False
        return True


def setup(level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Make the root logger write JSON lines to ``stream`` (stderr) and nothing else; returns the handler."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # a broken line is lost; it must not print its arguments instead
    return handler


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # a library's own malformed %-format
        return str(record.msg)


def _text(text: str) -> str:
    # Redacted before it is cut, so that no half of a credential is left at the end.
    redacted = _CREDENTIALS.sub("[redacted]", text[: 8 * TEXT_BOUND])
    return redacted if len(redacted) <= TEXT_BOUND else redacted[:TEXT_BOUND] + "…"


def _value(name: str, value: object) -> object:
    """Only plain values are shown. Bytes show their length; anything else (a Secret, a message) its type's name."""
    if name not in FIELDS:
        return "[not a field of the log]"
    match value:
        case bool() | int() | float():
            return value
        case str():
            return _text(value)
        case bytes() | bytearray() | memoryview():
            return f"[{len(value)} bytes]"
        case list() | tuple() | set() | frozenset():
            return [_value(name, item) for item in list(value)[:32]]
        case _:
            return f"[{type(value).__name__}]"
