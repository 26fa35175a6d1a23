"""Reads out of a PromQL expression which metrics it names, and with which labels."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LABEL_VALUES = re.compile(r"^label_values\((.*),\s*\w+\)$", re.DOTALL)
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{([^}]*)\})?(?!\s*\(|[a-zA-Z0-9_:])")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_KEYWORDS = {"and", "or", "unless", "bool", "offset"}


@dataclass(frozen=True, slots=True)
class Selector:
    """One metric in an expression: ``matchers`` are (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def selectors(expression: str) -> list[Selector]:
    """Every metric that the expression (or Grafana's ``label_values(…)``) reads."""
    query = _LABEL_VALUES.sub(r"\1", expression.strip())
    query = _GROUPING.sub(" ", query)
    query = re.sub(r"\[[^\]]*\]", "", query)  # ranges
    found = []
    for match in _SELECTOR.finditer(query):
        name, matchers = match[1], match[2] or ""
        inside = query.rfind("{", 0, match.start()) > query.rfind("}", 0, match.start())
        if name in _KEYWORDS or inside:
            continue
        found.append(Selector(name, tuple(_MATCHER.findall(matchers))))
    return found


def groupings(expression: str) -> set[str]:
    """Every label that the expression groups or joins by."""
    bare = _STRING.sub('""', expression)
    return {label.strip() for group in _GROUPING.findall(bare) for label in group.split(",") if label.strip()}
