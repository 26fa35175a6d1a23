"""Has a bundle compiled in a process of its own: calls then share neither the interpreter nor its pauses with that."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from policies.bundle import Bundle
from policies.compact import Ask, End, Hashes, Pack, Parts, Refused, Reply, Rows, Store, Taking, rows, some
from policies.framing import Broken, Reader, Writer
from policies.reading import Compiled, Failed
from policies.yamlfile import Problem

__all__ = ["MODULE", "ProcessCompiler"]

MODULE: Final = "policies.child"
LAST_WORD: Final = 0.5  # seconds for a process that closed its end to be gone
DEADLINE: Final = 120.0  # seconds for one bundle: ten thousand tenants take some ten on a free core


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
        self._command, self._environment = tuple(command), dict(environment)
        self._pause, self._ending, self._deadline = pause, ending, deadline

    def compile(self, directory: Path, before: Bundle, at: float) -> Compiled | list[Problem] | Failed:
        """Whatever becomes of the process, it is gone when this returns."""
        ends = time.monotonic() + self._deadline
        try:
            # Our own interpreter and arguments; no shell.
            process = subprocess.Popen(  # noqa: S603
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as fault:
            return Failed(f"no process to compile it in: {fault.strerror}")
        try:
            return self._asked(process, directory, before, at, ends)
        except Broken as fault:
            return Failed(f"the process that compiles it did not answer: {fault}{_end(process)}")
        except (ValueError, LookupError) as fault:  # of msgspec too
            return Failed(f"the process that compiles it answered what can't be: {fault}")
        finally:
            process.kill()  # where it ended by itself, nobody is left to be killed
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _asked(
        self, process: subprocess.Popen[bytes], directory: Path, before: Bundle, at: float, ends: float
    ) -> Compiled | list[Problem]:
        assert process.stdin is not None
        assert process.stdout is not None

        def left() -> float:
            return 0.0 if self._ending() else ends - time.monotonic()

        pack, store = Pack(), Store()
        known = rows(before.tenants.values(), pack, store)
        try:
            self._ask(Writer(process.stdin.fileno(), left), Ask(str(directory), at), before, known)
            return self._answer(Reader(process.stdout.fileno(), Reply, left), Taking(before, store))
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


def _end(process: subprocess.Popen[bytes]) -> str:
    """How it ended by itself, where it did."""
    try:
        code = process.wait(LAST_WORD)
    except subprocess.TimeoutExpired:
        return ""
    return f" (signal {-code})" if code < 0 else f" (exit code {code})"
