"""Cedar: ``access/*.cedar`` checked against the shipped schema when a bundle is loaded, and asked per question.

What a policy means here: a tenant's ``models`` list is the base permission, as if the bundle held
``@id("allow-list") permit`` for each model on it. A ``permit`` here grants further models, a ``forbid`` takes away, and
a forbid always wins. Without policies the list alone decides. Permits and forbids are asked apart, so that a forbid on
a model which is not the caller's can't be told from a model that doesn't exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any, Final

import cedarpy

from policies.yamlfile import Problem, suggest
from sidecar.core.model import Action

__all__ = ["MENTIONABLE", "Access", "Answer", "Question", "Statement", "compile_access", "prepare"]

MAX_POLICIES: Final = 1000
MAX_POLICY_CHARS: Final = 8192
# Cedar's parser recurses on brackets and takes the process down between 256 and 1000 of them (cedarpy 4.12, measured).
MAX_NESTING: Final = 32

ALLOW_LIST: Final = "allow-list"
_BASE: Final = f'@id("{ALLOW_LIST}") permit(principal, action, resource);\n'
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN: Final = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|[()\[\]{};]|"')
_QUOTED: Final = re.compile(r"`([^`]+)`|Action::\"([^\"]+)\"")
# What an answer may depend on beside tenant, model, action and data class; only what policies mention is remembered by.
MENTIONABLE: Final = ("name", "issuer", "kind", "roles", "method", "source", "hour", "minute", "weekday")
_PREFIX: Final = re.compile(r"^for policy `[^`]*`, ")
_SCHEMA: Final = cedarpy.Schema.from_str(files("policies").joinpath("warden.cedarschema").read_text("utf-8"))


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
            prepared = cedarpy.Entities.from_json_str(json.dumps(entities), _SCHEMA)
            result = cedarpy.is_authorized(request, policies, prepared, _SCHEMA)
        except ValueError as fault:  # a name that Cedar can't hold, such as half a surrogate pair
            return False, (), str(fault)
        found = set(result.diagnostics.id_annotations_by_reason.values()) - {ALLOW_LIST}
        rules = tuple(id_ for id_ in self.statements if id_ in found) if found else ()
        return result.allowed, rules, "; ".join(result.diagnostics.errors)


EMPTY: Final = Access({}, None, None, None, frozenset())


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


# --- loading ------------------------------------------------------------------------------------------------------


def compile_access(
    sources: Mapping[str, bytes],
    tenants: Collection[str],
    groups: Collection[str] | None,
    classes: Collection[str] | None = None,
) -> Access | list[Problem]:
    """Every policy of every file, in file order, or all that is wrong with them.

    Each policy needs an ``@id`` of its own, because a refusal names it; the tenants, groups and data classes it names
    must be in the bundle, because a rule about a misspelt one would silently never apply (None: not checked).
    """
    problems: list[Problem] = []
    known: dict[str, Statement] = {}
    mentions: set[str] = set()
    for file, data in sources.items():
        for written in _split(file, _decode(file, data, problems), problems):
            tree = _parse(written, problems)
            if tree is None:
                continue
            statement = _named(written, tree, known, problems)
            known.setdefault(statement.id, statement)
            problems += _invalid(statement)
            problems += _unknown_names(statement, tree, {"Tenant": tenants, "Group": groups})
            problems += _unknown_classes(statement, tree, classes)
            mentions |= _mentioned(tree)
    if len(known) > MAX_POLICIES:
        problems.append(Problem(next(iter(sources)), 1, 1, "", f"more than {MAX_POLICIES} policies in access/"))
    if problems:
        return problems
    return prepare(known, frozenset(mentions))


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


def _decode(file: str, data: bytes, problems: list[Problem]) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        problems.append(Problem(file, data.count(b"\n", 0, fault.start) + 1, 1, "", "not UTF-8"))
        return ""


def _split(file: str, source: str, problems: list[Problem]) -> Iterator[Statement]:
    """The file's policies. Cedar ends each with a semicolon, which else stands only in strings and comments."""
    start, depth = 0, 0
    for token in _TOKEN.finditer(source):
        text = token[0]
        if text == ";":
            yield from _statement(file, source, start, token.end(), problems)
            start, depth = token.end(), 0
        elif text.startswith("//") and not source[start : token.start()].strip():
            start = token.end()
        depth += (text in _OPENING) - (text in _CLOSING)
        if text == '"' or depth > MAX_NESTING:
            message = "a string that doesn't end" if text == '"' else f"nested deeper than {MAX_NESTING} brackets"
            problems.append(_problem_at(file, source, token.start(), message))
            return
    if source[start:].strip():
        problems.append(_problem_at(file, source, _skip(source, start), "a policy that doesn't end with a semicolon"))


def _statement(file: str, source: str, start: int, end: int, problems: list[Problem]) -> Iterator[Statement]:
    start = _skip(source, start)
    if end - start > MAX_POLICY_CHARS:
        problems.append(_problem_at(file, source, start, f"a policy longer than {MAX_POLICY_CHARS} characters"))
        return
    line, column = _place(source, start)
    yield Statement(file, line, column, source[start:end])


def _skip(source: str, start: int) -> int:
    return start + len(source[start:]) - len(source[start:].lstrip())


def _place(source: str, offset: int) -> tuple[int, int]:
    return source.count("\n", 0, offset) + 1, offset - source.rfind("\n", 0, offset)


def _problem_at(file: str, source: str, offset: int, message: str) -> Problem:
    return Problem(file, *_place(source, offset), "", message)


