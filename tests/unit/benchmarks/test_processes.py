"""What a family of processes cost is a sum that never shrinks, whoever of it ends meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.processes import ended_cpu_us

SPINS = "import time\nwhile time.process_time() < 0.1: pass\n"
# A child that spins and has one of its own that does; both have ended once it is waited for.
FAMILY = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPINS!r}], check=True)\n{SPINS}"


def test_those_that_ended_are_counted_by_who_waited_for_them() -> None:
    before = ended_cpu_us(os.getpid())
    subprocess.run([sys.executable, "-c", FAMILY], check=True)
    assert ended_cpu_us(os.getpid()) - before >= 150_000  # both spun for 0.1 s, told in ticks of 10 ms


def test_those_that_run_are_counted_with_their_own_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", f"{FAMILY}input()"], stdin=subprocess.PIPE)
    try:
        seen = [ended_cpu_us(os.getpid())]
        while ended_cpu_us(child.pid) < 150_000:
            seen.append(ended_cpu_us(os.getpid()))
        child.communicate(b"\n", timeout=30)
        seen.append(ended_cpu_us(os.getpid()))
    finally:
        child.kill()
        child.wait()
    assert seen == sorted(seen)
