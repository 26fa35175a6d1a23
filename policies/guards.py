"""Guards: what a tenant's prompts and outputs may hold; a guard that finds it flags the call, or denies or cuts it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from policies.document import GuardDoc
from sidecar.core.model import Finding, InferenceFacts

__all__ = ["PROMPT_CHARS", "WINDOW", "Guard", "Guards", "Watch", "compile_guards"]

# A search of this many characters takes tens of ms of everybody's event loop; a longer prompt counts as found.
PROMPT_CHARS: Final = 65_536
WINDOW: Final = 512  # characters of output searched again with each chunk: what is longer can't be found over chunks

_Find = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard, compiled. ``longer_than`` is in characters, of a prompt; ``deny`` on an output cuts it off."""

    name: str
    on: str
    deny: bool
    shadow: bool
    longer_than: int | None
    finds: tuple[_Find, ...]

    def finding(self) -> Finding:
        """``verdict`` is what the guard says, ``enforced`` what is done about it."""
        verdict = "deny" if self.deny else "flag"
        return Finding(self.name, self.on, verdict, "none" if self.shadow else verdict)


class Guards:
    """A tenant's guards. Implements ``ports.Guards``."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._prompt = tuple(guard for guard in guards if guard.on == "prompt")
        self._output = tuple(guard for guard in guards if guard.on == "output")

    def prompt(self, facts: InferenceFacts) -> tuple[Finding, ...]:
        """What the guards on prompts find, in their order."""
        if not self._prompt or not facts.prompts:
            return ()
        texts = [prompt.decode("utf-8", "replace") for prompt in facts.prompts]
        length = sum(map(len, texts))
        return tuple(guard.finding() for guard in self._prompt if _found_in_prompt(guard, texts, length))

    def watch(self) -> Watch | None:
        """For one call's output; None: no guard looks at it."""
        return Watch(self._output) if self._output else None


def _found_in_prompt(guard: Guard, texts: list[str], length: int) -> bool:
    if guard.longer_than is not None and length > guard.longer_than:
        return True
    if guard.finds and length > PROMPT_CHARS:
        return True  # it can't be searched in time, and no answer is never a yes
    return any(find(text) for find in guard.finds for text in texts)


class Watch:
    """Follows one output as it streams. Each guard finds once."""

    __slots__ = ("_guards", "_tail")

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self._guards = guards
        self._tail = b""

    def feed(self, texts: Sequence[bytes]) -> tuple[Finding, ...]:
        """What is found now that ``texts`` follow all before them."""
        data = self._tail + b"".join(texts)
        if data == self._tail:
            return ()
        found = [guard for guard in self._guards if any(_search(find, data) for find in guard.finds)]
        if found:
            self._guards = tuple(guard for guard in self._guards if guard not in found)
        self._tail = data[-WINDOW:] if self._guards else b""
        return tuple(guard.finding() for guard in found)


def _search(find: _Find, data: bytes) -> bool:
    """In pieces that overlap by the window, so that one huge answer is searched as a stream of it would be."""
    return any(find(piece.decode("utf-8", "replace")) for piece in _pieces(data))


def _pieces(data: bytes) -> Iterator[bytes]:
    step = PROMPT_CHARS - WINDOW
    for start in range(0, max(len(data) - WINDOW, 1), step):
        yield data[start : start + PROMPT_CHARS]


def compile_guards(docs: Sequence[GuardDoc]) -> Guards | None:
    """None where there are none, so that a call without guards costs nothing."""
    return Guards([_compiled(doc) for doc in docs]) if docs else None


def _compiled(doc: GuardDoc) -> Guard:
    if not doc.classes and not doc.patterns:
        finds: tuple[_Find, ...] = ()
    else:
        redact: Any = importlib.import_module("audit.redact")  # as RedactDoc: 13 MB, where a bundle needs it
        finds = tuple(redact.finder(kind, pattern) for kind, pattern in _wanted(doc))
    return Guard(doc.id, doc.on, doc.then == "deny", doc.shadow, doc.longer_than, finds)


def _wanted(doc: GuardDoc) -> Iterator[tuple[str, str]]:
    yield from ((kind, "") for kind in doc.classes)
    yield from ((doc.id, pattern) for pattern in doc.patterns)
