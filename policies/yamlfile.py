"""YAML read with the line and column of everything in it.

A small, unambiguous YAML: one document, string keys, plain scalars (YAML 1.2 core: null, true, false, decimal numbers,
strings), no anchors, aliases, tags or directives. So no document is larger in memory than its text allows.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StreamMark
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.reader import ReaderError

__all__ = ["Document", "KeyPath", "Position", "Problem", "dotted", "odd_letter", "parse", "read", "suggest"]

MAX_BYTES: Final = 2**20
MAX_DEPTH: Final = 20
MAX_PROBLEMS: Final = 100  # a person mends a hundred before asking for more

KeyPath = tuple[str | int, ...]

_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_WORDS: Final[Mapping[str, bool | None]] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
# What YAML's reader accepts (YAML 1.2 §5.1); ruamel's own error for the rest has no line.
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What libyaml might read on where ruamel.yaml would not: YAML 1.1's line ends, tabs, ``>#`` (a comment needs a blank).
_ODD: Final = re.compile("[\t%\x85\u2028\u2029\ufeff]|\r(?!\n)|[|>][-+0-9]*#")
_SIMPLE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Position(NamedTuple):
    """A place in a file, both counted from 1; a tab is one column."""

    line: int
    column: int


START: Final = Position(1, 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in one file: where it stands (from 1), which key it concerns ("": the whole file), what is wrong."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: "
        return f"{where}{self.path}: {self.message}" if self.path else where + self.message


@dataclass(frozen=True, slots=True)
class Document:
    """A file's data (dict, list, str, int, float, bool, None) and where each value and each key of it stands."""

    file: str
    data: Any
    values: Mapping[KeyPath, Position]
    keys: Mapping[KeyPath, Position]

    def at(self, path: KeyPath) -> Position:
        """Where the value at ``path`` stands; for what isn't there, its nearest parent's key."""
        return self.values[path] if path in self.values else self.key(path[:-1])

    def key(self, path: KeyPath) -> Position:
        """Where the key of ``path`` stands: a list's item is its own key, and so is the whole document."""
        while path not in self.values:
            path = path[:-1]
        return self.keys.get(path) or self.values[path]

    def problem(self, path: KeyPath, message: str, *, at_key: bool = False) -> Problem:
        """A mistake found in the value at ``path`` (or in its key), for checks that pydantic doesn't make."""
        where = self.key(path) if at_key else self.at(path)
        return Problem(self.file, where.line, where.column, dotted(path), message)


def dotted(path: KeyPath) -> str:
    """``("models", "a/b", 0)`` → ``models["a/b"][0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _SIMPLE_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part if part.isprintable() else part.encode("unicode_escape").decode()}"]'
    return text


def odd_letter(name: str) -> str:
    """Which letter of a name that should be ASCII isn't, since it may look as if it were: to be said after it."""
    odd = next((char for char in name if not char.isascii()), None)
    return "" if odd is None else f" (U+{ord(odd):04X} in it is {unicodedata.name(odd, 'no letter').lower()})"


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean "plan"?`` where one of ``known`` is near, else nothing."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


# --- reading ------------------------------------------------------------------------------------------------------


def read(path: Path, name: str | None = None) -> Document | list[Problem]:
    """Read one file; ``name`` is what problems call it (default: the path as given). At most 1 MiB is read."""
    name = str(path) if name is None else name
    try:
        if not path.is_file():
            return [Problem(name, 1, 1, "", "no such file")]
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as fault:
        return [Problem(name, 1, 1, "", f"cannot be read: {fault.strerror}")]
    return parse(data, name)


