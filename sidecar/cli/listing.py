"""Lists that may be longer than memory: on a terminal a bounded part, as JSON all, written while they are found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json import dumps
from typing import Any, Final

import typer

__all__ = ["MOST_TOLD", "Lines", "Object"]

MOST_TOLD: Final = 200  # lines of one list that are printed one by one


class Lines:
    """Prints the first MOST_TOLD, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, line: str) -> None:
        self.count += 1
        if self.count <= MOST_TOLD:
            typer.echo(line)

    def end(self) -> None:
        if self.count > MOST_TOLD:
            typer.echo(f"… and {self.count - MOST_TOLD} more lines; --json has all")


class Object:
    """One JSON object on stdout, a key at a time; one that was broken off is no JSON, and so can't pass for whole."""

    def __init__(self) -> None:
        self._keys = 0

    def items(self, key: str, items: Iterable[Mapping[str, Any]]) -> int:
        """A list, an item a line; how many there were."""
        self._key(key)
        count = 0
        typer.echo("[", nl=False)
        for item in items:
            typer.echo(("," if count else "") + "\n" + dumps(item, ensure_ascii=False), nl=False)
            count += 1
        typer.echo("]", nl=False)
        return count

    def value(self, key: str, value: object) -> None:
        self._key(key)
        typer.echo(dumps(value, ensure_ascii=False), nl=False)

    def end(self) -> None:
        typer.echo("}")

    def _key(self, key: str) -> None:
        typer.echo(("," if self._keys else "{") + dumps(key) + ": ", nl=False)
        self._keys += 1
