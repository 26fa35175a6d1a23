"""A child: only what it is given, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from policies.spawning import Child
from tests.support.own import children, descriptors

_LIBC = 1 << 31 | 1 << 32  # signals 32 and 33 are the C library's own


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before, others = descriptors(), children()
    yield
    assert descriptors() <= before
    assert children() <= others, "no process, no zombie"


def said(child: Child) -> str:
    """All that it says, until it closes its end."""
    try:
        return b"".join(iter(lambda: os.read(child.stdout, 2**16), b"")).decode()
    finally:
        child.end()


def test_its_pipes_are_ours() -> None:
    child = Child(("cat",), {})
    os.write(child.stdin, b"there and back")
    assert os.read(child.stdout, 100) == b"there and back"
    child.end()


def test_it_has_the_environment_that_it_is_given_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARDEN_SECRET", "of ours")
    assert said(Child(("env",), {"A": "1", "B": "ü = 2"})) == "A=1\nB=ü = 2\n"


def test_it_has_none_of_our_descriptors() -> None:
    """Nor those that a library forgot to mark: a client's connection would outlive its end."""
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    program = "import os; print(sorted(int(each) for each in os.listdir('/proc/self/fd'))[:4])"
    try:
        assert said(Child((sys.executable, "-c", program), {})) == "[0, 1, 2, 3]\n", "3 is the list's own"
    finally:
        os.close(kept)


def test_no_signal_is_blocked_or_ignored_in_it() -> None:
    """As Envoy's threads have it: else its alarm would never come."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    ignored = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        status = dict(line.split(":\t") for line in said(Child(("cat", "/proc/self/status"), {})).splitlines())
    finally:
        signal.signal(signal.SIGALRM, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & ~_LIBC == 0


@pytest.mark.parametrize("program", ["/nonexistent/python", "/", ""])
def test_what_cannot_be_started(program: str) -> None:
    with pytest.raises(OSError, match=r"No such file|ermission denied"):
        Child((program,), {})


@pytest.mark.parametrize(("program", "code"), [("exit 3", 3), ("kill -9 $$", -9)])
def test_how_it_ended(program: str, code: int) -> None:
    child = Child(("sh", "-c", program), {"PATH": os.defpath})
    assert child.ended(30.0) == code
    child.end()


def test_one_that_goes_on_is_ended() -> None:
    child = Child(("sh", "-c", "trap '' TERM; while :; do read line || :; done"), {"PATH": os.defpath})
    assert child.ended(0.0) is None
    child.end()
    assert child.ended(0.0) == -signal.SIGKILL
    assert not Path(f"/proc/{child.pid}").exists()


def test_where_the_kernel_reaps() -> None:
    """A host may ignore SIGCHLD; then nobody learns how a child ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = Child(("cat",), {})
        child.end()
        assert child.ended(0.0) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_where_our_standard_descriptors_are_closed() -> None:
    """The pipes' ends would take their numbers, and overwrite each other in the child."""
    program = """
import os
from policies.spawning import Child
from tests.support.own import children, descriptors
os.close(0)
os.close(1)
child = Child(("cat",), {})
os.write(child.stdin, b"through")
os.write(2, os.read(child.stdout, 100))
child.end()
"""
    outer = Child(("sh", "-c", 'exec "$0" -c "$1" 2>&1', sys.executable, program), {"PATH": os.defpath})
    assert said(outer) == "through"
