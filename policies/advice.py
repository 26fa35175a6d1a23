"""Says what is wrong with a Cedar policy in its schema's own names: what there is, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import cedarpy

from policies.yamlfile import suggest

__all__ = ["Words", "not_cedar", "scope_faults", "silent_faults", "told", "words_of"]

_COMMENT: Final = re.compile(r"//[^\n]*")
_ENTITY: Final = re.compile(r"entity\s+(\w+)(?:\s+in\s+\[([^\]]*)\])?\s*(?:\{([^}]*)\})?\s*;")
_TYPE: Final = re.compile(r"type\s+\w+\s*=\s*\{([^}]*)\}")
_ACTION: Final = re.compile(
    r"action\s+([\w\s,]+?)\s+appliesTo\s*\{\s*principal:\s*(\w+),\s*resource:\s*\[?([^\],]*(?:,[^\]:]*)?)\]?,\s*context"
)
_NAME: Final = re.compile(r"(\w+)\??\s*:")
_WORD: Final = re.compile(r"\w+")

_ATTRIBUTE: Final = re.compile(r"attribute `(\w+)` on entity type `(\w+)` not found")
_CONTEXT: Final = re.compile(r"attribute `(\w+)` in context for .* not found")
_OPTIONAL: Final = re.compile(r"unable to guarantee safety of access to optional attribute `(\w+)` in context.*")
_NO_ACTION: Final = re.compile(r'unrecognized action `Action::"([^"]*)"`')
_NO_TYPE: Final = re.compile(r"unrecognized entity type `(\w+)`")
NOWHERE: Final = "unable to find an applicable action given the policy scope constraints"

_NO_METHOD: Final = re.compile(r"`(\w+)` is not a valid method")
_NO_FUNCTION: Final = re.compile(r"`(\w+)` is not a valid function")
_NO_VARIABLE: Final = re.compile(r"invalid member access `[^`]*`, `(\w+)` has no fields or methods")
_VARIABLES: Final = ("principal", "action", "resource", "context")
_FUNCTIONS: Final = ("ip", "decimal", "datetime", "duration")
_METHODS: Final = (
    "contains", "containsAll", "containsAny", "isEmpty", "isIpv4", "isIpv6", "isLoopback", "isMulticast", "isInRange",
    "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Words:
    """What a schema knows. ``above``: what each entity type may be in; ``asked``: of each action, who and of what."""

    schema: cedarpy.Schema
    attributes: Mapping[str, tuple[str, ...]]
    above: Mapping[str, tuple[str, ...]]
    context: tuple[str, ...]
    asked: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(sorted(self.asked))


@cache
def words_of(file: str) -> Words:
    """Of one of the shipped schemas; they are of the few forms that are read here (a test asks Cedar about each)."""
    text = files("policies").joinpath(file).read_text("utf-8")
    bare = _COMMENT.sub("", text)
    entities = [(name, tuple(_WORD.findall(above)), inner) for name, above, inner in _ENTITY.findall(bare)]
    asked = {
        action: ((principal,), tuple(_WORD.findall(resources)))
        for actions, principal, resources in _ACTION.findall(bare)
        for action in _WORD.findall(actions)
    }
    return Words(
        cedarpy.Schema.from_str(text),
        {name: tuple(_NAME.findall(inner)) for name, _, inner in entities},
        {name: above for name, above, _ in entities},
        tuple(name for inner in _TYPE.findall(bare) for name in _NAME.findall(inner)),
        asked,
    )


def told(words: Words, message: str) -> tuple[str, str]:
    """What Cedar's validator says, with what it leaves out; and the text of the policy that it is about ("": none)."""
    if found := _NO_ACTION.fullmatch(message):
        return _none("action", found[1], words.actions), f'Action::"{found[1]}"'
    if found := _NO_TYPE.fullmatch(message):
        return _none("entity type", found[1], words.attributes), found[1]
    if found := _ATTRIBUTE.fullmatch(message):
        return _lacks(f"a {found[2]}", found[1], words.attributes.get(found[2], ())), found[1]
    if found := _CONTEXT.fullmatch(message):
        return _lacks("the context", found[1], words.context), found[1]
    if found := _OPTIONAL.fullmatch(message):
        name = found[1]
        return f"context.{name} may be absent; write context has {name} && before what asks for it", name
    return message, ""


