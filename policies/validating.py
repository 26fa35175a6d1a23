"""Pydantic's errors about a document, told at the places where they stand in it."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from policies.yamlfile import MAX_PROBLEMS, Document, KeyPath, Problem, odd_letter, suggest

__all__ = ["validate"]

Model = TypeVar("Model", bound=BaseModel)

_CONTAINERS: Final = (dict, Mapping, list, tuple, set, frozenset)


def validate(model: type[Model], document: Document) -> Model | list[Problem]:
    """The document as ``model``, or every mistake pydantic finds, each at its place, in the order of the file."""
    try:
        return model.model_validate(document.data)
    except ValidationError as fault:
        errors = fault.errors(include_url=False, include_input=False)
        problems = {_problem(model, document, error): None for error in errors}
        return sorted(problems, key=lambda problem: (problem.line, problem.column))[:MAX_PROBLEMS]


def _problem(model: type[BaseModel], document: Document, error: ErrorDetails) -> Problem:
    path, at_key = _locate(document, error["loc"]), False
    match error["type"]:
        case "missing":
            path, message = (*path, str(error["loc"][-1])), "required, and missing"
        case "extra_forbidden":
            key = str(path[-1])
            at_key, message = True, f"unknown key{odd_letter(key)}{suggest(key, _fields(model, path[:-1]))}"
        case "model_type" | "model_attributes_type" | "dict_type" | "dataclass_type":
            message = "should be a mapping of keys to values"
        case "list_type" | "tuple_type" | "set_type" | "frozen_set_type":
            message = "should be a list"
        case _:
            # What is wrong with a mapping or a list as a whole is told at its name, where people look for it.
            at_key = "[key]" in error["loc"] or isinstance(_value_at(document, path), dict | list)
            message = _message(document, path, error)
            path, message, at_key = _closer(document, path, message, at_key=at_key)
    return document.problem(path, message, at_key=at_key)


def _message(document: Document, path: KeyPath, error: ErrorDetails) -> str:
    """Pydantic's own words without its grammar. The value itself isn't repeated: it may be a secret."""
    message = error["msg"]
    for grammar in ("Value error, ", "Assertion failed, ", "Input ", "String ", "Tuple ", "List ", "Dictionary "):
        message = message.removeprefix(grammar)
    message = message.partition(" after validation")[0]
    if error["type"] in ("literal_error", "enum"):
        expected = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
        value = _value_at(document, path)
        message += f"{odd_letter(value)}{suggest(value, expected)}" if isinstance(value, str) else ""
    elif error["type"] in ("int_type", "int_from_float"):
        value = _value_at(document, path)
        message += _INSTEAD.get(type(value), "")
    return message


# What YAML of other versions reads as a number is text here, so that nobody means another number than another reads.
_INSTEAD: Final = {
    str: "; this is text, a number is plain decimal digits without quotes",
    float: "; this is a fraction",
}


def _closer(document: Document, path: KeyPath, message: str, *, at_key: bool) -> tuple[KeyPath, str, bool]:
    """What is said of a mapping as a whole, but begins with one of its keys, is told at that key."""
    key, _, rest = message.partition(" ")
    if rest.startswith("is ") and (*path, key) in document.keys:
        return (*path, key), rest, True
    return path, message, at_key


def _value_at(document: Document, path: KeyPath) -> Any:
    value = document.data
    for part in path:
        value = value[part]
    return value


def _locate(document: Document, loc: tuple[str | int, ...]) -> KeyPath:
    """The part of pydantic's ``loc`` that is in the document: without union tags, validators' names and ``[key]``."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.values:
            path = (*path, part)
    return path


def _fields(annotation: Any, path: KeyPath) -> set[str]:
    """The keys that a model knows at ``path`` below ``annotation``, for suggestions."""
    if _is_model(annotation):
        fields = annotation.model_fields
        if issubclass(annotation, RootModel):
            return _fields(fields["root"].annotation, path)
        if not path:
            return {field.alias or name for name, field in fields.items()}
        inner = [field.annotation for name, field in fields.items() if path[0] in (name, field.alias)]
        rest = path[1:]
    elif typing.get_origin(annotation) in _CONTAINERS:
        # Without a path left, it is a list for which one mapping may stand.
        inner, rest = list(typing.get_args(annotation))[-2:], path[1:]
    else:  # a union, an Annotated, or nothing that has keys
        inner, rest = list(typing.get_args(annotation)), path
    return {name for each in inner for name in _fields(each, rest)}


def _is_model(annotation: Any) -> bool:
    # A parametrised generic such as list[int] says that it is a type, and can't be asked for its bases.
    return typing.get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel)
