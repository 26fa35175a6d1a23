"""Guards: what a tenant's prompts and outputs may hold; a guard that finds it flags the call, or denies or cuts it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from policies.rules import REMEMBERED, GuardRules, RuleSet, Scope
from policies.watching import Hold, Lens, Watch
from sidecar.core.model import Finding, InferenceFacts

if TYPE_CHECKING:
    from policies.document import GuardDoc
    from policies.scanner import Scanner
    from policies.tenant import Tenant

__all__ = ["PROMPT_CHARS", "Guard", "Guards", "Joined", "compile_guards"]

# A search of this many characters takes some ms of everybody's event loop; a longer prompt counts as found.
PROMPT_CHARS: Final = 262_144
_NOTHING: Final[frozenset[int]] = frozenset()
_NONE: Final[frozenset[str]] = frozenset()


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
    """Guards and rules with the one scanner that looks for all that they look for."""

    def __init__(self, guards: Sequence[Guard], rules: RuleSet | None) -> None:
        patterns = tuple(dict.fromkeys(pattern for guard in guards for pattern in guard.patterns))
        kinds = [kind for guard in guards for kind in guard.classes]
        classes = tuple(dict.fromkeys((*kinds, *(rules.classes if rules is not None else ()))))
        # Loaded where a bundle has guards: RE2 and the numbering plans are 15 MB that most sidecars needn't hold.
        scanner: Any = importlib.import_module("policies.scanner").scanner
        self.scanner: Scanner = scanner(patterns, classes)
        numbers = {what: number for number, what in enumerate((*patterns, *classes))}
        self._kinds = {numbers[kind]: kind for kind in classes}
        self._rules = rules
        self._bounded = any(guard.longer_than is not None for guard in guards)
        self.guards = [
            (guard, frozenset(numbers[what] for what in (*guard.patterns, *guard.classes))) for guard in guards
        ]

    def judge(self, facts: InferenceFacts, characters: int, found: frozenset[int]) -> tuple[Finding, ...]:
        """Of an output, so many characters long by now (0 where no rule looks at that)."""
        told = tuple(guard.finding() for guard, looks_for in self.guards if looks_for & found) if found else ()
        return told if self._rules is None else told + self._ruled(self._rules, characters, found, facts)

    def _ruled(
        self, rules: RuleSet, characters: int, found: frozenset[int], facts: InferenceFacts
    ) -> tuple[Finding, ...]:
        kinds = frozenset(self._kinds[number] for number in found if number in self._kinds) if found else _NONE
        return rules.judge(characters, kinds & rules.asked, facts)

    def whole(self, facts: InferenceFacts) -> tuple[Finding, ...]:
        """Of a prompt, all of which is there."""
        texts = facts.prompts
        if len(texts) == 1 and texts[0].isascii():
            characters = len(texts[0])
            if characters <= PROMPT_CHARS and self.scanner.nothing(texts[0]):
                return self._told(facts, characters, _NOTHING)
        else:
            characters = sum(len(text) if text.isascii() else len(text.decode("utf-8", "replace")) for text in texts)
        if characters > PROMPT_CHARS:  # it can't be searched in time, and no answer is never a yes
            found = frozenset(range(self.scanner.size))
        else:
            looks = (self.scanner.look(text, 0, {}, first=True, last=True) for text in texts)
            found = frozenset(number for look in looks for number in look.certain)
        return self._told(facts, characters, found)

    def _told(self, facts: InferenceFacts, characters: int, found: frozenset[int]) -> tuple[Finding, ...]:
        told: tuple[Finding, ...] = ()
        if found or self._bounded:
            told = tuple(
                guard.finding() for guard, looks_for in self.guards if looks_for & found or _long(guard, characters)
            )
        return told if self._rules is None else told + self._ruled(self._rules, characters, found, facts)

    def lens(self, facts: InferenceFacts) -> Lens:
        return Lens(self.scanner, partial(self.judge, facts), counts=self._rules is not None and self._rules.counts)


def _long(guard: Guard, characters: int) -> bool:
    return guard.longer_than is not None and characters > guard.longer_than


class Guards:
    """A tenant's guards, and the rules on its content with one model. Implements ``ports.Guards``.

    Raises ``ValueError`` where their patterns together are more than may be.
    """

    def __init__(
        self,
        guards: Sequence[Guard],
        hold: Hold | None = None,
        rules: GuardRules | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.guards, self.hold = tuple(guards), hold
        output = [guard for guard in guards if guard.on == "output"]

        def ruled(on: str, *, enforced: bool | None = None) -> RuleSet | None:
            return None if rules is None or scope is None else rules.of(scope, on, enforced=enforced)

        self._prompt = _looked((guard for guard in guards if guard.on == "prompt"), ruled("prompt"))
        self._denies = _looked((guard for guard in output if guard.enforced), ruled("output", enforced=True))
        self._tells = _looked((guard for guard in output if not guard.enforced), ruled("output", enforced=False))
        self._all = _looked(output, ruled("output"))  # where nothing is enforced

    def prompt(self, facts: InferenceFacts) -> tuple[Finding, ...]:
        """What the guards on prompts find, in their order."""
        if self._prompt is None or not facts.prompts:
            return ()
        return self._prompt.whole(facts)

    def watch(self, facts: InferenceFacts, *, enforce: bool = True) -> Watch | None:
        """For one call's output; None: no guard looks at it. Without ``enforce`` nothing is held for it."""
        denies, tells = (self._denies, self._tells) if enforce else (None, self._all)
        if denies is None and tells is None:
            return None
        return Watch(
            None if denies is None else denies.lens(facts), None if tells is None else tells.lens(facts), self.hold
        )


def compile_guards(docs: Sequence[GuardDoc], hold: Hold | None = None) -> Guards | None:
    """None where there are none, so that a call without guards costs nothing. Raises as ``Guards`` does."""
    return _shared(tuple(_guard(doc) for doc in docs), hold) if docs else None


@lru_cache(maxsize=1024)
def _shared(guards: tuple[Guard, ...], hold: Hold | None) -> Guards:
    """Ten thousand tenants of a few plans have a few kinds of guards between them."""
    return Guards(guards, hold)


class Joined:
    """A bundle's rules joined to its tenants' guards, as they are asked for."""

    def __init__(self, rules: GuardRules) -> None:
        self._rules = rules
        self.rules = rules.rules
        self._known: dict[Scope, Guards | None] = {}

    def of(self, tenant: Tenant, model: str, groups: tuple[str, ...], data_classes: tuple[str, ...]) -> Guards | None:
        """What looks at the content of a tenant's calls of a model."""
        scope = Scope(tenant.name, tenant.plan, model, groups, data_classes)
        if scope not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            own = tenant.guards
            some = any(self._rules.of(scope, on) is not None for on in ("prompt", "output"))
            joined = Guards(own.guards if own else (), tenant.hold, self._rules, scope) if some else own
            self._known[scope] = joined
        return self._known[scope]


def _guard(doc: GuardDoc) -> Guard:
    return Guard(doc.id, doc.on, doc.then == "deny", doc.shadow, doc.longer_than, doc.classes, doc.patterns)


def _looked(guards: Iterable[Guard], rules: RuleSet | None) -> _Looked | None:
    found = tuple(guards)
    return _Looked(found, rules) if found or rules is not None else None
