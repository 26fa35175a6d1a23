"""Cedar rules on content: asked about facts taken from a prompt or an output, and remembered by those alone."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import cedarpy

from policies.access import Statement
from sidecar.core.model import Finding, InferenceFacts

__all__ = ["GUARD_SCHEMA", "REMEMBERED", "GuardRules", "Rule", "RuleSet", "Scope"]

GUARD_SCHEMA: Final = cedarpy.Schema.from_str(files("policies").joinpath("guards.cedarschema").read_text("utf-8"))
REMEMBERED: Final = 4096  # answers of one set of rules, and sets of one bundle
_BASE: Final = '@id("content") permit(principal, action, resource);\n'
_DECIMALS: Final = ("temperature", "top_p")
_MOST: Final = 922_337_203_685_477.0  # Cedar's decimals: 64 bits with four places


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as compiled. ``tenant`` and ``model``: the only one it is about, "" where it names none.

    ``bounds``: what it compares numbers with, by attribute. ``classes``: the identifiers it asks for.
    """

    statement: Statement
    on: frozenset[str]  # prompt, output
    flag: bool
    tenant: str
    model: str
    mentions: frozenset[str]
    bounds: tuple[tuple[str, int], ...]
    classes: frozenset[str]

    @property
    def enforced(self) -> bool:
        return not (self.flag or self.statement.shadow)

    def finding(self, on: str) -> Finding:
        verdict = "flag" if self.flag else "deny"
        return Finding(self.statement.id, on, verdict, "none" if self.statement.shadow else verdict)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose content it is, and which model's."""

    tenant: str
    plan: str
    model: str
    groups: tuple[str, ...]
    data_classes: tuple[str, ...]


class RuleSet:
    """The rules on a tenant's prompts, or outputs, with one model."""

    def __init__(self, rules: Sequence[Rule], on: str, scope: Scope) -> None:
        self.asked = frozenset(kind for rule in rules for kind in rule.classes)
        self.classes = tuple(sorted(self.asked))
        self._rules = {rule.statement.id: rule for rule in rules}
        self._on, self._scope = on, scope
        mentions = {name for rule in rules for name in rule.mentions}
        self.counts = "length" in mentions
        self._policies = _prepared(tuple(rule.statement.text for rule in rules))
        bounds: dict[str, set[int]] = {}
        for name, bound in (pair for rule in rules for pair in rule.bounds):
            bounds.setdefault(name, set()).add(bound)
        self._key = tuple(_reader(name, sorted(bounds.get(name, ()))) for name in sorted(mentions & set(_ATTRIBUTES)))
        self._known: dict[tuple[object, ...], tuple[Finding, ...]] = {}

    def judge(self, length: int, classes: frozenset[str], facts: InferenceFacts) -> tuple[Finding, ...]:
        """What the rules say of it: 0.1 ms where such facts weren't judged before."""
        key = tuple([read(length, classes, facts) for read in self._key])
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._ask(length, classes, facts)
        return known

    def _ask(self, length: int, classes: frozenset[str], facts: InferenceFacts) -> tuple[Finding, ...]:
        request, entities = _request(self._scope, self._on, _context(self._scope, length, classes, facts))
        try:
            prepared = cedarpy.Entities.from_json_str(json.dumps(entities), GUARD_SCHEMA)
            result = cedarpy.is_authorized(request, self._policies, prepared, GUARD_SCHEMA)
        except ValueError:  # a name that Cedar can't hold
            return tuple(rule.finding(self._on) for rule in self._rules.values())
        if result.diagnostics.errors:  # Cedar would pass over a rule that it can't evaluate: no answer is never a yes
            return tuple(rule.finding(self._on) for rule in self._rules.values())
        found = set(result.diagnostics.id_annotations_by_reason.values())
        return tuple(rule.finding(self._on) for id_, rule in self._rules.items() if id_ in found)


class GuardRules:
    """All rules of a bundle."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self.rules = rules

    def of(self, scope: Scope, on: str, *, enforced: bool | None = None) -> RuleSet | None:
        """Those that may apply; ``enforced``: only those that keep something from being sent, or only the others."""
        found = [
            rule
            for rule in self.rules.values()
            if on in rule.on
            and rule.tenant in ("", scope.tenant)
            and rule.model in ("", scope.model)
            and enforced in (None, rule.enforced)
        ]
        return RuleSet(found, on, scope) if found else None


@lru_cache(maxsize=REMEMBERED)
def _prepared(texts: tuple[str, ...]) -> cedarpy.PolicySet:
    return cedarpy.PolicySet.from_str(_BASE + "\n".join(texts), release_gil=True)


_Read = Callable[[int, frozenset[str], InferenceFacts], object]
_ATTRIBUTES: Final[Mapping[str, _Read]] = {
    "length": lambda length, _classes, _facts: length,
    "classes": lambda _length, classes, _facts: classes,
    "prompt_tokens": lambda _length, _classes, facts: facts.prompt_tokens,
    "max_tokens": lambda _length, _classes, facts: facts.requested_tokens,
    "sequences": lambda _length, _classes, facts: facts.sequences,
    "streaming": lambda _length, _classes, facts: facts.streaming,
    "temperature": lambda _length, _classes, facts: _decimal(facts, "temperature"),
    "top_p": lambda _length, _classes, facts: _decimal(facts, "top_p"),
}


def _reader(name: str, bounds: Sequence[int]) -> _Read:
    """The part of the memory's key that an attribute makes: of a number, only where it stands among the bounds."""
    read = _ATTRIBUTES[name]
    if not bounds:
        return read

    def place(length: int, classes: frozenset[str], facts: InferenceFacts) -> tuple[int, int]:
        value: Any = read(length, classes, facts)
        return bisect_left(bounds, value), bisect_right(bounds, value)

    return place


def _decimal(facts: InferenceFacts, name: str) -> str | None:
    """As Cedar writes it, four places; None: not stated, or no number."""
    value = facts.parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        return None
    return f"{value:.4f}"


def _context(scope: Scope, length: int, classes: frozenset[str], facts: InferenceFacts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "length": length,
        "classes": sorted(classes),
        "data_classes": sorted(scope.data_classes),
        "prompt_tokens": facts.prompt_tokens,
        "max_tokens": facts.requested_tokens,
        "sequences": facts.sequences,
        "streaming": facts.streaming,
    }
    for name in _DECIMALS:
        value = _decimal(facts, name)
        if value is not None:
            found[name] = {"__extn": {"fn": "decimal", "arg": value}}
    return found


def _request(scope: Scope, on: str, context: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    tenant, model = {"type": "Tenant", "id": scope.tenant}, {"type": "Model", "id": scope.model}
    entities: list[dict[str, Any]] = [
        {"uid": tenant, "attrs": {"plan": scope.plan}, "parents": []},
        {"uid": model, "attrs": {}, "parents": [{"type": "Group", "id": group} for group in scope.groups]},
    ]
    asked = {"principal": tenant, "action": {"type": "Action", "id": on}, "resource": model, "context": context}
    return asked, entities
