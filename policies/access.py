"""Cedar: ``access/*.cedar`` checked against the shipped schema when a bundle is loaded, and asked per question.

What a policy means here: a tenant's ``models`` list is the base permission, as if the bundle held
``@id("allow-list") permit`` for each model on it. A ``permit`` here grants further models, a ``forbid`` takes away, and
a forbid always wins. Without policies the list alone decides. Permits and forbids are asked apart, so that a forbid on
a model which is not the caller's can't be told from a model that doesn't exist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import cedarpy

from sidecar.core.model import Action

__all__ = ["ALLOW_LIST", "MENTIONABLE", "SCHEMA", "Access", "Answer", "Question", "Statement", "prepare"]

ALLOW_LIST: Final = "allow-list"
_BASE: Final = f'@id("{ALLOW_LIST}") permit(principal, action, resource);\n'
# What an answer may depend on beside tenant, model, action and data class; only what policies mention is remembered by.
MENTIONABLE: Final = ("name", "issuer", "kind", "roles", "method", "source", "hour", "minute", "weekday")
SCHEMA: Final = cedarpy.Schema.from_str(files("policies").joinpath("warden.cedarschema").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a policy may look at. ``model`` "" asks about the server itself."""

    tenant: str
    plan: str
    name: str
    kind: str
    issuer: str
    roles: frozenset[str]
    action: Action
    model: str
    groups: tuple[str, ...]
    region: str
    jurisdiction: str
    data_class: str
    method: str
    source: str = ""  # an address; "": not known
    hour: int = 0
    minute: int = 0
    weekday: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the policies asked applied, and by which (their ``@id``s, in the bundle's order).

    ``fault`` says why one of them couldn't be evaluated.
    """

    applies: bool
    rules: tuple[str, ...] = ()
    fault: str = ""

    @property
    def rule(self) -> str:
        """The one that stands first in the bundle."""
        return self.rules[0] if self.rules else ""


@dataclass(frozen=True, slots=True)
class Statement:
    """One policy as written, and where it begins."""

    file: str
    line: int
    column: int
    text: str
    id: str = ""
    effect: str = ""
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """A bundle's policies, prepared. ``mentions``: those of MENTIONABLE that some policy looks at."""

    statements: Mapping[str, Statement]
    permits: cedarpy.PolicySet | None
    forbids: cedarpy.PolicySet | None
    shadows: cedarpy.PolicySet | None
    mentions: frozenset[str]

    @property
    def by_name(self) -> bool:
        """Whether some policy looks at who exactly calls, not only at their tenant."""
        return bool(self.mentions & {"name", "issuer"})

    def grants(self, question: Question) -> Answer:
        """Whether a permit applies."""
        if self.permits is None:
            return Answer(applies=False)
        allowed, rules, fault = self._ask(self.permits, question)
        return Answer(allowed and not fault, rules, fault)

    def forbidden(self, question: Question) -> Answer:
        """Whether a forbid applies. One that can't be evaluated applies: Cedar itself would skip it."""
        return self._forbidden(self.forbids, question)

    def shadowed(self, question: Question) -> Answer:
        """Whether a forbid applies that is in shadow."""
        return self._forbidden(self.shadows, question)

    def _forbidden(self, policies: cedarpy.PolicySet | None, question: Question) -> Answer:
        if policies is None:
            return Answer(applies=False)
        allowed, rules, fault = self._ask(policies, question)
        return Answer(not allowed or bool(fault), () if allowed else rules, fault)

    def _ask(self, policies: cedarpy.PolicySet, question: Question) -> tuple[bool, tuple[str, ...], str]:
        request, entities = _request(question)
        try:
            prepared = cedarpy.Entities.from_json_str(json.dumps(entities), SCHEMA)
            result = cedarpy.is_authorized(request, policies, prepared, SCHEMA)
        except ValueError as fault:  # a name that Cedar can't hold, such as half a surrogate pair
            return False, (), str(fault)
        found = set(result.diagnostics.id_annotations_by_reason.values()) - {ALLOW_LIST}
        rules = tuple(id_ for id_ in self.statements if id_ in found) if found else ()
        return result.allowed, rules, "; ".join(result.diagnostics.errors)


def _request(q: Question) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    tenant, principal = _uid("Tenant", q.tenant), _uid("Principal", f"{q.tenant}/{q.name}")
    resource = _uid("Model", q.model) if q.model else _uid("Server", "triton")
    who = {
        "tenant": {"__entity": tenant},
        "name": q.name,
        "kind": q.kind,
        "issuer": q.issuer,
        "roles": sorted(q.roles),
    }
    entities: list[dict[str, Any]] = [
        {"uid": tenant, "attrs": {"plan": q.plan}, "parents": []},
        {"uid": principal, "attrs": who, "parents": [tenant]},
        {"uid": resource, "attrs": {}, "parents": [_uid("Group", group) for group in q.groups]},
    ]
    context: dict[str, Any] = {
        "region": q.region,
        "jurisdiction": q.jurisdiction,
        "data_class": q.data_class,
        "method": q.method,
        "hour": q.hour,
        "minute": q.minute,
        "weekday": q.weekday,
    }
    if q.source:
        context["source"] = {"__extn": {"fn": "ip", "arg": q.source}}
    action = _uid("Action", q.action.value)
    return {"principal": principal, "action": action, "resource": resource, "context": context}, entities


def _uid(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "id": name}


def prepare(known: Mapping[str, Statement], mentions: frozenset[str]) -> Access:
    """Policies that were checked before, made ready to be asked."""
    permits, forbids = (
        [statement for statement in known.values() if statement.effect == effect] for effect in ("permit", "forbid")
    )
    return Access(
        known,
        _prepare(permits, ""),
        _prepare([statement for statement in forbids if not statement.shadow], _BASE),
        _prepare([statement for statement in forbids if statement.shadow], _BASE),
        mentions,
    )


def _prepare(statements: Sequence[Statement], base: str) -> cedarpy.PolicySet | None:
    if not statements:
        return None
    # Without the interpreter's lock: a thousand policies take long enough for calls to notice.
    return cedarpy.PolicySet.from_str(base + "\n".join(each.text for each in statements), release_gil=True)