def parse(data: bytes, name: str) -> Document | list[Problem]:
    """Read one document from UTF-8 bytes. An empty file is an empty mapping. Returns at most 100 problems, in order."""
    if len(data) > MAX_BYTES:
        return [Problem(name, 1, 1, "", f"larger than {MAX_BYTES} bytes")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        where = _place(data[: fault.start].decode("utf-8-sig"))
        return [Problem(name, where.line, where.column, "", "not UTF-8")]
    if (odd := _UNPRINTABLE.search(text)) is not None:
        where = _place(text[: odd.start()])
        return [Problem(name, where.line, where.column, "", f"character U+{ord(odd[0]):04X} is not allowed in YAML")]
    return _quickly(text, name) or _exactly(text, name)


def _quickly(text: str, name: str) -> Document | None:
    """What libyaml reads without a fault: a tenth of the time, but its faults are told in other words.

    None where there is any, or something odd in the text.
    """
    if _ODD.search(text) is not None:
        return None
    builder = _Builder(name)
    try:
        builder.build(_events(yaml.CLoader(text)))
    except (yaml.YAMLError, _Enough, RecursionError):
        return None
    return None if builder.problems else Document(name, builder.root, builder.values, builder.keys)


def _events(parser: Any) -> Iterator[Event]:
    """PyYAML's events as ruamel.yaml's: the same fields, but that a plain scalar's style is "" there."""
    while parser.check_event():
        event = parser.get_event()
        match event:
            case yaml.ScalarEvent():
                yield ScalarEvent(
                    event.anchor, event.tag, event.implicit, event.value, event.start_mark, None, event.style or None
                )
            case yaml.MappingStartEvent():
                yield MappingStartEvent(event.anchor, event.tag, event.implicit, event.start_mark)
            case yaml.SequenceStartEvent():
                yield SequenceStartEvent(event.anchor, event.tag, event.implicit, event.start_mark)
            case yaml.AliasEvent():
                yield AliasEvent(event.anchor, event.start_mark)
            case yaml.DocumentStartEvent():
                yield DocumentStartEvent(event.start_mark, None, event.explicit, event.version, event.tags)
            case yaml.MappingEndEvent():
                yield MappingEndEvent(event.start_mark)
            case yaml.SequenceEndEvent():
                yield SequenceEndEvent(event.start_mark)
            case yaml.StreamEndEvent():
                yield StreamEndEvent(event.start_mark)


def _exactly(text: str, name: str) -> Document | list[Problem]:
    builder = _Builder(name)
    try:
        builder.build(YAML(typ="safe", pure=True).parse(text))
    except _Enough:
        pass
    except MarkedYAMLError as fault:
        builder.note(_mark(fault.problem_mark or fault.context_mark), (), _syntax(fault), limit=False)
    except ReaderError as fault:
        builder.note(_place(text[: fault.position]), (), str(fault.reason), limit=False)
    if builder.problems:
        return sorted(builder.problems, key=lambda problem: (problem.line, problem.column))
    return Document(name, builder.root, builder.values, builder.keys)


def _place(before: str) -> Position:
    return Position(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _mark(mark: StreamMark | None) -> Position:
    return START if mark is None else Position(mark.line + 1, mark.column + 1)


def _syntax(fault: MarkedYAMLError) -> str:
    problem = str(fault.problem or fault.context)
    if "\\t" in problem or "'\t'" in problem:
        return "a tab; indent with spaces"
    context = f"{fault.context}: " if fault.context and fault.problem else ""
    return f"not YAML: {context}{problem}"


class _Enough(Exception):  # noqa: N818 — ends one reading, never seen outside
    """Nothing more can be told of this file."""


class _Builder:
    """Turns parser events into plain data; recursion is bounded by MAX_DEPTH, all else by the file's size."""

    def __init__(self, name: str) -> None:
        self.root: Any = None
        self.values: dict[KeyPath, Position] = {}
        self.keys: dict[KeyPath, Position] = {}
        self.problems: list[Problem] = []
        self._name = name

    def note(self, where: Position, path: KeyPath, message: str, *, limit: bool = True) -> None:
        if limit and len(self.problems) >= MAX_PROBLEMS - 1:
            self.problems.append(
                Problem(self._name, where.line, where.column, "", "too many problems; the rest is not told")
            )
            raise _Enough
        self.problems.append(Problem(self._name, where.line, where.column, dotted(path), message))

    def build(self, events: Iterator[Event]) -> None:
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if event.version or event.tags:
                    self.note(_mark(event.start_mark), (), "directives are not allowed")
                if documents > 1:
                    self.note(_mark(event.start_mark), (), "a second document; write one a file")
                    raise _Enough
                self.root = self._value(next(events), events, ())
                if self.root is None:
                    self.root = {}
            elif isinstance(event, StreamEndEvent) and documents == 0:
                self.root, self.values[()] = {}, START

    def _value(self, event: Event, events: Iterator[Event], path: KeyPath) -> Any:
        where = _mark(event.start_mark)
        if isinstance(event, ScalarEvent) and event.style is None and event.value == "":
            where = self.keys.get(path, where)  # nothing is written: the parser's mark is at whatever comes next
        self.values[path] = where
        if isinstance(event, AliasEvent):
            self.note(where, path, f"alias *{event.anchor}: anchors and aliases are not allowed")
            return None
        assert isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent)
        if event.anchor:
            self.note(where, path, f"anchor &{event.anchor}: anchors and aliases are not allowed")
        if event.tag is not None:
            self.note(where, path, f"tag {event.tag}: tags are not allowed")
        if len(path) > MAX_DEPTH:
            self.note(where, path, f"nested deeper than {MAX_DEPTH} levels")
            raise _Enough
        if isinstance(event, MappingStartEvent):
            return self._mapping(events, path)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(events, path)
        return _scalar(event.value) if event.style is None else event.value

    def _sequence(self, events: Iterator[Event], path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(self._value(event, events, (*path, len(items))))
        return items

    def _mapping(self, events: Iterator[Event], path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            where = _mark(event.start_mark)
            if not isinstance(event, ScalarEvent):
                self.note(where, path, "a key must be plain text")
                raise _Enough
            inner = (*path, event.value)
            if event.anchor or event.tag is not None:
                self.note(where, inner, "a key with an anchor or a tag is not allowed")
            if event.value in found:
                self.note(where, inner, f"duplicate key, first on line {self.keys[inner].line}")
            else:
                self.keys[inner] = where
            found[event.value] = self._value(next(events), events, inner)
        return found


def _scalar(text: str) -> str | int | float | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
