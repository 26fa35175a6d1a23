"""``guards/*.cedar`` read: each rule checked against its schema, and what its answer depends on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from policies.access import Statement
from policies.advice import words_of
from policies.rules import GuardRules, Rule
from policies.statements import nodes, problem, read_statements, unknown_names
from policies.yamlfile import Problem, suggest

__all__ = ["MAX_RULES", "compile_rules"]

MAX_RULES: Final = 256
# audit.identifiers.CLASSES, which is 13 MB to load where nobody needs it; a test holds the two together.
IDENTIFIERS: Final = ("email", "phone", "iban", "card", "national_id", "ip")
_CONTEXT: Final = {"Var": "context"}
_NUMBERS: Final = frozenset({"length", "prompt_tokens", "max_tokens", "sequences"})
_ORDERS: Final = ("==", "!=", "<", "<=", ">", ">=")
_ASKS: Final = ("contains", "containsAny", "containsAll")


def compile_rules(
    sources: Mapping[str, bytes],
    tenants: Collection[str],
    groups: Collection[str] | None,
    data_classes: Collection[str] | None,
    guards: Mapping[str, str],
) -> GuardRules | list[Problem] | None:
    """Every rule of every file, or all that is wrong with them; None where there is none.

    ``guards``: the documents' guards by their ids, and where each stands. A record names both alike.
    """
    problems: list[Problem] = []
    known: dict[str, Statement] = {}
    rules: dict[str, Rule] = {}
    words = words_of("guards.cedarschema")
    for statement, tree in read_statements(sources, words, ("id", "flag", "shadow"), known, problems):
        if statement.effect == "permit":
            problems.append(problem(statement, "a permit; a rule on content forbids, and grants nothing", "permit"))
        if statement.id in guards:
            message = f"the @id of a guard too, in {guards[statement.id]}"
            problems.append(problem(statement, message, f'"{statement.id}"'))
        problems += unknown_names(statement, tree, {"Tenant": tenants, "Group": groups})
        problems += _not_ordered(statement, tree)
        problems += _unknown(statement, tree, "classes", IDENTIFIERS, "kind of identifier")
        if data_classes is not None:
            problems += _unknown(statement, tree, "data_classes", data_classes, "data class in bundle.yaml")
        rules[statement.id] = _rule(statement, tree)
    if len(rules) > MAX_RULES:
        problems.append(Problem(next(iter(sources)), 1, 1, "", f"more than {MAX_RULES} rules in guards/"))
    if problems:
        return problems
    return GuardRules(rules) if rules else None


def _rule(statement: Statement, tree: Mapping[str, Any]) -> Rule:
    action = tree["action"]
    named = [action["entity"]] if "entity" in action else action.get("entities", [])
    mentions = frozenset(name for node in nodes(tree) if (name := _attribute(node)))
    return Rule(
        statement=statement,
        on=frozenset(entity["id"] for entity in named) or frozenset({"prompt", "output"}),
        flag="flag" in tree.get("annotations", {}),
        tenant=_only(tree["principal"], "Tenant"),
        model=_only(tree["resource"], "Model"),
        mentions=mentions,
        bounds=tuple(sorted({(name, bound) for name, bound in _compared(tree) if bound is not None})),
        classes=frozenset(IDENTIFIERS if _asks_for_all(tree) else _asked(tree, "classes")),
    )


def _only(scope: Mapping[str, Any], kind: str) -> str:
    entity = scope.get("entity", {})
    return str(entity["id"]) if scope.get("op") == "==" and entity.get("type") == kind else ""


def _attribute(node: Any) -> str:
    """``context.name`` as Cedar's JSON has it; "" for anything else."""
    found = node.get(".") if isinstance(node, dict) else None
    return str(found["attr"]) if isinstance(found, dict) and found.get("left") == _CONTEXT else ""


def _compared(tree: Any) -> Iterator[tuple[str, int | None]]:
    """Each comparison of a number of the context: with what; None: with something that is no plain number."""
    for node in nodes(tree):
        for order in _ORDERS:
            sides = node.get(order)
            if not isinstance(sides, dict) or "left" not in sides:
                continue
            for one, other in ((sides["left"], sides["right"]), (sides["right"], sides["left"])):
                name = _attribute(one)
                if name in _NUMBERS:
                    value = other.get("Value") if isinstance(other, dict) else None
                    yield name, value if isinstance(value, int) else None


def _not_ordered(statement: Statement, tree: Any) -> Iterator[Problem]:
    plain = [name for name, bound in _compared(tree) if bound is not None]
    used = [name for node in nodes(tree) if (name := _attribute(node)) in _NUMBERS]
    for name in sorted(set(used)):
        if used.count(name) != plain.count(name):
            message = f"context.{name} may only be compared with a number, such as context.{name} > 1000"
            yield problem(statement, message, name)
    whole = sum(node == _CONTEXT for node in nodes(tree))
    apart = sum(bool(_attribute(node)) or _has(node) for node in nodes(tree))
    if whole > apart:
        yield problem(statement, "the context as a whole; name the attribute that is meant", "context")


def _has(node: Mapping[str, Any]) -> bool:
    found = node.get("has")
    return isinstance(found, dict) and found.get("left") == _CONTEXT


def _asked(tree: Any, attribute: str) -> Iterator[str]:
    """The texts that a set of the context is asked for."""
    for node in nodes(tree):
        for ask in _ASKS:
            sides = node.get(ask)
            if isinstance(sides, dict) and _attribute(sides.get("left")) == attribute:
                wanted = sides["right"]
                for each in wanted.get("Set", [wanted]) if isinstance(wanted, dict) else ():
                    if isinstance(each.get("Value"), str):
                        yield each["Value"]


def _asks_for_all(tree: Any) -> bool:
    """Whether the identifiers are asked about in any other way than for one by its name."""
    used = sum(_attribute(node) == "classes" for node in nodes(tree))
    named = sum(
        _attribute(node[ask].get("left")) == "classes" for node in nodes(tree) for ask in _ASKS
        if isinstance(node.get(ask), dict)
    )  # fmt: skip
    return used > named


def _unknown(statement: Statement, tree: Any, attribute: str, known: Collection[str], what: str) -> Iterator[Problem]:
    for name in sorted(set(_asked(tree, attribute)) - set(known)):
        yield problem(statement, f'no {what} is called "{name}"{suggest(name, known)}', f'"{name}"')
