"""Guards: what a tenant's prompts and outputs may hold; a guard that finds it flags the call, or denies or cuts it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from policies.watching import Hold, Lens, Watch
from sidecar.core.model import Finding, InferenceFacts

if TYPE_CHECKING:
    from policies.document import GuardDoc
    from policies.scanner import Scanner

__all__ = ["PROMPT_CHARS", "Guard", "Guards", "compile_guards"]

# A search of this many characters takes some ms of everybody's event loop; a longer prompt counts as found.
PROMPT_CHARS: Final = 262_144


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard. ``longer_than`` is in characters, of a prompt; ``deny`` on an output cuts it off."""

    name: str
    on: str
    deny: bool
    shadow: bool
    longer_than: int | None
    classes: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def enforced(self) -> bool:
        """Whether it keeps anything from being sent."""
        return self.deny and not self.shadow

    def finding(self) -> Finding:
        """``verdict`` is what the guard says, ``enforced`` what is done about it."""
        verdict = "deny" if self.deny else "flag"
        return Finding(self.name, self.on, verdict, "none" if self.shadow else verdict)


class _Looked:
    """Guards with the one scanner that looks for all that they look for."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        patterns = tuple(dict.fromkeys(pattern for guard in guards for pattern in guard.patterns))
        classes = tuple(dict.fromkeys(kind for guard in guards for kind in guard.classes))
        # Loaded where a bundle has guards: RE2 and the numbering plans are 15 MB that most sidecars needn't hold.
        scanner: Any = importlib.import_module("policies.scanner").scanner
        self.scanner: Scanner = scanner(patterns, classes)
        numbers = {what: number for number, what in enumerate((*patterns, *classes))}
        self.guards = [
            (guard, frozenset(numbers[what] for what in (*guard.patterns, *guard.classes))) for guard in guards
        ]

    def judge(self, characters: int, found: frozenset[int]) -> tuple[Finding, ...]:
        """``characters`` is for judges that look at the length."""
        del characters
        if not found:
            return ()
        return tuple(guard.finding() for guard, looks_for in self.guards if looks_for & found)

    def whole(self, texts: Sequence[bytes]) -> tuple[Finding, ...]:
        """Of a prompt, all of which is there."""
        characters = sum(len(text) if text.isascii() else len(text.decode("utf-8", "replace")) for text in texts)
        if characters > PROMPT_CHARS:  # it can't be searched in time, and no answer is never a yes
            return tuple(guard.finding() for guard, looks_for in self.guards if looks_for or _long(guard, characters))
        found = frozenset(
            number for text in texts for number in self.scanner.look(text, 0, {}, first=True, last=True).certain
        )
        return tuple(
            guard.finding() for guard, looks_for in self.guards if looks_for & found or _long(guard, characters)
        )

    def lens(self) -> Lens:
        return Lens(self.scanner, self.judge, counts=False)


def _long(guard: Guard, characters: int) -> bool:
    return guard.longer_than is not None and characters > guard.longer_than


class Guards:
    """A tenant's guards. Implements ``ports.Guards``."""

    def __init__(self, guards: Sequence[Guard], hold: Hold | None = None) -> None:
        prompt = [guard for guard in guards if guard.on == "prompt"]
        output = [guard for guard in guards if guard.on == "output"]
        self._prompt = _Looked(prompt) if prompt else None
        self._denies = _lens(guard for guard in output if guard.enforced)
        self._tells = _lens(guard for guard in output if not guard.enforced)
        self._all = _lens(output)  # where nothing is enforced
        self._hold = hold

    def prompt(self, facts: InferenceFacts) -> tuple[Finding, ...]:
        """What the guards on prompts find, in their order."""
        if self._prompt is None or not facts.prompts:
            return ()
        return self._prompt.whole(facts.prompts)

    def watch(self, *, enforce: bool = True) -> Watch | None:
        """For one call's output; None: no guard looks at it. Without ``enforce`` nothing is held for it."""
        denies, tells = (self._denies, self._tells) if enforce else (None, self._all)
        return Watch(denies, tells, self._hold) if denies is not None or tells is not None else None


def compile_guards(docs: Sequence[GuardDoc], hold: Hold | None = None) -> Guards | None:
    """None where there are none, so that a call without guards costs nothing.

    Raises ``ValueError`` where their patterns together need more memory than they may have.
    """
    return Guards([_guard(doc) for doc in docs], hold) if docs else None


def _guard(doc: GuardDoc) -> Guard:
    return Guard(doc.id, doc.on, doc.then == "deny", doc.shadow, doc.longer_than, doc.classes, doc.patterns)


def _lens(guards: Iterable[Guard]) -> Lens | None:
    found = tuple(guards)
    return _Looked(found).lens() if found else None
