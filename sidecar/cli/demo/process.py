"""Children that can't outlive us: how the demo starts, watches and ends the servers it needs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sidecar.cli.demo import tether

# The kernel sends PR_SET_PDEATHSIG when the *thread* that forked ends, so every fork is made by this one, which lives
# as long as the process. A child started by a short-lived thread would otherwise be killed with it.
_FORKER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="demo-forker")

LOG_TAIL_LINES = 25
POLL_S = 0.05

Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """A ``Progress`` that says nothing."""


class StartError(Exception):
    """A part didn't start; the message says which, why, where its log is and how the log ends."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The system user a child runs as, where it may not be ours."""

    uid: int
    gid: int


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    on_parent_death: signal.Signals,
    identity: Identity | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in its own session, output appended to ``log``; it gets ``on_parent_death`` when we die, even
    by SIGKILL. Ctrl-C at a terminal reaches us only, so that we decide in which order the parts end."""
    return _FORKER.submit(_spawn, command, log, env, cwd, on_parent_death, identity).result()


def _spawn(
    command: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    on_parent_death: signal.Signals,
    identity: Identity | None,
) -> subprocess.Popen[bytes]:
    user = (str(identity.uid), str(identity.gid)) if identity else ("-", "-")
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603  # the callers' own argument lists, no shell
            [
                *(sys.executable, "-I", "-S", tether.__file__),  # -I -S: the standard library and nothing of the user's
                *(str(os.getpid()), str(int(on_parent_death)), *user),
                *(str(part) for part in command),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )


def wait_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    *,
    name: str,
    log: Path,
    deadline_s: float,
    tick: Progress = quiet,
    explain: Callable[[Path], str] | None = None,
) -> float:
    """Poll ``ready`` until it is true and return the seconds it took; StartError when the process ends first or the
    deadline passes. ``tick`` hears once a second that we still wait; ``explain`` finds in the log what went wrong,
    which otherwise is its tail."""
    explain = explain or tail
    began = time.monotonic()
    told = 0
    while not ready():
        waited = time.monotonic() - began
        code = process.poll()
        if code is not None:
            raise StartError(f"{name} ended while starting ({_how(code)}); its log, {log}, says:\n{explain(log)}")
        if waited > deadline_s:
            end(process, grace_s=5)
            raise StartError(f"{name} wasn't ready after {deadline_s:.0f} s; its log, {log}, says:\n{explain(log)}")
        if int(waited) > told:
            told = int(waited)
            tick(f"{name}: starting, {told} s")
        time.sleep(POLL_S)
    return time.monotonic() - began


def end(process: subprocess.Popen[bytes], *, first: signal.Signals = signal.SIGTERM, grace_s: float = 10) -> int:
    """Ask with ``first``, insist with SIGKILL after ``grace_s``; return the exit status. A process that has ended is
    left alone."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(first)
        try:
            return process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log, or why there are none."""
    try:
        text = log.read_text(errors="replace")
    except OSError as unreadable:
        return f"({unreadable})"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty)"


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
