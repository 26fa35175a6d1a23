"""Has a bundle compiled in a process of its own: calls then share neither the interpreter nor its pauses with that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from policies.bundle import Bundle
from policies.compact import Ask, End, Hashes, Pack, Parts, Refused, Reply, Rows, Store, Taking, rows, some
from policies.framing import Broken, Reader, Writer
from policies.reading import Compiled, Failed
from policies.spawning import Child
from policies.yamlfile import Problem

__all__ = ["MODULE", "ProcessCompiler"]

MODULE: Final = "policies.child"
LAST_WORD: Final = 0.5  # seconds for a process that closed its end to be gone
DEADLINE: Final = 120.0  # seconds for one bundle: ten thousand tenants take some ten on a free core
# What of our environment an interpreter may need. The rest may be secrets, and what reads a bundle needs none.
_NEEDED: Final = frozenset({"LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV"})
_NEEDED_OF: Final = ("LC_", "PYTHON")


class ProcessCompiler:
    """``reading.Compiler`` by a child, one a bundle. ``command`` starts it: ``python -m policies.child``.

    ``pause`` is called between two messages, so that whoever waits for the interpreter has it first; ``ending`` says
    that nobody needs the answer any more.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pause: Callable[[], None] = lambda: None,
        ending: Callable[[], bool] = lambda: False,
        deadline: float = DEADLINE,
    ) -> None:
        self._command = tuple(command)
        self._environment = {name: value for name, value in environment.items() if _needed(name)}
        self._pause, self._ending, self._deadline = pause, ending, deadline

    def compile(self, directory: Path, before: Bundle, at: float) -> Compiled | list[Problem] | Failed:
        """Whatever becomes of the process, it is gone when this returns."""
        ends = time.monotonic() + self._deadline
        try:
            child = Child(self._command, self._environment)
        except OSError as fault:
            return Failed(f"no process to compile it in: {fault.strerror}")
        try:
            return self._asked(child, directory, before, at, ends)
        except Broken as fault:
            return Failed(f"the process that compiles it did not answer: {fault}{_end(child)}")
        except (ValueError, LookupError) as fault:  # of msgspec too
            return Failed(f"the process that compiles it answered what can't be: {fault}")
        finally:
            child.end()

    def _asked(self, child: Child, directory: Path, before: Bundle, at: float, ends: float) -> Compiled | list[Problem]:
        def left() -> float:
            return 0.0 if self._ending() else ends - time.monotonic()

        pack, store = Pack(), Store()
        known = rows(before.tenants.values(), pack, store)
        try:
            self._ask(Writer(child.stdin, left), Ask(str(directory), at), before, known)
            return self._answer(Reader(child.stdout, Reply, left), Taking(before, store))
        finally:
            pack.clear(self._pause)
            store.clear(self._pause)

    def _ask(self, writer: Writer, ask: Ask, before: Bundle, known: Iterable[Parts | Rows]) -> None:
        """What is asked, and all that need not be compiled again."""
        writer.write(ask)
        for few in some(before.hashes.items()):
            writer.write(Hashes(dict(few)))
        for message in known:
            writer.write(message)
            self._pause()
        writer.write(End())

    def _answer(self, reader: Reader[Reply], taking: Taking) -> Compiled | list[Problem]:
        while True:
            match reader.read():
                case Refused(problems=problems):
                    return problems
                case End():
                    return Compiled(taking.whole(), taking.changes)
                case reply:
                    taking.take(reply)
            self._pause()


def _needed(name: str) -> bool:
    return name in _NEEDED or name.startswith(_NEEDED_OF)


def _end(child: Child) -> str:
    """How it ended by itself, where it did."""
    code = child.ended(LAST_WORD)
    if code is None:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"
