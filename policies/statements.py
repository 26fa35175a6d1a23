"""``access/*.cedar`` read: each policy checked against the shipped schema and the bundle's names."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import cedarpy

from policies import advice
from policies.access import ALLOW_LIST, MENTIONABLE, Access, Statement, prepare
from policies.advice import Words, words_of
from policies.yamlfile import Problem, odd_letter, suggest

__all__ = ["compile_access", "nodes", "problem", "read_statements", "unknown_names"]

MAX_POLICIES: Final = 1000
MAX_POLICY_CHARS: Final = 8192
# Cedar's parser recurses on brackets and takes the process down between 256 and 1000 of them (cedarpy 4.12, measured).
MAX_NESTING: Final = 32

_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN: Final = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|[()\[\]{};]|"')
_QUOTED: Final = re.compile(r"`([^`]+)`|Action::\"([^\"]+)\"")
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
_PREFIX: Final = re.compile(r"^for policy `[^`]*`, ")


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
    words = words_of("warden.cedarschema")
    for statement, tree in read_statements(sources, words, ("id", "shadow"), known, problems):
        problems += unknown_names(statement, tree, {"Tenant": tenants, "Group": groups})
        problems += _unknown_principals(statement, tree, tenants)
        problems += _unknown_classes(statement, tree, classes)
        mentions |= _mentioned(tree)
    if len(known) > MAX_POLICIES:
        problems.append(Problem(next(iter(sources)), 1, 1, "", f"more than {MAX_POLICIES} policies in access/"))
    if problems:
        return problems
    return prepare(known, frozenset(mentions))


def read_statements(
    sources: Mapping[str, bytes],
    words: Words,
    annotations: Collection[str],
    known: dict[str, Statement],
    problems: list[Problem],
) -> Iterator[tuple[Statement, dict[str, Any]]]:
    """Each policy, and Cedar's JSON of it, checked against a schema; those with an ``@id`` are put into ``known``."""
    for file, data in sources.items():
        for written in _split(file, _decode(file, data, problems), problems):
            tree = _parse(written, problems)
            if tree is None:
                continue
            statement = _named(written, tree, known, annotations, problems)
            known.setdefault(statement.id, statement)
            problems += _invalid(statement, tree, words)
            yield statement, tree