def not_cedar(message: str) -> str:
    """What Cedar's parser says, with what was probably meant."""
    for shape, known in ((_NO_METHOD, _METHODS), (_NO_FUNCTION, _FUNCTIONS), (_NO_VARIABLE, _VARIABLES)):
        if found := shape.search(message):
            return f"{message}{suggest(found[1], known)}"
    return message


def silent_faults(words: Words, nodes: Iterator[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Attributes that ``has`` asks for and that nothing has: Cedar takes that for a plain no. Message, and text."""
    for node in nodes:
        sides = node.get("has")
        if (
            isinstance(sides, dict)
            and sides.get("left") == {"Var": "context"}
            and sides.get("attr") not in words.context
        ):
            yield _lacks("the context", str(sides["attr"]), words.context), str(sides["attr"])


def scope_faults(words: Words, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Why no call is within a policy's scope: message, and the text that it is about ("": all of it)."""
    actions = _actions(words, tree["action"])
    wrong = False
    for place, index in (("principal", 0), ("resource", 1)):
        fitting = {kind for action in actions for kind in words.asked[action][index]}
        for entity, operator in _entities(tree[place]):
            kind, name = entity["type"], entity["id"]
            if kind in words.attributes and not _fits(words, kind, operator, fitting):
                wrong = True
                hint = _other(words, place, kind, operator, fitting, name)
                asked = "" if place == "principal" or len(actions) == len(words.asked) else f" of {_list(actions)}"
                yield f"no {place}{asked} is {_how(operator)} a {kind}{hint}", f'{kind}::"{name}"' if name else kind
    if not wrong:
        yield (
            "no call is within this scope, whatever its action: "
            + "; ".join(
                f"{action} is asked of a {_list(resources, 'or')}"
                for action, (_, resources) in sorted(words.asked.items())
            ),
            "",
        )


def _actions(words: Words, scope: Mapping[str, Any]) -> list[str]:
    named = [scope["entity"]] if "entity" in scope else scope.get("entities", [])
    return [each["id"] for each in named if each["id"] in words.asked] or sorted(words.asked)


def _entities(scope: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    operator = str(scope.get("op"))
    if operator == "is":
        yield {"type": scope["entity_type"], "id": ""}, "=="
        inner = scope.get("in")
        if inner:
            yield inner["entity"], "in"
    elif "entity" in scope:
        yield scope["entity"], operator


def _fits(words: Words, kind: str, operator: str, fitting: Collection[str]) -> bool:
    return kind in fitting or (operator == "in" and any(kind in words.above[each] for each in fitting))


def _how(operator: str) -> str:
    return "in" if operator == "in" else "ever"


def _other(words: Words, place: str, kind: str, operator: str, fitting: Collection[str], name: str) -> str:
    if operator == "==" and name and any(kind in words.above[each] for each in fitting):
        return f'; did you mean {place} in {kind}::"{name}"?'
    kinds = sorted(
        {*fitting, *(above for each in fitting for above in words.above[each])} if operator == "in" else fitting
    )
    return f"; it is {'in ' if operator == 'in' else ''}a {_list(kinds, 'or')}"


def _none(what: str, name: str, known: Collection[str]) -> str:
    return f"no {what} is called {name}; there are {_list(sorted(known))}{suggest(name, known)}"


def _lacks(who: str, name: str, known: Collection[str]) -> str:
    has = f"it has {_list(sorted(known))}" if known else "it has no attributes"
    return f"{who} has no {name}; {has}{suggest(name, known)}"


def _list(names: Collection[str], word: str = "and") -> str:
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last