def _problem(statement: Statement, message: str, near: str = "") -> Problem:
    """At ``near`` where that text stands exactly once in the policy, else where the policy begins."""
    line, column = statement.line, statement.column
    found = list(islice(re.finditer(rf"(?<!\w){re.escape(near)}(?!\w)", statement.text), 2)) if near else []
    if len(found) == 1:
        down, across = _place(statement.text, found[0].start())
        line, column = line + down - 1, across if down > 1 else column + across - 1
    return Problem(statement.file, line, column, statement.id, message)


def _parse(statement: Statement, problems: list[Problem]) -> dict[str, Any] | None:
    """The policy as Cedar's JSON."""
    try:
        tree = json.loads(cedarpy.policies_to_json_str(statement.text))
    except ValueError as fault:
        problems.append(_problem(statement, f"not Cedar: {fault}", _near(str(fault))))
        return None
    except RecursionError:  # the JSON of a long chain of operators is as deep as the chain is long
        problems.append(_problem(statement, "nested too deeply"))
        return None
    if tree["templates"] or len(tree["staticPolicies"]) != 1:
        problems.append(_problem(statement, "a template; write the principal or resource instead of a ?slot"))
        return None
    (policy,) = tree["staticPolicies"].values()
    assert isinstance(policy, dict)
    return policy


def _invalid(statement: Statement) -> Iterable[Problem]:
    """What the schema has against a policy: one problem a place, since Cedar tells each of them for every action."""
    found: dict[tuple[int, int], Problem] = {}
    # Sorted, because Cedar tells them in any order.
    errors = cedarpy.validate_policies(statement.text, _SCHEMA).errors
    for message in sorted(_PREFIX.sub("", error.error) for error in errors):
        problem = _problem(statement, message, _near(message))
        found.setdefault((problem.line, problem.column), problem)
    return found.values()


def _near(message: str) -> str:
    match = _QUOTED.search(message)
    return (match[1] or match[2]) if match else ""


def _named(
    statement: Statement, policy: Mapping[str, Any], known: Mapping[str, Statement], problems: list[Problem]
) -> Statement:
    annotations = policy.get("annotations", {})
    id_, effect, shadow = annotations.get("id") or "", policy["effect"], "shadow" in annotations
    named = Statement(statement.file, statement.line, statement.column, statement.text, id_, effect, shadow)
    for other in sorted(set(annotations) - {"id", "shadow"}):
        message = f"@{other} means nothing here{suggest(other, ('id', 'shadow'))}"
        problems.append(_problem(named, message, f"@{other}"))
    if shadow and effect == "permit":
        problems.append(_problem(named, "a permit can't be in shadow: nothing would come of it", "@shadow"))
    if not id_:
        problems.append(_problem(named, 'a policy without @id("…"); refusals name it'))
    elif _ID.fullmatch(id_) is None:
        problems.append(_problem(named, "an @id is letters, digits, '.', '_' and '-', at most 64", f'"{id_}"'))
    elif id_ == ALLOW_LIST:
        problems.append(_problem(named, f'@id("{ALLOW_LIST}") is the base permission\'s', f'"{id_}"'))
    elif id_ in known:
        first = known[id_]
        problems.append(_problem(named, f"duplicate @id, first at {first.file}:{first.line}", f'"{id_}"'))
    return named


def _unknown_names(
    statement: Statement, policy: Mapping[str, Any], names: Mapping[str, Collection[str] | None]
) -> Iterator[Problem]:
    for kind, name in _literals(policy):
        known = names.get(kind)
        if known is not None and name not in known:
            message = f'{kind}::"{name}" is not in the bundle{suggest(name, known)}'
            yield _problem(statement, message, f'{kind}::"{name}"')


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON tree; its depth is bounded by MAX_NESTING and MAX_POLICY_CHARS."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _literals(policy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entity that a policy names, as (type, id)."""
    seen = {
        (node["type"], node["id"])
        for node in _nodes(policy)
        if isinstance(node.get("type"), str) and isinstance(node.get("id"), str)
    }
    yield from sorted(seen)


def _unknown_classes(
    statement: Statement, policy: Mapping[str, Any], classes: Collection[str] | None
) -> Iterator[Problem]:
    """Data classes that a policy compares with and the bundle doesn't have."""
    for node in _nodes(policy) if classes is not None else ():
        for operator in ("==", "!="):
            sides = node.get(operator)
            if not isinstance(sides, dict) or _DATA_CLASS not in sides.values():
                continue
            for side in sides.values():
                name = side.get("Value") if isinstance(side, dict) else None
                if isinstance(name, str) and name and name not in (classes or ()):
                    message = f'data class "{name}" is not in bundle.yaml{suggest(name, classes or ())}'
                    yield _problem(statement, message, f'"{name}"')


_CONTEXT: Final = {"Var": "context"}
_DATA_CLASS: Final = {".": {"left": _CONTEXT, "attr": "data_class"}}


def _mentioned(policy: Mapping[str, Any]) -> set[str]:
    """Those of MENTIONABLE that an answer may depend on; all of them where the context is looked at as a whole."""
    found = {"name"} if any(kind == "Principal" for kind, _ in _literals(policy)) else set()
    whole = apart = 0
    for node in _nodes(policy):
        whole += node == _CONTEXT
        if "attr" in node:
            apart += node.get("left") == _CONTEXT
            found.add(node["attr"])
    return set(MENTIONABLE) if whole > apart else found & set(MENTIONABLE)