def _decode(file: str, data: bytes, problems: list[Problem]) -> str:
    """The file's text; "" where it can't be one."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        before = data[: fault.start].decode("utf-8-sig")
        problems.append(_problem_at(file, before, len(before), "not UTF-8"))
        return ""
    if (odd := _UNPRINTABLE.search(text)) is not None:
        problems.append(_problem_at(file, text, odd.start(), f"character U+{ord(odd[0]):04X} is not allowed"))
        return ""
    return text


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


def problem(statement: Statement, message: str, near: str = "") -> Problem:
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
        odd = _odd(statement) if str(fault) == "invalid token" else None
        if odd is not None:  # Cedar doesn't say where
            problems.append(odd)
            return None
        problems.append(problem(statement, f"not Cedar: {advice.not_cedar(str(fault))}", _near(str(fault))))
        return None
    except RecursionError:  # the JSON of a long chain of operators is as deep as the chain is long
        problems.append(problem(statement, "nested too deeply"))
        return None
    if tree["templates"] or len(tree["staticPolicies"]) != 1:
        problems.append(problem(statement, "a template; write the principal or resource instead of a ?slot"))
        return None
    (policy,) = tree["staticPolicies"].values()
    assert isinstance(policy, dict)
    return policy


def _odd(statement: Statement) -> Problem | None:
    """The first character beyond ASCII that is in no string and no comment."""
    bare = _TOKEN.sub(lambda found: " " * len(found[0]) if len(found[0]) > 1 else found[0], statement.text)
    at = next((at for at, char in enumerate(bare) if not char.isascii()), None)
    if at is None:
        return None
    down, across = _place(bare, at)
    column = across if down > 1 else statement.column + across - 1
    message = f"not Cedar: a letter beyond ASCII{odd_letter(bare[at])}, outside of strings and comments"
    return Problem(statement.file, statement.line + down - 1, column, statement.id, message)


def _invalid(statement: Statement, tree: Mapping[str, Any], words: Words) -> Iterable[Problem]:
    """What the schema has against a policy: one problem a place, since Cedar tells each of them for every action."""
    found: dict[tuple[int, int], Problem] = {}

    def tell(message: str, near: str) -> None:
        place = problem(statement, message, near)
        found.setdefault((place.line, place.column), place)

    # Sorted, because Cedar tells them in any order.
    errors = sorted(
        {_PREFIX.sub("", each.error) for each in cedarpy.validate_policies(statement.text, words.schema).errors}
    )
    for message in errors:
        if message != advice.NOWHERE:
            told, near = advice.told(words, message)
            tell(told, near or _near(message))
    for told, near in advice.silent_faults(words, nodes(tree)):
        tell(told, near)
    if advice.NOWHERE in errors and len(errors) == 1:  # else it follows from a name that isn't known
        for told, near in advice.scope_faults(words, tree):
            tell(told, near)
    return found.values()


def _near(message: str) -> str:
    match = _QUOTED.search(message)
    return (match[1] or match[2]) if match else ""


def _named(
    statement: Statement,
    policy: Mapping[str, Any],
    known: Mapping[str, Statement],
    annotations: Collection[str],
    problems: list[Problem],
) -> Statement:
    written = policy.get("annotations", {})
    id_, effect, shadow = written.get("id") or "", policy["effect"], "shadow" in written
    named = Statement(statement.file, statement.line, statement.column, statement.text, id_, effect, shadow)
    for other in sorted(set(written) - set(annotations)):
        message = f"@{other} means nothing here{suggest(other, annotations)}"
        problems.append(problem(named, message, f"@{other}"))
    if shadow and effect == "permit":
        problems.append(problem(named, "a permit can't be in shadow: nothing would come of it", "@shadow"))
    if not id_:
        problems.append(problem(named, 'a policy without @id("…"); refusals name it'))
    elif _ID.fullmatch(id_) is None:
        problems.append(problem(named, "an @id is letters, digits, '.', '_' and '-', at most 64", f'"{id_}"'))
    elif id_ == ALLOW_LIST:
        problems.append(problem(named, f'@id("{ALLOW_LIST}") is the base permission\'s', f'"{id_}"'))
    elif id_ in known:
        first = known[id_]
        problems.append(problem(named, f"duplicate @id, first at {first.file}:{first.line}", f'"{id_}"'))
    return named


def unknown_names(
    statement: Statement, policy: Mapping[str, Any], names: Mapping[str, Collection[str] | None]
) -> Iterator[Problem]:
    for kind, name in literals(policy):
        known = names.get(kind)
        if known is not None and name not in known:
            message = f'{kind}::"{name}" is not in the bundle{suggest(name, known)}'
            yield problem(statement, message, f'{kind}::"{name}"')


def _unknown_principals(statement: Statement, policy: Mapping[str, Any], tenants: Collection[str]) -> Iterator[Problem]:
    """A caller's name begins with its tenant's; any other is nobody's, and the policy would silently never apply."""
    for kind, name in literals(policy):
        tenant, slash, _ = name.partition("/")
        if kind == "Principal" and not (slash and tenant in tenants):
            message = f'Principal::"{name}" is nobody: write its tenant, a slash and its name'
            yield problem(statement, f"{message}{suggest(tenant, tenants)}", f'Principal::"{name}"')


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON tree; its depth is bounded by MAX_NESTING and MAX_POLICY_CHARS."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def literals(policy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entity that a policy names, as (type, id)."""
    seen = {
        (node["type"], node["id"])
        for node in nodes(policy)
        if isinstance(node.get("type"), str) and isinstance(node.get("id"), str)
    }
    yield from sorted(seen)


def _unknown_classes(
    statement: Statement, policy: Mapping[str, Any], classes: Collection[str] | None
) -> Iterator[Problem]:
    """Data classes that a policy compares with and the bundle doesn't have."""
    for node in nodes(policy) if classes is not None else ():
        for operator in ("==", "!="):
            sides = node.get(operator)
            if not isinstance(sides, dict) or _DATA_CLASS not in sides.values():
                continue
            for side in sides.values():
                name = side.get("Value") if isinstance(side, dict) else None
                if isinstance(name, str) and name and name not in (classes or ()):
                    message = f'data class "{name}" is not in bundle.yaml{suggest(name, classes or ())}'
                    yield problem(statement, message, f'"{name}"')


_CONTEXT: Final = {"Var": "context"}
_DATA_CLASS: Final = {".": {"left": _CONTEXT, "attr": "data_class"}}


def _mentioned(policy: Mapping[str, Any]) -> set[str]:
    """Those of MENTIONABLE that an answer may depend on; all of them where the context is looked at as a whole."""
    found = {"name"} if any(kind == "Principal" for kind, _ in literals(policy)) else set()
    whole = apart = 0
    for node in nodes(policy):
        whole += node == _CONTEXT
        if "attr" in node:
            apart += node.get("left") == _CONTEXT
            found.add(node["attr"])
    return set(MENTIONABLE) if whole > apart else found & set(MENTIONABLE)
