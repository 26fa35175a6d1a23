"""Children: they end with us, and what went wrong is told with the end of their log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sidecar.cli.demo.process import StartError, end, spawn, tail, wait_ready
from tests.support.stack import eventually

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]

STARTER = """
import pathlib, signal, sys, time
from sidecar.cli.demo.process import spawn
here = pathlib.Path(sys.argv[1])
child = spawn(sys.argv[2:], log=here / "log", env={}, cwd=here, on_parent_death=signal.SIGKILL)
(here / "pid").write_text(f"{child.pid}\\n")
time.sleep(600)
"""


def start(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    return spawn(command, log=directory / "log", env={"A": "b"}, cwd=directory, on_parent_death=signal.SIGKILL)


def up(directory: Path) -> bool:
    return "up" in (directory / "log").read_text()


def test_a_child_ends_when_asked_and_ending_it_again_does_nothing(tmp_path: Path) -> None:
    child = start(SLEEPER, tmp_path)
    eventually(lambda: up(tmp_path), what="the child's start")
    assert end(child) == -signal.SIGTERM
    assert end(child) == -signal.SIGTERM


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    eventually(lambda: up(tmp_path), what="the child's start")
    assert end(child, grace_s=0.1) == -signal.SIGKILL


def test_a_child_started_by_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    made: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: made.append(start(SLEEPER, tmp_path)))
    thread.start()
    thread.join()
    eventually(lambda: up(tmp_path), what="the child's start")
    assert made[0].poll() is None
    end(made[0])


def test_a_child_dies_when_its_starter_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path), *SLEEPER])
    written = tmp_path / "pid"
    pid = int(eventually(lambda: written.exists() and written.read_text().strip(), what="the child", within_s=60))
    eventually(lambda: up(tmp_path), what="the child's start")
    starter.kill()
    starter.wait()
    eventually(lambda: not alive(pid), what="the child's end")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_child_sees_only_the_environment_it_is_given(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", "import os; print(os.environ.get('A'), os.environ.get('HOME'))"], tmp_path)
    child.wait(20)
    assert (tmp_path / "log").read_text() == "b None\n"
    assert "HOME" in os.environ


def test_a_child_that_ends_while_starting_is_told_with_its_log(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"], tmp_path)
    with pytest.raises(StartError, match=r"(?s)Thing ended while starting \(status 3\).*no such model"):
        wait_ready(child, lambda: False, name="Thing", log=tmp_path / "log", deadline_s=20)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    child = start([str(tmp_path / "absent")], tmp_path)
    with pytest.raises(StartError, match="absent: No such file"):
        wait_ready(child, lambda: False, name="Thing", log=tmp_path / "log", deadline_s=20)


def test_a_child_that_is_never_ready_is_ended_and_told(tmp_path: Path) -> None:
    child = start(SLEEPER, tmp_path)
    with pytest.raises(StartError, match="wasn't ready after 0 s"):
        wait_ready(child, lambda: False, name="Thing", log=tmp_path / "log", deadline_s=0.2)
    assert child.poll() is not None


def test_the_tail_of_a_log_is_its_last_lines_or_why_there_are_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert "No such file" in tail(log)
    log.touch()
    assert tail(log) == "  (empty)"
    log.write_bytes(b"one\ntwo\n\xffthree\n")
    assert tail(log, lines=2) == "  two\n  \ufffdthree"
