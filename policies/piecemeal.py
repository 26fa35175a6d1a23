"""Frees what is large a little at a time: ten thousand tenants at once take 20 ms, during which no call goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["let_go"]

PIECE: Final = 50  # things that are freed at once


def let_go(pause: Callable[[], None], *containers: dict[Any, Any] | list[Any]) -> None:
    """Empty each of them, and call ``pause`` after each piece. What nobody else holds is gone then."""
    for container in containers:
        while container:
            if isinstance(container, list):
                del container[-PIECE:]
            else:
                for _ in range(min(PIECE, len(container))):
                    container.popitem()
            pause()
