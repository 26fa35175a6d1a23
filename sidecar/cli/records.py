"""Audit records as a person reads them: two lines each, whole at any width, and harmless to the terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from audit.search import Found
from sidecar.core.reasons import Code

__all__ = ["harmless", "told", "told_whole"]

_COLUMNS: Final = ("started_at", "tenant", "who", "model", "outcome", "why")
_PADDED: Final = 24  # characters a column is widened to for its neighbours' sake; a longer value is never cut
_NARROWEST: Final = 20  # characters of a line, on whatever terminal
_FLAGS: Final = 3  # guards named on a record's line
_INDENT: Final = "    "


def told(found: Sequence[Found], width: int | None, *, reveal: bool) -> list[Text]:
    """The records' lines, each at most ``width`` characters (words and ids stay in one piece); None: as long as it is.

    First who called what with what outcome, then, dimmed, the call's id, tokens and time; below it what was revealed.
    """
    rows = [_row(record.shape()) for record in found]
    widths = [min(_PADDED, max((len(row[column]) for row in rows), default=0)) for column in range(len(_COLUMNS))]
    lines: list[Text] = []
    for record, row in zip(found, rows, strict=True):
        shape = record.shape()
        first = "  ".join(cell.ljust(widths[column]) for column, cell in enumerate(row)).rstrip()
        if width is not None and len(first) > width:  # in line with its neighbours only where that leaves it one line
            first = "  ".join(filter(None, row))
        lines += (Text(line) for line in _fitted(first, width))
        lines += (Text(line, style="dim") for line in _fitted(f"  {_numbers(shape)}", width))
        if reveal:
            lines += _content(record, shape, width)
    return lines


def told_whole(found: Found, width: int | None) -> list[Text]:
    """One record's every column, a line each."""
    shown = {name.replace("_", " "): harmless(value) for name, value in found.whole().items()}
    widest = max(map(len, shown))
    lines: list[Text] = []
    for name, value in shown.items():
        first, *rest = value.split("\n")
        lines += (Text(line) for line in _fitted(f"{name:{widest}}  {first}".rstrip(), width))
        lines += (Text(line) for text in rest for line in _block(text, width))
    return lines


def harmless(value: Any) -> str:
    """Text that a tenant chose must not act on the officer's terminal: no control characters but line ends."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _row(shape: dict[str, Any]) -> tuple[str, ...]:
    cells = {
        "started_at": f"{shape['started_at'][:19]}Z",
        "tenant": shape["tenant"],
        "who": shape["key_id"] or shape["principal"],
        "model": shape["model"] or shape["method"].rpartition("/")[2],
        "outcome": shape["outcome"],
        "why": _why(shape),
    }
    # "-" keeps what is not known from being read as its neighbour; a line end in a name must not begin a record.
    return (*(harmless(cells[name]).replace("\n", "\ufffd") or "-" for name in _COLUMNS[:-1]), cells["why"])


def _why(shape: dict[str, Any]) -> str:
    """The reason, else the status where it is not OK; what was not enforced, where that is another; who flagged it."""
    words = [shape["reason"] or ("" if shape["status"] == Code.OK else f"status {shape['status']}")]
    if shape["would_refuse"] and shape["would_refuse"] != shape["reason"]:
        words.append(f"would be {shape['would_refuse']}")
    flagged = [found["guard"] for found in shape["findings"] if found["enforced"] == "flag"]
    if flagged:
        words.append(f"flagged by {', '.join(flagged[:_FLAGS])}{' …' if flagged[_FLAGS:] else ''}")
    return harmless("; ".join(filter(None, words)))


def _numbers(shape: dict[str, Any]) -> str:
    call = harmless(shape["call_id"]).replace("\n", "\ufffd")
    return f"{call}  {shape['input_tokens']}+{shape['output_tokens']} tokens  {shape['duration_ms']:.0f} ms"


def _content(record: Found, shape: dict[str, Any], width: int | None) -> Iterator[Text]:
    """Prompt and output, indented: none of their lines can pass for a record."""
    for name in ("prompt", "output", "error")[: 3 if shape["error"] is not None else 2]:
        text = shape[name]
        yield Text(f"  {name}:" if text is not None else f"  {name}: {harmless(record.content)}", style="dim")
        for line in harmless(text).split("\n") if text is not None else ():
            yield from (Text(piece) for piece in _block(line, width))


def _fitted(line: str, width: int | None) -> list[str]:
    """One line over as many as it takes. An id is never broken: it can be taken by a double click."""
    if width is None or len(line) <= width:
        return [line]
    most = max(width, _NARROWEST)
    return textwrap.wrap(line, most, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _block(line: str, width: int | None) -> list[str]:
    most = max(width, _NARROWEST) if width is not None else len(line) + len(_INDENT) + 1
    return textwrap.wrap(
        line, most, initial_indent=_INDENT, subsequent_indent=_INDENT, expand_tabs=False, replace_whitespace=False,
        break_on_hyphens=False, drop_whitespace=False,
    ) or [""]  # fmt: skip
