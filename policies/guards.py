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
        if not found:
            return ()
        return tuple(guard.finding() for guard, looks_for in self.guards if looks_for & found)

    def lens(self) -> Lens:
        return Lens(self.scanner, self.judge, counts=False)


class Guards:
    """A tenant's guards. Implements ``ports.Guards``."""

    def __init__(self, guards: Sequence[Guard], hold: Hold | None = None) -> None:
        prompt = [guard for guard in guards if guard.on == "prompt"]
        output = [guard for guard in guards if guard.on == "output"]
        self._prompt = _Looked(prompt) if prompt else None
        self._denies = _lens(guard for guard in output if guard.enforced)
        self._tells = _lens(guard for guard in output if not guard.enforced)
        self._hold = hold
        self._order = {guard.name: place for place, guard in enumerate(guards)}
