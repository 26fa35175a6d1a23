"""Starts a process while the interpreter goes on: until it runs its program, only the thread that starts it waits.

``subprocess`` keeps the interpreter's lock until then. On a busy machine the new process waits for a core, and with it
every call did: 40 ms were measured.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

__all__ = ["Child"]

_LIBC: Final = ctypes.CDLL(None)  # calls of a CDLL are made without the interpreter's lock
_OPAQUE: Final = 1024  # bytes; glibc's file actions take 80, attributes 336, a set of signals 128
_SETSIGDEF, _SETSIGMASK = 0x04, 0x08  # <spawn.h>
_ABOVE: Final = 3  # descriptors below are standard input, output and error
_TURN: Final = 0.005  # seconds between two looks at whether it has ended


class Child:
    """A running process: ``stdin`` and ``stdout`` are our ends of its pipes, its stderr is ours.

    It has none of our other descriptors, no signal blocked or ignored, and no more of our environment than it is given.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises ``OSError`` where it can't be started."""
        self._code: int | None = None
        theirs: list[int] = []
        ours: list[int] = []
        with ExitStack() as failing:
            failing.callback(_close, ours)
            try:
                for reads in (True, False):
                    read, write = _pipe()
                    theirs.append(read if reads else write)
                    ours.append(write if reads else read)
                self.pid = _spawn(command, environment, theirs)
            finally:
                _close(theirs)
            failing.pop_all()
        self.stdin, self.stdout = ours

    def ended(self, within: float) -> int | None:
        """Its exit code, or minus the signal that ended it; None: it still runs, ``within`` so many seconds."""
        until = time.monotonic() + within
        while not self._reaped(os.WNOHANG) and time.monotonic() < until:
            time.sleep(_TURN)
        return self._code

    def end(self) -> None:
        """At once. Nothing of it is left: no process, no zombie, no pipe."""
        if not self._reaped(os.WNOHANG):
            os.kill(self.pid, signal.SIGKILL)  # nobody else reaps it, so the number is still its own
            self._reaped(0)
        _close([self.stdin, self.stdout])

    def _reaped(self, flags: int) -> bool:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # whoever hosts us lets the kernel reap: how it ended is nobody's to know
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is not None


def _pipe() -> tuple[int, int]:
    """Both ends above the standard descriptors, so that none is overwritten by another in the child."""
    ends = os.pipe()
    if min(ends) >= _ABOVE:
        return ends
    raised: list[int] = []
    try:
        raised += [fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, _ABOVE)]
        raised += [fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, _ABOVE)]
    except OSError:
        _close(raised)
        raise
    finally:
        _close(ends)
    return raised[0], raised[1]


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _spawn(command: Sequence[str], environment: Mapping[str, str], pipes: Sequence[int]) -> int:
    """posix_spawnp(3); ``pipes`` become its standard input and output. Raises ``OSError``."""
    actions, attributes, signals = (ctypes.create_string_buffer(_OPAQUE) for _ in range(3))
    _call("posix_spawn_file_actions_init", actions)
    try:
        for standard, descriptor in enumerate(pipes):
            _call("posix_spawn_file_actions_adddup2", actions, descriptor, standard)
        if hasattr(_LIBC, "posix_spawn_file_actions_addclosefrom_np"):  # glibc 2.34; else policies.child closes them
            _call("posix_spawn_file_actions_addclosefrom_np", actions, _ABOVE)
        _call("posix_spawnattr_init", attributes)
        _LIBC.sigemptyset(signals)
        _call("posix_spawnattr_setsigmask", attributes, signals)
        _LIBC.sigfillset(signals)
        _call("posix_spawnattr_setsigdefault", attributes, signals)
        _call("posix_spawnattr_setflags", attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK))
        pid = ctypes.c_int()
        arguments = _strings(command)
        variables = _strings([f"{name}={value}" for name, value in environment.items()])
        _call("posix_spawnp", ctypes.byref(pid), os.fsencode(command[0]), actions, attributes, arguments, variables)
    finally:
        _LIBC.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _call(name: str, *arguments: Any) -> None:
    """These functions return their error instead of setting it."""
    code = getattr(_LIBC, name)(*arguments)
    if code:
        raise OSError(code, os.strerror(code))


def _strings(texts: Sequence[str]) -> Any:
    """As C has it: ended by a null pointer."""
    return (ctypes.c_char_p * (len(texts) + 1))(*(os.fsencode(text) for text in texts), None)
